"""What compare-mt tells of words and n-grams; the only door to it.

Its bucketer and its statistics are called, not its program, its report or its files: words come as
numbers, and n-grams as how often they matched, so that large sets fit into memory.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy
from compare_mt.bucketers import FreqWordBucketer
from compare_mt.stat_utils import extract_salient_features
from numpy.typing import NDArray

from nmtgrid.analysis.quality.bucketing import labels
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.metrics.ngrams import Ragged
from nmtgrid.metrics.quality import tokenizer

FREQUENCIES = (1, 2, 3, 4, 5, 10, 100, 1000)
"""Edges of compare-mt's buckets of words."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How well a system gets the words of each bucket: shares, None where there is nothing."""

    system: str
    precision: Sequence[float | None]
    recall: Sequence[float | None]
    f_measure: Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class WordAccuracy:
    """Buckets of words by frequency: names, words of the references in each, and each system."""

    labels: Sequence[str]
    reference_words: Sequence[int]
    systems: Sequence[Accuracy]


def word_accuracy(
    evaluation: Evaluation, frequencies: dict[int, int] | None = None
) -> WordAccuracy:
    """Return compare-mt's word accuracy by `frequencies` (of words by number).

    A word of a sentence counts as right as often as hypothesis and reference both have it.
    Without `frequencies` those in the references are meant; words that no reference has then have
    no bucket.
    """
    in_references = frequencies is None
    counts = _counts([evaluation.reference]) if frequencies is None else frequencies
    # An empty one would make the bucketer look for a file.
    bucketer = FreqWordBucketer(freq_counts=counts or {-1: 1}, bucket_cutoffs=[*FREQUENCIES])
    statistics = bucketer.calc_statistics(
        evaluation.reference.lines(), [_Corpus(one) for one in evaluation.tokens]
    )[0]
    names = labels([float(edge) for edge in FREQUENCIES], is_whole=True)
    names[0] = "0"
    kept = range(1 if in_references else 0, len(names))
    # For each bucket: matches, words of the references, of the hypotheses, and three shares.
    return WordAccuracy(
        [names[bucket] for bucket in kept],
        [int(statistics[0][bucket][1]) for bucket in kept],
        [
            _accuracy(name, [held[bucket] for bucket in kept])
            for name, held in zip(evaluation.names, statistics, strict=True)
        ],
    )


def _accuracy(system: str, held: Sequence[Any]) -> Accuracy:
    """Return the shares of compare-mt, but none of nothing, which it calls zero."""
    recall, precision, f_measure = (
        [float(one[column]) if one[total] else None for one in held]
        for column, total in ((3, 1), (4, 2), (5, 1))
    )
    return Accuracy(system, precision, recall, f_measure)


def frequencies_in(lines: Iterable[str], evaluation: Evaluation) -> dict[int, int]:
    """Return how often each word of the evaluation stands in other lines, such as training text."""
    split = tokenizer(evaluation.tokenize, evaluation.lowercase)
    number = {word: place for place, word in enumerate(evaluation.vocabulary)}
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(split(line))
    return {number[word]: count for word, count in counts.items() if word in number}


def _counts(texts: Sequence[Ragged]) -> dict[int, int]:
    kinds, counts = numpy.unique(
        numpy.concatenate([one.symbols for one in texts]), return_counts=True
    )
    return dict(zip(kinds.tolist(), counts.tolist(), strict=True))


class _Corpus:
    """Lines that are made when they are asked for."""

    def __init__(self, held: Ragged) -> None:
        self._symbols, self._starts = held.symbols, held.starts

    def __getitem__(self, line: int) -> list[int]:
        found: list[int] = self._symbols[self._starts[line] : self._starts[line + 1]].tolist()
        return found

    def __iter__(self) -> Iterator[list[int]]:
        return (self[line] for line in range(len(self._starts) - 1))


def salience(first: NDArray[numpy.int32], second: NDArray[numpy.int32]) -> NDArray[numpy.float64]:
    """Return compare-mt's salience of things counted in two systems, (a + 1) / (a + b + 2).

    Above 1/2 is more often of the first system, below of the second.
    """
    # It depends on the two counts alone, so that few of them are asked for.
    most = int(second.max(initial=0)) + 1
    kinds, inverse = numpy.unique(first.astype(numpy.int64) * most + second, return_inverse=True)
    ours: defaultdict[int, int] = defaultdict(int)
    theirs: defaultdict[int, int] = defaultdict(int)
    for kind in kinds.tolist():
        ours[kind], theirs[kind] = divmod(kind, most)
    scores = extract_salient_features(ours, theirs)
    found = numpy.array([scores[kind] for kind in kinds.tolist()], numpy.float64)
    return found[inverse]
