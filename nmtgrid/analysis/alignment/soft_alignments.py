"""Soft alignments of traces: how sharp they are, what they cover, and links between words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.alignment.pharaoh import to_text
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


class StatisticsSum:
    """Adds up what the averages are made of, alignment by alignment."""

    def __init__(self) -> None:
        self._uncertain = self._covered = 0.0
        self._sentences = self._source = self._target = 0

    def add(self, alignment: NDArray[Any]) -> None:
        """Enter the shares [T, S] of a sentence."""
        self._uncertain += float(entropy(alignment).sum())
        self._covered += float(coverage(alignment).sum())
        self._sentences += 1
        self._target += alignment.shape[0]
        self._source += alignment.shape[1]

    def averages(self) -> AlignmentStatistics | None:
        """Return the averages, or None where nothing was entered."""
        if not self._sentences:
            return None
        return AlignmentStatistics(
            self._uncertain / self._target,
            self._covered / self._source,
            self._sentences,
            self._source,
            self._target,
        )


def entropy(alignment: NDArray[Any]) -> NDArray[numpy.float64]:
    """Return [T], the entropy in nats of each row of `alignment` [T, S]. Eq. (3.24)."""
    held = alignment.astype(numpy.float64)
    logs = numpy.log(numpy.where(held > 0, held, 1.0))
    # No minus before a zero.
    return numpy.asarray(numpy.abs((held * logs).sum(1)))


def coverage(alignment: NDArray[Any]) -> NDArray[numpy.float64]:
    """Return [S], what `alignment` [T, S] gives to each source token, at most 1. Eq. (3.25)."""
    return numpy.asarray(numpy.minimum(1.0, alignment.astype(numpy.float64).sum(0)))


def shares(trace: Trace) -> NDArray[numpy.float64] | None:
    """Return the alignment as shares [T + 1, S + 1] of which each row sums to one.

    Of pictures, which have no end symbol, it is [T + 1, S].

    Energies, which add up to a score, are taken where they raise it: their positive parts, in
    proportion; a row without any is spread evenly. The papers give no measure of energies.
    """
    if trace.alignment is None:
        return None
    held = trace.alignment.astype(numpy.float64)
    if trace.kind == "energies":
        held = numpy.maximum(held, 0.0)
        held[held.sum(1) <= 0] = 1.0
        held /= held.sum(1, keepdims=True)
    return held


def statistics(traces: Iterable[Trace]) -> AlignmentStatistics | None:
    """Return the averages over all `traces` that have alignments, or None where none has."""
    total = StatisticsSum()
    for trace in traces:
        held = shares(trace)
        if held is not None:
            total.add(held)
    return total.averages()


def links(
    trace: Trace, *, words: bool = True, threshold: float | None = None
) -> list[tuple[int, int]]:
    """Return (source, target) pairs of words (or of units), from 0, in order.

    Each target unit is linked to the source unit with the largest share, or to all whose shares
    reach `threshold`; with `words` units stand for the words they belong to. A unit whose largest
    share lies on the source's end symbol has no link.
    """
    held = trace.alignment if threshold is None else shares(trace)
    if held is None or not trace.target:
        return []
    source = words_of_units(trace.source) if words else [*range(len(trace.source))]
    target = words_of_units(trace.target) if words else [*range(len(trace.target))]
    if threshold is None:
        pairs = numpy.stack([numpy.arange(len(target)), held[:-1].argmax(1)], 1).tolist()
    else:
        pairs = numpy.argwhere(held[:-1] >= threshold).tolist()
    return sorted({(source[place], target[row]) for row, place in pairs if place < len(source)})


def pharaoh(trace: Trace) -> str:
    """Return the links of words as `i-j` pairs, source word first."""
    return to_text(links(trace))


def by_words(trace: Trace) -> Trace:
    """Return a trace of words: shares are summed over a source word's units (and energies).

    A target word has the mean of its units' rows (of energies the sum).
    """
    source, target = words_of_units(trace.source), words_of_units(trace.target)
    held = trace.alignment
    if held is not None:
        rows, columns = _gathered(target), _gathered(source, trace.source_end)
        if trace.kind == "weights":
            rows = rows / rows.sum(1, keepdims=True)
        held = (rows @ held.astype(numpy.float64) @ columns.T).astype(numpy.float32)
    return dataclasses.replace(
        trace,
        source=join_units(trace.source),
        target=join_units(trace.target),
        alignment=held,
    )


def _gathered(numbers: Sequence[int], has_end: bool = True) -> NDArray[numpy.float64]:
    """Return [words + 1, units + 1]: which units make which word; any end symbols are last."""
    numbers = [*numbers, numbers[-1] + 1 if numbers else 0] if has_end else numbers
    table = numpy.zeros((numbers[-1] + 1 if numbers else 0, len(numbers)))
    table[numbers, numpy.arange(len(numbers))] = 1.0
    return table


def words_of_units(units: Sequence[str]) -> list[int]:
    """Return the number of the word that each unit belongs to."""
    numbers, word = [], 0
    for unit in units:
        numbers.append(word)
        word += not unit.endswith(JOINER)
    return numbers


def join_units(units: Sequence[str]) -> list[str]:
    """Return the words that units make; a last unit that goes on is a word as it stands."""
    found: list[str] = []
    for number, unit in zip(words_of_units(units), units, strict=True):
        if number == len(found):
            found.append("")
        found[number] += unit.removesuffix(JOINER)
    return found
