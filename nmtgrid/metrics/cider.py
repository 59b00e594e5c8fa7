"""CIDEr-D: agreement of a caption with several references (Vedantam et al., 2015).

N-grams of orders 1 to 4 are weighted by tf-idf: how often a caption has them, and how few pictures'
references have them. The score is the mean cosine between the caption and each of its references,
times ten, with clipped counts and a penalty for different lengths; the MS-COCO tool calls it CIDEr.
Tokens may be words or ids. Words are not stemmed, as in the MS-COCO tool but unlike the paper.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

_SIGMA = 6.0
"""Standard deviation of the length penalty in tokens."""
Tokens = Sequence[Hashable]
Gram = tuple[Hashable, ...]


@dataclasses.dataclass(frozen=True)
class DocumentFrequencies:
    """The number of pictures whose references contain each n-gram."""

    counts: Mapping[Gram, int]
    pictures: int

    @classmethod
    def count(cls, references: Iterable[Iterable[Tokens]], n: int = 4) -> DocumentFrequencies:
        """Return those of a corpus, given the references of each picture."""
        counts: Counter[Gram] = Counter()
        pictures = 0
        for of_picture in references:
            pictures += 1
            # A set: however many references of a picture have an n-gram, the picture counts once.
            counts.update({gram for tokens in of_picture for gram in grams(tokens, n)})
        return cls(counts, pictures)


@dataclasses.dataclass(frozen=True)
class _Vector:
    """A caption as tf-idf weights, with the norms [n] of the n-grams of each order."""

    weights: Mapping[Gram, float]
    norms: Sequence[float]
    length: int


class Cider:
    """CIDEr-D with the document frequencies of a corpus; scores are from 0 to 10.

    Tables print a hundred times as much. A corpus of a single picture scores 0: n-grams that all
    pictures have get a weight of zero.
    """

    def __init__(
        self, references: Sequence[Sequence[Tokens]] | DocumentFrequencies, n: int = 4
    ) -> None:
        """`references` are those of all pictures (or counted already, to the same `n`)."""
        if not isinstance(references, DocumentFrequencies):
            references = DocumentFrequencies.count(references, n)
        self.frequencies = references
        self.n = n
        self._most = math.log(max(1, self.frequencies.pictures))

    @property
    def signature(self) -> str:
        """The parameters of the score, in the style of sacreBLEU."""
        pictures = self.frequencies.pictures
        return f"cider-d|n:{self.n}|sigma:{_SIGMA:g}|stem:no|pictures:{pictures}"

    def score(self, candidate: Tokens, references: Sequence[Tokens]) -> float:
        """Return the score of one caption against the references of its picture."""
        return self.scores([candidate], references)[0]

    def scores(self, candidates: Sequence[Tokens], references: Sequence[Tokens]) -> list[float]:
        """Return the scores of several captions of one picture.

        Raises ValueError without a reference.
        """
        if not references:
            raise ValueError("a caption cannot be scored without a reference")
        # Vectors of references are computed once: training scores many samples of a picture.
        reference_vectors = [self._vector(tokens) for tokens in references]
        scores = []
        for candidate in candidates:
            vector = self._vector(candidate)
            total = sum(self._similarity(vector, reference) for reference in reference_vectors)
            scores.append(10.0 * total / len(reference_vectors))
        return scores

    def corpus(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
        """Return the mean score of pictures. Raises ValueError if counts differ or are 0."""
        if not candidates or len(candidates) != len(references):
            raise ValueError(f"{len(candidates)} captions of {len(references)} pictures")
        pairs = zip(candidates, references, strict=True)
        return sum(self.score(*pair) for pair in pairs) / len(candidates)

    def _vector(self, tokens: Tokens) -> _Vector:
        """Return the weights of a caption's n-grams, eq. (1) of the paper.

        Departs: Eq. (1) divides counts by the number of n-grams. Like the authors' code, this does
        not; it makes no difference to the cosine, but it does to the clipping of CIDEr-D.
        """
        document_counts = self.frequencies.counts
        weights: dict[Gram, float] = {}
        squares = [0.0] * self.n
        for gram, count in grams(tokens, self.n).items():
            weight = count * (self._most - math.log(max(1, document_counts.get(gram, 0))))
            weights[gram] = weight
            squares[len(gram) - 1] += weight * weight
        return _Vector(weights, [math.sqrt(square) for square in squares], len(tokens))

    def _similarity(self, candidate: _Vector, reference: _Vector) -> float:
        """Return the mean over n of the cosines, eq. (2) and (3), as in CIDEr-D."""
        products = [0.0] * self.n
        for gram, weight in candidate.weights.items():
            other = reference.weights.get(gram)
            if other is not None:
                # Clipped, so that repeating a good n-gram gains nothing.
                products[len(gram) - 1] += min(weight, other) * other
        # If a product is zero, a norm may be too: a text without n-grams of this order.
        total = 0.0
        for product, first, second in zip(products, candidate.norms, reference.norms, strict=True):
            if product:
                total += product / (first * second)
        difference = candidate.length - reference.length
        total *= math.exp(-(difference * difference) / (2.0 * _SIGMA * _SIGMA))
        return total / self.n


def grams(tokens: Tokens, n: int) -> Counter[Gram]:
    """Return the counts of all n-grams of orders 1 to `n` in `tokens`."""
    # Slices of a tuple can be hashed; slices of a list cannot.
    sequence = tuple(tokens)
    return Counter(
        sequence[start : start + order]
        for order in range(1, n + 1)
        for start in range(len(sequence) - order + 1)
    )
