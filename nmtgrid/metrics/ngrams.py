"""Clipped n-gram matches of two texts, for all lines at once; sufficient statistics of BLEU, chrF.

An n-gram is an integer: its line, then its symbols, as digits. Sorting the integers of both texts
counts the matches of all lines without a loop over lines. `analysis` uses it for significance tests
on sentence statistics, smoothing for the BLEU of samples; both agree with sacreBLEU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy
from numpy.typing import NDArray

_CHUNK = 400_000
"""Number of symbols of both texts that are sorted at a time."""
_MOST = 2**62


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Concatenated lines of symbols [total], and their `lengths` [lines]."""

    symbols: NDArray[numpy.int32]
    lengths: NDArray[numpy.int64]

    @functools.cached_property
    def starts(self) -> NDArray[numpy.int64]:
        """Where each line begins, and where the last one ends [lines + 1]."""
        return numpy.concatenate([[0], numpy.cumsum(self.lengths)])

    def __getitem__(self, line: int) -> list[int]:
        symbols: list[int] = self.symbols[self.starts[line] : self.starts[line + 1]].tolist()
        return symbols

    def __iter__(self) -> Iterator[list[int]]:
        # Created on access, because all of them would take gigabytes.
        return (self[line] for line in range(len(self.lengths)))

    def part(self, first: int, last: int) -> Ragged:
        starts = self.starts
        return Ragged(self.symbols[starts[first] : starts[last]], self.lengths[first:last])


def words(lines: Iterable[Sequence[str]], vocabulary: dict[str, int]) -> Ragged:
    """Return the words as numbers; new words are added to `vocabulary`."""
    symbols: list[int] = []
    lengths: list[int] = []
    for line in lines:
        symbols += [vocabulary.setdefault(word, len(vocabulary)) for word in line]
        lengths.append(len(line))
    return Ragged(numpy.array(symbols, numpy.int32), numpy.array(lengths, numpy.int64))


def chrf_characters(lines: Sequence[str], lowercase: bool = False) -> Ragged:
    """Return the characters of each line as code points, without white space."""
    stripped = ["".join((line.lower() if lowercase else line).split()) for line in lines]
    # Lone surrogates, which a Python string may contain, count as characters too.
    codes = "".join(stripped).encode("utf-32-le", "surrogatepass")
    lengths = numpy.fromiter(map(len, stripped), numpy.int64, len(stripped))
    return Ragged(numpy.frombuffer(codes, numpy.int32), lengths)


def totals(lengths: NDArray[numpy.int64], max_order: int) -> NDArray[numpy.int64]:
    """Return the number of n-grams of orders 1 to `max_order` in lines [lines, max_order]."""
    counts: NDArray[numpy.int64] = numpy.maximum(lengths[:, None] - numpy.arange(max_order), 0)
    return counts


def matches(first: Ragged, second: Ragged, max_order: int) -> NDArray[numpy.int64]:
    """Return the matches of orders 1 to `max_order` of both texts per line [lines, max_order].

    An n-gram that occurs twice in a line of both counts twice.
    """
    counts = numpy.zeros((len(first.lengths), max_order), numpy.int64)
    for start, end in _chunks(first.lengths + second.lengths):
        counts[start:end] = _matches(first.part(start, end), second.part(start, end), max_order)
    return counts


def _chunks(lengths: NDArray[numpy.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of lines with about equally many symbols, and at least one line."""
    reached = numpy.cumsum(lengths)
    start, before = 0, 0
    while start < len(lengths):
        end = int(numpy.searchsorted(reached, before + _CHUNK, side="right"))
        end = max(end, start + 1)
        yield start, end
        start, before = end, int(reached[end - 1])


def _matches(first: Ragged, second: Ragged, max_order: int) -> NDArray[numpy.int64]:
    count = len(first.lengths)
    matched = numpy.zeros((count, max_order), numpy.int64)
    # Symbols without gaps keep the integers small: more orders fit before keys must be renumbered.
    symbols, size = _ranked(numpy.concatenate([first.symbols, second.symbols]))
    lengths = numpy.concatenate([first.lengths, second.lengths])
    keys = numpy.repeat(numpy.tile(numpy.arange(count), 2), lengths)
    # The number of symbols from each to the end of its line, itself included.
    ends = numpy.repeat(numpy.cumsum(lengths), lengths)
    left = ends - numpy.arange(len(symbols))
    starts = numpy.arange(len(symbols))
    is_second = (starts >= len(first.symbols)).astype(numpy.int64)
    bound = count
    for order in range(1, max_order + 1):
        # An n-gram is the (n-1)-gram at the same start, one symbol longer, if the line goes on.
        fits = left[starts] >= order
        starts, keys = starts[fits], keys[fits]
        if not len(starts):
            break
        keys, bound = longer(keys, bound, symbols[starts + order - 1], size)
        # The line is the first digit, so sorted keys are in the order of the lines.
        grams = totals(first.lengths, order)[:, -1] + totals(second.lengths, order)[:, -1]
        line = numpy.repeat(numpy.arange(count), grams)
        ranks, shared, _ = common(keys, is_second[starts])
        matched[:, order - 1] = numpy.bincount(line[ranks], weights=shared, minlength=count)
    return matched


def longer(
    keys: NDArray[numpy.int64], bound: int, symbols: NDArray[numpy.int64], size: int
) -> tuple[NDArray[numpy.int64], int]:
    """Return n-grams (below `bound`) extended by a symbol (below `size`), and their new bound."""
    if bound * size > _MOST:
        # Before an overflow the keys in use are renumbered, in the same order.
        kinds, keys = numpy.unique(keys, return_inverse=True)
        bound = len(kinds)
    return keys * size + symbols, bound * size


def common(
    keys: NDArray[numpy.int64], is_second: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return for each key in both texts its rank among all sorted keys, its count, and the key."""
    # The text is the last bit: a key in both becomes two neighbours that differ in that bit.
    tagged = numpy.sort(keys * 2 + is_second)
    is_new = numpy.ones(len(tagged), bool)
    numpy.not_equal(tagged[1:], tagged[:-1], out=is_new[1:])
    starts = numpy.flatnonzero(is_new)
    counts = numpy.diff(starts, append=len(tagged))
    kinds = tagged[starts]
    shared = numpy.flatnonzero((kinds[:-1] + 1 == kinds[1:]) & (kinds[:-1] & 1 == 0))
    return starts[shared], numpy.minimum(counts[shared], counts[shared + 1]), kinds[shared] >> 1


def _ranked(symbols: NDArray[numpy.int32]) -> tuple[NDArray[numpy.int64], int]:
    """Return the symbols renumbered without gaps, and how many there are."""
    # A table of all symbols instead of `unique`: linear, without a sort.
    if not len(symbols):
        return symbols.astype(numpy.int64), 1
    is_used = numpy.zeros(int(symbols.max()) + 1, bool)
    is_used[symbols] = True
    ranks = numpy.cumsum(is_used) - 1
    return ranks[symbols], int(ranks[-1]) + 1


BLEU_ORDER, CHRF_ORDER = 4, 6

Counts = NDArray[numpy.int64]


def bleu_counts(hypotheses: Ragged, references: Ragged) -> Counts:
    """Return [lines, 10]: length, reference length, matched and total n-grams (1 to 4)."""
    return numpy.concatenate(
        [
            hypotheses.lengths[:, None],
            references.lengths[:, None],
            matches(hypotheses, references, BLEU_ORDER),
            totals(hypotheses.lengths, BLEU_ORDER),
        ],
        axis=1,
    )


def chrf_counts(hypotheses: Ragged, references: Ragged) -> Counts:
    """Return [lines, 18]: for n = 1 to 6 the n-grams of hypothesis, of reference, and of both.

    As in sacreBLEU, those of the hypothesis do not count if the reference has none.
    """
    in_reference = totals(references.lengths, CHRF_ORDER)
    in_hypothesis = numpy.where(in_reference > 0, totals(hypotheses.lengths, CHRF_ORDER), 0)
    matched = matches(hypotheses, references, CHRF_ORDER)
    counts = numpy.stack([in_hypothesis, in_reference, matched], axis=2)
    return counts.reshape(len(counts), -1)


def corpus_bleus(sums: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Return BLEU in percent [...] from sums of `bleu_counts` over sentences [..., 10].

    Like sacreBLEU's corpus score: as for a sentence, but 0 if the hypotheses have no 4-gram at all.
    """
    scores = sentence_bleus(sums.reshape(-1, sums.shape[-1])).reshape(sums.shape[:-1])
    return numpy.where((sums[..., -BLEU_ORDER:] > 0).all(-1), scores, 0.0)


def sentence_bleus(counts: Counts | NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Return each sentence's BLEU in percent from `bleu_counts`.

    Like sacreBLEU's sentence score: orders up to the longest n-gram that the hypothesis has, each
    order without a match counting as 1/2, 1/4, ... of one match.
    """
    length, reference_length = counts[:, 0], counts[:, 1]
    correct, total = counts[:, 2 : 2 + BLEU_ORDER], counts[:, 2 + BLEU_ORDER :]
    is_there = total > 0
    halves = numpy.cumsum((correct == 0) & is_there, axis=1)
    smoothed = numpy.where(correct > 0, correct, 0.5**halves)
    # Orders that the hypothesis is too short for have a logarithm of 0 and are not averaged.
    logs = numpy.log(numpy.where(is_there, smoothed / numpy.maximum(total, 1), 1.0))
    orders = numpy.maximum(is_there.sum(axis=1), 1)
    brevity = numpy.minimum(0.0, 1.0 - reference_length / numpy.maximum(length, 1))
    scores = 100.0 * numpy.exp(brevity + logs.sum(axis=1) / orders)
    # Smoothing is only for single orders: without any match the score is 0.
    return numpy.where(correct.any(axis=1), scores, 0.0)


def corpus_chrfs(sums: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Return chrF2 in percent [...] from sums of `chrf_counts` over sentences [..., 18].

    Like sacreBLEU's corpus score: precision and recall are means over the orders of which both
    sides have n-grams.
    """
    hypothesis, reference, matched = numpy.moveaxis(sums.reshape(*sums.shape[:-1], -1, 3), -1, 0)
    is_there = (hypothesis > 0) & (reference > 0)
    orders = numpy.maximum(is_there.sum(-1), 1)
    precision, recall = (
        numpy.where(is_there, matched / numpy.maximum(total, 1), 0.0).sum(-1) / orders
        for total in (hypothesis, reference)
    )
    # Recall counts twice as much (beta 2).
    weighted = numpy.maximum(4.0 * precision + recall, 1e-16)
    scores: NDArray[numpy.float64] = 500.0 * precision * recall / weighted
    return scores
