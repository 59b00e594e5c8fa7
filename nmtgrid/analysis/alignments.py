"""Soft alignments of traces: how sharp they are, what they cover, and links between words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.search.traces import Trace
from nmtgrid.text.bpe import JOINER


@dataclasses.dataclass(frozen=True)
class AlignmentStatistics:
    """Averages over a corpus; the tokens count the end symbols, over which shares are spread.

    entropy is in nats per target token, Eq. (3.24); coverage the mean share of a source token
    that is aligned to, at most 1 each, Eq. (3.25).
    """

    entropy: float
    coverage: float
    sentences: int
    source_tokens: int
    target_tokens: int


def entropy(alignment: NDArray[Any]) -> NDArray[numpy.float64]:
    """Return [T], the entropy in nats of each row of `alignment` [T, S]. Eq. (3.24)."""
    shares = alignment.astype(numpy.float64)
    logs = numpy.log(numpy.where(shares > 0, shares, 1.0))
    return numpy.asarray(-(shares * logs).sum(1))


def coverage(alignment: NDArray[Any]) -> NDArray[numpy.float64]:
    """Return [S], what `alignment` [T, S] gives to each source token, at most 1. Eq. (3.25)."""
    return numpy.asarray(numpy.minimum(1.0, alignment.astype(numpy.float64).sum(0)))


def statistics(traces: Iterable[Trace]) -> AlignmentStatistics | None:
    """Return the averages over all `traces` that have alignments, or None where none has.

    Energies are no shares and have neither entropy nor coverage: they count as no alignment.
    """
    uncertain = covered = 0.0
    sentences = source_tokens = target_tokens = 0
    for trace in traces:
        if trace.alignment is None or trace.kind == "energies":
            continue
        uncertain += float(entropy(trace.alignment).sum())
        covered += float(coverage(trace.alignment).sum())
        sentences += 1
        target_tokens += trace.alignment.shape[0]
        source_tokens += trace.alignment.shape[1]
    if not sentences:
        return None
    return AlignmentStatistics(
        uncertain / target_tokens, covered / source_tokens, sentences, source_tokens, target_tokens
    )


def links(trace: Trace) -> list[tuple[int, int]]:
    """Return (source word, target word) pairs, from 0, in order.

    Each target unit is linked to the source unit with the largest share, and units to the words
    they belong to. A unit whose largest share lies on the source's end symbol has no link.
    """
    if trace.alignment is None or not trace.target:
        return []
    source, target = words_of_units(trace.source), words_of_units(trace.target)
    places = trace.alignment[:-1].argmax(1).tolist()
    found = {
        (source[place], target[row]) for row, place in enumerate(places) if place < len(source)
    }
    return sorted(found)


def pharaoh(trace: Trace) -> str:
    """Return the links as `i-j` pairs, source word first."""
    return " ".join(f"{source}-{target}" for source, target in links(trace))


def words_of_units(units: Sequence[str]) -> list[int]:
    """Return the number of the word that each unit belongs to."""
    numbers, word = [], 0
    for unit in units:
        numbers.append(word)
        word += not unit.endswith(JOINER)
    return numbers
