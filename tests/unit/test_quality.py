"""Scores against values computed by hand."""

from __future__ import annotations

import math

import pytest

from nmtgrid.base.errors import InputError
from nmtgrid.metrics.quality import bleu, chrf, score, sentence_bleu, ter


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


def test_score_has_all_keys() -> None:
    found = score(["a b c d"], ["a b c d"])
    for name in ("bleu", "chrf", "ter"):
        assert isinstance(found[name], float)
        assert "version:" in found[f"signature_{name}"]


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(InputError, match="2 hypotheses for 1 references"):
        bleu(["a", "b"], ["a"])
    with pytest.raises(InputError, match="no sentence"):
        bleu([], [])
