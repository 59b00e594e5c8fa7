"""CIDEr against values computed by hand from its definition."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy
import pytest

from nmtgrid.metrics.cider import Cider, DocumentFrequencies, grams

# Three pictures, the first with two references. Of the n-grams only `a` stands in two pictures.
CORPUS = [[["a", "b"], ["a", "c"]], [["a", "d"]], [["e", "f"]]]
COMMON, RARE = math.log(1.5) ** 2, math.log(3) ** 2


def test_grams_and_document_frequencies() -> None:
    assert grams(["a", "b", "a"], 2) == {("a",): 2, ("b",): 1, ("a", "b"): 1, ("b", "a"): 1}
    assert grams([], 4) == {}
    # `a` stands in both references of the first picture and in the second picture: 2.
    frequencies = DocumentFrequencies.count(CORPUS, 2)
    assert frequencies.pictures == 3
    assert frequencies.counts == {
        ("a",): 2, ("b",): 1, ("c",): 1, ("d",): 1, ("e",): 1, ("f",): 1,
        ("a", "b"): 1, ("a", "c"): 1, ("a", "d"): 1, ("e", "f"): 1,
    }  # fmt: skip


def test_cider_by_hand() -> None:
    """Candidate `a b` of picture 1, n = 2.

    idf: a = log(3/2), all others log 3. Against `a b`: both orders are equal vectors, cosine 1.
    Against `a c`: unigrams share a, (log 1.5)^2 / ((log 1.5)^2 + (log 3)^2); bigrams share none.
    """
    expected = 10 * ((1 + 1) / 2 + (COMMON / (COMMON + RARE) + 0) / 2) / 2
    # Equal lengths and no repeated word: CIDEr-D is CIDEr.
    assert Cider(CORPUS, 2).score(["a", "b"], CORPUS[0]) == pytest.approx(expected)
    # Two words have no trigrams: of four orders, the cosines of two are 1.
    assert Cider(CORPUS).score(["e", "f"], CORPUS[2]) == pytest.approx(10 * 2 / 4)


def test_clipping_and_length_of_cider_d_by_hand() -> None:
    """Candidate `e e e f` against `e f`, unigrams alone; idf log 3 of both.

    Weights (3, 1) log 3 and (1, 1) log 3. Clipped: min(3, 1) 1 + min(1, 1) 1 = 2 over the norms
    sqrt 10 and sqrt 2; two tokens longer: exp(-4 / (2 * 36)).
    """
    score = Cider(CORPUS, 1).score(["e", "e", "e", "f"], CORPUS[2])
    assert score == pytest.approx(10 * 2 / math.sqrt(20) * math.exp(-4 / 72))


def test_weights_of_words() -> None:
    """`z` stands nowhere: idf log 3, as of a word that one picture has.

    Candidate `a z` against `a d`, unigrams: (log 1.5)^2 / ((log 1.5)^2 + (log 3)^2).
    """
    score = Cider(CORPUS, 1).score(["a", "z"], CORPUS[1])
    assert score == pytest.approx(10 * COMMON / (COMMON + RARE))
    corpus = [[["x", "a"]], [["x", "b"]]]
    assert Cider(corpus, 1).score(["x"], corpus[0]) == 0
    assert Cider(corpus[:1], 1).score(["x", "a"], corpus[0]) == 0


def test_corpus_is_the_mean_over_pictures() -> None:
    """The second caption shares no word with its reference and scores 0."""
    cider = Cider(CORPUS)
    candidates = [["a", "b"], ["z"], ["e", "f"]]
    expected = (cider.score(["a", "b"], CORPUS[0]) + 0 + 5.0) / 3
    assert cider.corpus(candidates, CORPUS) == pytest.approx(expected)
    assert cider.scores([["a", "b"], []], CORPUS[0]) == [cider.score(["a", "b"], CORPUS[0]), 0.0]
    numbers = {word: number for number, word in enumerate("abcdef")}
    coded = [[[numbers[w] for w in tokens] for tokens in references] for references in CORPUS]
    words = Cider(CORPUS).score(["a", "c"], CORPUS[0])
    assert Cider(DocumentFrequencies.count(coded)).score([0, 2], coded[0]) == words
    assert words > 0


def test_signature_and_faults() -> None:
    assert Cider(CORPUS).signature == "cider-d|n:4|sigma:6|stem:no|pictures:3"
    with pytest.raises(ValueError, match="without a reference"):
        Cider(CORPUS).score(["a"], [])
    with pytest.raises(ValueError, match="1 captions of 3 pictures"):
        Cider(CORPUS).corpus([["a"]], CORPUS)


def test_random_captions_by_dense_vectors() -> None:
    """The definition with one column for each n-gram that there is, order by order."""
    draw = numpy.random.default_rng(4)
    corpus = [
        [draw.integers(0, 5, int(draw.integers(1, 9))).tolist() for _ in range(3)] for _ in range(6)
    ]
    candidates = [draw.integers(0, 6, int(draw.integers(0, 9))).tolist() for _ in corpus]
    metric = Cider(corpus, 3)

    def counts(tokens: list[int], columns: list[tuple[int, ...]]) -> Any:
        n = len(columns[0])
        present = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
        return numpy.array([present.count(column) for column in columns], float)

    for candidate, references in zip(candidates, corpus, strict=True):
        total = 0.0
        for n in (1, 2, 3):
            columns = list(itertools.product(range(6), repeat=n))
            holders = sum(
                (sum(counts(caption, columns) for caption in others) > 0).astype(float)
                for others in corpus
            )
            idf = math.log(6) - numpy.log(numpy.maximum(holders, 1))
            ours = counts(candidate, columns) * idf
            for reference in references:
                theirs = counts(reference, columns) * idf
                norms = numpy.linalg.norm(ours) * numpy.linalg.norm(theirs)
                penalty = math.exp(-((len(candidate) - len(reference)) ** 2) / 72)
                clipped = numpy.minimum(ours, theirs)
                total += penalty * float(clipped @ theirs / norms) if norms else 0.0
        assert metric.score(candidate, references) == pytest.approx(10 * total / 9)
