"""Words, n-grams and sentences on which systems differ, as compare-mt counts them.

compare-mt goes line by line; here the n-grams of all lines are numbered and counted at once. The
section is that of `compare`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy
from compare_mt.bucketers import FreqWordBucketer
from numpy.typing import NDArray

from nmtgrid.analysis.quality.buckets import labels
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.metrics.ngrams import common, longer
from nmtgrid.metrics.quality import tokenizer

FREQUENCIES = (1, 2, 3, 4, 5, 10, 100, 1000)
"""Edges of compare-mt's buckets of words."""


def word_accuracy(evaluation: Evaluation, frequencies: dict[int, int] | None) -> dict[str, Any]:
    """Return compare-mt's word accuracy by `frequencies` (of words by number) as JSON keys.

    A word of a sentence counts as correct as often as hypothesis and reference both have it. None
    means the frequencies in the references; words that no reference has are then in no bucket. Each
    system has a precision, recall and F-measure in each bucket, as shares (None: no words).
    """
    names = labels([float(edge) for edge in FREQUENCIES], is_whole=True)
    names[0] = "0"
    buckets = range(len(names))
    if frequencies is None:
        kinds, counts = numpy.unique(evaluation.reference.symbols, return_counts=True)
        frequencies = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
        # No word of the references occurs 0 times in them.
        buckets = buckets[1:]
    # With an empty dict the bucketer would look for a file.
    bucketer = FreqWordBucketer(freq_counts=frequencies or {-1: 1}, bucket_cutoffs=[*FREQUENCIES])
    statistics = bucketer.calc_statistics(evaluation.reference, evaluation.tokens)[0]
    # For each bucket: matches, words of the references, of the hypotheses, and three shares.
    systems = []
    for name, rows in zip(evaluation.names, statistics, strict=True):
        # Without words there are no shares, but compare-mt returns zero.
        recall, precision, f_measure = (
            [float(rows[n][column]) if rows[n][total] else None for n in buckets]
            for column, total in ((3, 1), (4, 2), (5, 1))
        )
        systems.append(
            {"system": name, "precision": precision, "recall": recall, "f_measure": f_measure}
        )
    return {
        "buckets": [names[bucket] for bucket in buckets],
        "reference_words": [int(statistics[0][bucket][1]) for bucket in buckets],
        "systems": systems,
    }


def frequencies_in(lines: Iterable[str], evaluation: Evaluation) -> dict[int, int]:
    """Return the frequency of each word of the evaluation in other lines, such as training text."""
    split = tokenizer(evaluation.tokenize, evaluation.lowercase)
    numbers = {word: number for number, word in enumerate(evaluation.vocabulary)}
    counts = Counter(word for line in lines for word in split(evaluation.lower(line)))
    return {numbers[word]: count for word, count in counts.items() if word in numbers}


# Words of the longest n-gram.
_MOST = 4


@dataclasses.dataclass(frozen=True)
class MatchedNGrams:
    """The n-grams of one order and, by system, how often each is correct [kinds].

    N-gram k is the `order` words of `symbols` from `starts[k]` on.
    """

    order: int
    symbols: NDArray[numpy.int32]
    starts: NDArray[numpy.int32]
    counts: Sequence[NDArray[numpy.int32]]

    def words(self, kind: int) -> list[int]:
        """Return the words, by number, of one n-gram."""
        start = int(self.starts[kind])
        words: list[int] = self.symbols[start : start + self.order].tolist()
        return words


def matched(evaluation: Evaluation) -> Iterator[MatchedNGrams]:
    """Yield for each order how often each system produces each n-gram correctly.

    An n-gram of a sentence is correct as often as hypothesis and reference both have it.
    """
    texts = [evaluation.reference, *evaluation.tokens]
    symbols = numpy.concatenate([text.symbols for text in texts])
    lengths = numpy.concatenate([text.lengths for text in texts])
    sizes = [len(text.symbols) for text in texts]
    # Flat arrays over the words of all texts, without a Python loop over words.
    text_of = numpy.repeat(numpy.arange(len(texts), dtype=numpy.int16), sizes)
    count = len(evaluation.reference.lengths)
    line_of = numpy.repeat(numpy.tile(numpy.arange(count, dtype=numpy.int32), len(texts)), lengths)
    # The number of words from each word to the end of its line, including itself.
    ends = numpy.repeat(numpy.cumsum(lengths).astype(numpy.int32), lengths)
    starts = numpy.arange(len(symbols), dtype=numpy.int32)
    left = ends - starts
    keys, bound = numpy.zeros(len(symbols), numpy.int64), 1
    for order in range(1, _MOST + 1):
        is_whole = left[starts] >= order
        starts, keys = starts[is_whole], keys[is_whole]
        if not len(starts):
            return
        keys, bound = longer(keys, bound, symbols[starts + order - 1], len(evaluation.vocabulary))
        # Ranks keep the keys of the next order within 64 bits.
        keys, firsts = _ranks(keys)
        bound = len(firsts)
        lines, texts_of_ngrams = line_of[starts], text_of[starts]
        counts = []
        for system in range(1, len(texts)):
            mask = (texts_of_ngrams == 0) | (texts_of_ngrams == system)
            # One key for an n-gram of a line: matches are within a sentence.
            pairs = lines[mask] * numpy.int64(bound) + keys[mask]
            _, shared, kinds = common(pairs, (texts_of_ngrams[mask] > 0).astype(numpy.int64))
            # A key without the line is the n-gram.
            right = numpy.bincount(kinds % bound, weights=shared, minlength=bound)
            counts.append(right.astype(numpy.int32))
        yield MatchedNGrams(order, symbols, starts[firsts], counts)


def _ranks(keys: NDArray[numpy.int64]) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return the rank of each key among the distinct keys, and an index for each rank.

    Like `numpy.unique`, but with half its memory, which dominates that of a comparison
    (benchmarks/analysis.py).
    """
    order = numpy.argsort(keys)
    keys = keys[order]
    is_new = numpy.concatenate([[True], keys[1:] != keys[:-1]])
    keys[order] = numpy.cumsum(is_new, dtype=numpy.int32) - 1
    return keys, order[is_new]


def differing(evaluation: Evaluation, count: int) -> list[dict[str, Any]]:
    """Return for each system except the first the n-grams on which it differs most from the first.

    As JSON keys: each n-gram that the `first` or the `second` system has correctly more often, how
    often each has it, and compare-mt's salience, near 1 for n-grams that only the first has right,
    near 0 for those that only the second has. On equal salience, longer n-grams come first.
    """
    names = evaluation.names
    candidates: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
        ([], []) for _ in names[1:]
    ]
    for ngrams in matched(evaluation):
        first = ngrams.counts[0]
        for pair, second in zip(candidates, ngrams.counts[1:], strict=True):
            # N-grams that both have right equally often do not matter.
            kinds = numpy.flatnonzero(first != second)
            # compare-mt's salience: above 1/2 if the first system has it right more often.
            scores = (first[kinds] + 1.0) / (first[kinds] + 1.0 + second[kinds] + 1.0)
            for better, side in zip(pair, (scores, 1.0 - scores), strict=True):
                for index in _greatest(side, count):
                    kind = int(kinds[index])
                    words = " ".join(evaluation.vocabulary[word] for word in ngrams.words(kind))
                    better.append({
                        "words": words,
                        "first": int(first[kind]),
                        "second": int(second[kind]),
                        "salience": float(scores[index]),
                    })  # fmt: skip
    return [
        {
            "first": names[0],
            "second": name,
            "better_first": _best(better_first, count, -1),
            "better_second": _best(better_second, count, 1),
        }
        for name, (better_first, better_second) in zip(names[1:], candidates, strict=True)
    ]


def _greatest(scores: NDArray[numpy.float64], count: int) -> list[int]:
    """Return the indices of the greatest scores above 1/2, the first ones on ties."""
    indices = numpy.flatnonzero(scores > 0.5)
    if len(indices) > count:
        # Few are left to sort.
        least = numpy.partition(scores[indices], -count)[-count]
        indices = indices[scores[indices] >= least]
    order = numpy.argsort(-scores[indices], kind="stable")
    greatest: list[int] = indices[order][:count].tolist()
    return greatest


def _best(ngrams: list[dict[str, Any]], count: int, sign: int) -> list[dict[str, Any]]:
    """Return the first in order of salience (`sign` 1: rising), length and letters."""
    order = sorted(
        ngrams,
        key=lambda gram: (sign * gram["salience"], -gram["words"].count(" "), gram["words"]),
    )
    return order[:count]


def examples(evaluation: Evaluation, system: int, count: int) -> dict[str, Any]:
    """Return as JSON the lines in which the first system leads `system` most, and trails it most.

    Lines that are the same in references and both systems count once.
    """
    first, second = evaluation.systems[0], evaluation.systems[system]
    scores = evaluation.sentence_bleu[0], evaluation.sentence_bleu[system]

    def most_ahead(gains: NDArray[numpy.float64]) -> list[dict[str, Any]]:
        seen: set[tuple[str, ...]] = set()
        ahead: list[dict[str, Any]] = []
        for index in numpy.argsort(-gains, kind="stable").tolist():
            if len(ahead) == count or gains[index] <= 0:
                break
            texts = {
                "reference": evaluation.reference_lines[index],
                "first": first.lines[index],
                "second": second.lines[index],
            }
            # Corpora repeat sentences: the same example five times is one example.
            if (alike := tuple(texts.values())) not in seen:
                seen.add(alike)
                ahead.append({
                    "line": index + 1,
                    **texts,
                    "sentence_bleu_first": float(scores[0][index]),
                    "sentence_bleu_second": float(scores[1][index]),
                })  # fmt: skip
        return ahead

    return {
        "first": first.name,
        "second": second.name,
        "better_first": most_ahead(scores[0] - scores[1]),
        "better_second": most_ahead(scores[1] - scores[0]),
    }
