"""Scores against values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

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


def test_bleu_by_hand() -> None:
    """5 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 fours; the lengths are equal."""
    found = bleu(["a b c d e x"], ["a b c d e f"], "none")
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert found.value == pytest.approx(expected)
    assert "tok:none" in found.signature


def test_brevity_penalty_by_hand() -> None:
    found = bleu(["a b c d e"], ["a b c d e f"], "none")
    assert found.value == pytest.approx(100 * math.exp(1 - 6 / 5))


def test_tokenised_protocol_takes_words_as_they_are() -> None:
    """13a splits `b.` into two words; `none` does not."""
    glued, apart = ["a b c d e."], ["a b c d e ."]
    assert bleu(glued, apart, "13a").value == pytest.approx(100)
    assert bleu(glued, apart, "none").value < 100


def test_case() -> None:
    assert bleu(["a b c d"], ["A B C D"], "none").value < 1
    lowered = bleu(["a b c d"], ["A B C D"], "none", lowercase=True)
    assert lowered.value == pytest.approx(100)
    assert "case:lc" in lowered.signature
    assert chrf(["ab"], ["AB"], lowercase=True).value == pytest.approx(100)
    assert ter(["a b"], ["A B"], lowercase=True).value == 0
    assert ter(["a b"], ["A B"]).value == pytest.approx(100)


def test_ter_counts_edits_per_reference_word() -> None:
    assert ter(["a b x d"], ["a b c d"]).value == pytest.approx(25)


def test_chrf_of_equal_text() -> None:
    assert chrf(["hello"], ["hello"]).value == pytest.approx(100)
    assert chrf(["abc"], ["xyz"]).value == 0


def test_sentence_bleu_uses_the_orders_there_are() -> None:
    assert sentence_bleu("a b", "a b", "none") == pytest.approx(100)


@pytest.mark.parametrize("metric", [bleu, chrf, ter])
def test_every_score_has_its_signature(metric: Callable[..., Score]) -> None:
    assert "version:" in metric(["a b c d"], ["a b c d"]).signature


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
    found = caption_bleu(captions, references, 1)
    assert found.value == pytest.approx(100 * short * 3 / 4)
    assert "smooth:none" in found.signature and "tok:none" in found.signature
    pairs = caption_bleu(captions, references, 2).value
    assert pairs == pytest.approx(100 * short * (3 / 4 * 1 / 2) ** 0.5)
    assert caption_bleu(captions, references).value == 0


def test_scores_of_captions() -> None:
    """Both captions equal a reference; CIDEr of four orders as in tests of its own."""
    references = [["a b c d", "a b"], ["e f g h", "e f g h"]]
    captions = ["a b c d", "e f g h"]
    found = caption_scores(captions, references)
    assert [found[f"bleu_{n}"] for n in range(1, 5)] == pytest.approx([100.0] * 4)
    words = [[line.split() for line in held] for held in references]
    cider = Cider(words).corpus([line.split() for line in captions], words)
    assert found["cider"] == pytest.approx(100 * cider)
    # The second picture's captions are equal to both references: 10 of 10.
    assert Cider(words).score(words[1][0], words[1]) == pytest.approx(10)
    assert found["signature_cider"] == "cider-d|n:4|sigma:6|stem:no|pictures:2|times:100"
    with pytest.raises(InputError, match="2 hypotheses for 1"):
        caption_scores(captions, references[:1])
