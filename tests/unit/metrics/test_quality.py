"""Scores against values computed by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from nmtgrid.base.errors import InputError
from nmtgrid.metrics.cider import Cider
from nmtgrid.metrics.quality import (
    Score,
    bleu,
    caption_bleu,
    caption_scores,
    chrf,
    sentence_bleu,
    ter,
)

Metric = Callable[..., Score]
# Metric, its settings, hypothesis, reference, score by hand.
BY_HAND: list[tuple[Metric, dict[str, Any], str, str, float]] = [
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 fours; the lengths are equal.
    (bleu, {"tokenize": "none"}, "a b c d e x", "a b c d e f",
     100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25),
    # The brevity penalty.
    (bleu, {"tokenize": "none"}, "a b c d e", "a b c d e f", 100 * math.exp(1 - 6 / 5)),
    # 13a splits `e.` into two words.
    (bleu, {"tokenize": "13a"}, "a b c d e.", "a b c d e .", 100),
    (bleu, {"tokenize": "none", "lowercase": True}, "a b c d", "A B C D", 100),
    (chrf, {"lowercase": True}, "ab", "AB", 100),
    (chrf, {}, "hello", "hello", 100),
    (chrf, {}, "abc", "xyz", 0),
    # TER counts edits for each word of the reference.
    (ter, {"lowercase": True}, "a b", "A B", 0),
    (ter, {}, "a b", "A B", 100),
    (ter, {}, "a b x d", "a b c d", 25),
    # Without spaces for each Chinese character: 2 of 8.
    (ter, {"tokenize": "zh"}, "我们今天去上海。", "我们今天去北京。", 25),
    (ter, {"tokenize": "char"}, "我们今天去上海。", "我们今天去北京。", 25),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "settings", "hypothesis", "reference", "expected"), BY_HAND)
def test_scores_by_hand(
    metric: Metric, settings: dict[str, Any], hypothesis: str, reference: str, expected: float
) -> None:
    score = metric([hypothesis], [reference], **settings)
    assert score.value == pytest.approx(expected)
    assert "version:" in score.signature


def test_words_and_case_as_they_are() -> None:
    """`none` does not split `e.`; sentence BLEU uses the orders there are."""
    assert bleu(["a b c d e."], ["a b c d e ."], "none").value < 100
    assert bleu(["a b c d"], ["A B C D"], "none").value < 1
    assert "tok:none" in bleu(["a"], ["a"], "none").signature
    assert "case:lc" in bleu(["a"], ["A"], "none", lowercase=True).signature
    assert sentence_bleu("a b", "a b", "none") == pytest.approx(100)


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(InputError, match="2 hypotheses for 1 references"):
        bleu(["a", "b"], ["a"])
    with pytest.raises(InputError, match="no sentence"):
        bleu([], [])


def test_captions_against_several_references_by_hand() -> None:
    """`a b c` has 3 of 3 words and 1 of 2 pairs in one reference or the other, `d` 0 of 1 words.

    The nearest lengths are 3 (of 2 and 3) and 2; 4 words stand against 5.
    """
    captions = ["a b c", "d"]
    references = [["b c", "a x b"], ["e f"]]
    short = math.exp(1 - 5 / 4)
    scores = caption_bleu(captions, references, 1)
    assert scores.value == pytest.approx(100 * short * 3 / 4)
    assert "smooth:none" in scores.signature and "tok:none" in scores.signature
    pairs = caption_bleu(captions, references, 2).value
    assert pairs == pytest.approx(100 * short * (3 / 4 * 1 / 2) ** 0.5)
    assert caption_bleu(captions, references).value == 0


def test_scores_of_captions() -> None:
    """Both captions equal a reference; CIDEr of four orders as in tests of its own."""
    references = [["a b c d", "a b"], ["e f g h", "e f g h"]]
    captions = ["a b c d", "e f g h"]
    scores = caption_scores(captions, references)
    assert [scores[f"bleu_{n}"] for n in range(1, 5)] == pytest.approx([100.0] * 4)
    words = [[line.split() for line in lines] for lines in references]
    cider = Cider(words).corpus([line.split() for line in captions], words)
    assert scores["cider"] == pytest.approx(100 * cider)
    # The second picture's captions are equal to both references: 10 of 10.
    assert Cider(words).score(words[1][0], words[1]) == pytest.approx(10)
    assert scores["signature_cider"] == "cider-d|n:4|sigma:6|stem:no|pictures:2|times:100"
    with pytest.raises(InputError, match="2 hypotheses for 1"):
        caption_scores(captions, references[:1])
