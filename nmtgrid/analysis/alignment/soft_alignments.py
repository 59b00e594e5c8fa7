"""Soft alignments in traces: sharpness, coverage, and links between words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.base.subword_marks import joined_words, mark_of, word_numbers
from nmtgrid.search.traces import Trace


@dataclasses.dataclass(frozen=True)
class AlignmentStatistics:
    """Averages over a corpus; end symbols count as tokens on both sides.

    entropy is in nats per target token, Eq. (3.24); coverage the mean share of a source token
    that is aligned to, at most 1 each, Eq. (3.25).
    """

    entropy: float
    coverage: float
    sentences: int
    source_tokens: int
    target_tokens: int


def statistics(alignments: Iterable[NDArray[Any]]) -> AlignmentStatistics | None:
    """Return the averages over alignments [T, S] of sentences as shares; None for no sentence."""
    uncertain = covered = 0.0
    sentences = source = target = 0
    for alignment in alignments:
        uncertain += float(entropy(alignment).sum())
        covered += float(coverage(alignment).sum())
        sentences += 1
        target += alignment.shape[0]
        source += alignment.shape[1]
    if not sentences:
        return None
    return AlignmentStatistics(uncertain / target, covered / source, sentences, source, target)


def entropy(alignment: NDArray[Any]) -> NDArray[numpy.float64]:
    """Return [T], the entropy in nats of each row of `alignment` [T, S]. Eq. (3.24)."""
    shares = alignment.astype(numpy.float64)
    # 0 log 0 is 0.
    logs = numpy.log(numpy.where(shares > 0, shares, 1.0))
    # No minus before a zero.
    return numpy.asarray(numpy.abs((shares * logs).sum(1)))


def coverage(alignment: NDArray[Any]) -> NDArray[numpy.float64]:
    """Return [S], the sum of `alignment` [T, S] for each source token, at most 1. Eq. (3.25)."""
    return numpy.asarray(numpy.minimum(1.0, alignment.astype(numpy.float64).sum(0)))


def shares(trace: Trace) -> NDArray[numpy.float64] | None:
    """Return the alignment as shares [T + 1, S + 1] of which each row sums to one.

    For pictures, which have no end symbol, it is [T + 1, S].

    Energies add up to a score: only those that raise it count, their positive parts in proportion;
    a row without any is spread evenly. The papers give no measure of energies.
    """
    if trace.alignment is None:
        return None
    weights = trace.alignment.astype(numpy.float64)
    if trace.kind == "energies":
        weights = numpy.maximum(weights, 0.0)
        # Nothing raises the score, so all positions are equal.
        weights[weights.sum(1) <= 0] = 1.0
        weights /= weights.sum(1, keepdims=True)
    return weights


def links(
    trace: Trace, *, words: bool = True, threshold: float | None = None
) -> list[tuple[int, int]]:
    """Return (source, target) pairs of words (or of units), from 0, in order.

    Each target unit is linked to the source unit with the largest share, or to all whose shares
    reach `threshold`; with `words` units stand for the words they belong to. A unit whose largest
    share is that of the source's end symbol has no link.
    """
    weights = trace.alignment if threshold is None else shares(trace)
    if weights is None or not trace.target:
        return []
    source = words_of_units(trace.source) if words else [*range(len(trace.source))]
    target = words_of_units(trace.target) if words else [*range(len(trace.target))]
    if threshold is None:
        pairs = numpy.stack([numpy.arange(len(target)), weights[:-1].argmax(1)], 1).tolist()
    else:
        pairs = numpy.argwhere(weights[:-1] >= threshold).tolist()
    # The column after the last source unit is the end symbol's.
    return sorted({(source[column], target[row]) for row, column in pairs if column < len(source)})


def by_words(trace: Trace) -> Trace:
    """Return a trace of words: shares (or energies) are summed over a source word's units.

    A target word has the mean of its units' rows (for energies the sum).
    """
    source, target = words_of_units(trace.source), words_of_units(trace.target)
    alignment = trace.alignment
    if alignment is not None:
        rows, columns = _membership(target), _membership(source, trace.source_end)
        if trace.kind == "weights":
            # Shares of a word's units are averaged, so that they sum to one again; energies add up.
            rows = rows / rows.sum(1, keepdims=True)
        alignment = (rows @ alignment.astype(numpy.float64) @ columns.T).astype(numpy.float32)
    return dataclasses.replace(
        trace, source=join_units(trace.source), target=join_units(trace.target), alignment=alignment
    )


def _membership(numbers: Sequence[int], has_end: bool = True) -> NDArray[numpy.float64]:
    """Return [words + 1, units + 1]: which units form which word; any end symbols are last."""
    # The end symbol is a word of its own.
    numbers = [*numbers, numbers[-1] + 1 if numbers else 0] if has_end else numbers
    table = numpy.zeros((numbers[-1] + 1 if numbers else 0, len(numbers)))
    table[numbers, numpy.arange(len(numbers))] = 1.0
    return table


def words_of_units(units: Sequence[str]) -> list[int]:
    """Return the number of the word that each unit belongs to."""
    return word_numbers(units, mark_of(units))


def join_units(units: Sequence[str]) -> list[str]:
    """Return the words of subword units; an unfinished last word is kept as it is."""
    return joined_words(units, mark_of(units))
