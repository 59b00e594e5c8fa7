"""The n-grams on which two systems differ most, and the sentences.

N-grams are counted as compare-mt's `compare_ngrams` counts them, all lines at once.
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

from nmtgrid.analysis.quality.buckets import labels
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.metrics.ngrams import Ragged, common, longer
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


_MOST = 4
"""Words of the longest n-gram."""


@dataclasses.dataclass(frozen=True)
class NGram:
    """An n-gram, how often each of two systems has it right, and compare-mt's salience.

    Salience is near 1 for what the first system has right and the second has not, near 0 the
    other way round.
    """

    words: str
    first: int
    second: int
    salience: float


@dataclasses.dataclass(frozen=True)
class Differing:
    """What two systems differ on: n-grams that the first, or the second, has right more often."""

    first: str
    second: str
    better_first: Sequence[NGram]
    better_second: Sequence[NGram]


@dataclasses.dataclass(frozen=True)
class Matched:
    """The n-grams of one order and, by system, how often it has each right [kinds].

    N-gram k is the `order` words of `symbols` from `places[k]` on.
    """

    order: int
    symbols: NDArray[numpy.int32]
    places: NDArray[numpy.int32]
    counts: Sequence[NDArray[numpy.int32]]

    def words(self, kind: int) -> list[int]:
        """Return the words, by number, of one n-gram."""
        start = int(self.places[kind])
        found: list[int] = self.symbols[start : start + self.order].tolist()
        return found


def matched(evaluation: Evaluation, most: int = _MOST) -> Iterator[Matched]:
    """Yield for each order how often each system has each n-gram right.

    An n-gram of a sentence is right as often as hypothesis and reference both have it.
    """
    texts = [evaluation.reference, *evaluation.tokens]
    symbols = numpy.concatenate([one.symbols for one in texts])
    lengths = numpy.concatenate([one.lengths for one in texts])
    sizes = [len(one.symbols) for one in texts]
    text = numpy.repeat(numpy.arange(len(texts), dtype=numpy.int16), sizes)
    count = len(evaluation.reference.lengths)
    line = numpy.repeat(numpy.tile(numpy.arange(count, dtype=numpy.int32), len(texts)), lengths)
    # How many words there are from each to the end of its line, itself counted.
    ends = numpy.repeat(numpy.cumsum(lengths).astype(numpy.int32), lengths)
    places = numpy.arange(len(symbols), dtype=numpy.int32)
    left = ends - places
    keys, bound = numpy.zeros(len(symbols), numpy.int64), 1
    for order in range(1, most + 1):
        stay = left[places] >= order
        places, keys = places[stay], keys[stay]
        if not len(places):
            return
        keys, bound = longer(keys, bound, symbols[places + order - 1], len(evaluation.vocabulary))
        keys, where = _ranks(keys)
        bound = len(where)
        counts = _right(keys, bound, line[places], text[places], len(texts))
        yield Matched(order, symbols, places[where], counts)


def _ranks(
    keys: NDArray[numpy.int64],
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return the rank of each key among the different ones, and where one of each rank stands.

    As `numpy.unique`, in half its memory.
    """
    order = numpy.argsort(keys)
    keys = keys[order]
    is_new = numpy.concatenate([[True], keys[1:] != keys[:-1]])
    keys[order] = numpy.cumsum(is_new, dtype=numpy.int32) - 1
    return keys, order[is_new]


def _right(
    keys: NDArray[numpy.int64],
    bound: int,
    line: NDArray[numpy.int32],
    text: NDArray[numpy.int16],
    texts: int,
) -> list[NDArray[numpy.int32]]:
    """Return for each text after the first (the reference) how often each key is right."""
    found = []
    for system in range(1, texts):
        held = (text == 0) | (text == system)
        both = line[held] * numpy.int64(bound) + keys[held]
        _, shared, kinds = common(both, (text[held] > 0).astype(numpy.int64))
        counts = numpy.bincount(kinds % bound, weights=shared, minlength=bound)
        found.append(counts.astype(numpy.int32))
    return found


def differing(evaluation: Evaluation, count: int = 10, most: int = _MOST) -> list[Differing]:
    """Return for each system but the first the n-grams on which it differs most from that.

    Of equal salience, longer n-grams stand first.
    """
    names = evaluation.names
    better: list[tuple[list[NGram], list[NGram]]] = [([], []) for _ in names[1:]]
    for one in matched(evaluation, most):
        for (first, second), counts in zip(better, one.counts[1:], strict=True):
            kinds = numpy.flatnonzero(one.counts[0] != counts)
            scores = salience(one.counts[0][kinds], counts[kinds])
            for held, side in ((first, scores), (second, 1.0 - scores)):
                held += [
                    _ngram(evaluation, one, counts, int(kinds[place]), float(scores[place]))
                    for place in _greatest(side, count)
                ]
    return [
        Differing(names[0], name, _best(first, count, -1), _best(second, count, 1))
        for name, (first, second) in zip(names[1:], better, strict=True)
    ]


def _greatest(scores: NDArray[numpy.float64], count: int) -> list[int]:
    """Return the places of the greatest scores above 1/2, of equals the first."""
    held = numpy.flatnonzero(scores > 0.5)
    if len(held) > count:
        least = numpy.partition(scores[held], -count)[-count]
        held = held[scores[held] >= least]
    order = numpy.argsort(-scores[held], kind="stable")
    found: list[int] = held[order][:count].tolist()
    return found


def _ngram(
    evaluation: Evaluation,
    held: Matched,
    counts: NDArray[numpy.int32],
    kind: int,
    score: float,
) -> NGram:
    words = " ".join(evaluation.vocabulary[word] for word in held.words(kind))
    return NGram(words, int(held.counts[0][kind]), int(counts[kind]), score)


def _best(held: list[NGram], count: int, sign: int) -> list[NGram]:
    return sorted(held, key=lambda one: (sign * one.salience, -one.words.count(" "), one.words))[
        :count
    ]


@dataclasses.dataclass(frozen=True)
class Example:
    """A line (from 1) and the sentence BLEU in percent of two systems there."""

    line: int
    first: float
    second: float


def examples(
    evaluation: Evaluation, system: int, count: int = 5
) -> tuple[list[Example], list[Example]]:
    """Return the lines where the first system is most ahead of `system`, and most behind it.

    Lines that are alike in references and both systems count once.
    """
    first, second = evaluation.sentence_bleu[0], evaluation.sentence_bleu[system]
    return (
        _ahead(evaluation, system, first - second, count),
        _ahead(evaluation, system, second - first, count),
    )


def _ahead(
    evaluation: Evaluation, system: int, ahead: NDArray[numpy.float64], count: int
) -> list[Example]:
    first, second = evaluation.sentence_bleu[0], evaluation.sentence_bleu[system]
    texts = (evaluation.reference_lines, *(evaluation.systems[n].lines for n in (0, system)))
    seen: set[tuple[str, ...]] = set()
    found: list[Example] = []
    for place in numpy.argsort(-ahead, kind="stable").tolist():
        if len(found) == count or ahead[place] <= 0:
            break
        alike = tuple(lines[place] for lines in texts)
        if alike not in seen:
            seen.add(alike)
            found.append(Example(place + 1, float(first[place]), float(second[place])))
    return found
