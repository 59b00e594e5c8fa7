"""Counts of all sentences at once against sacreBLEU's, sentence by sentence."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmtgrid.metrics import ngrams, quality
from nmtgrid.metrics.ngrams import (
    bleu_counts,
    chrf_characters,
    chrf_counts,
    corpus_bleus,
    corpus_chrfs,
    sentence_bleus,
)

# Few letters, so that texts share n-grams; and white space, wide letters, marks, half characters.
LINES = st.text(st.sampled_from("aabbAB .,1\u00a0\u3000é漢字😀\u0301ßİ\x85\ud800"), max_size=30)
PAIRS = st.lists(st.tuples(LINES, LINES), min_size=1, max_size=6)


@pytest.mark.parametrize("tokenize", ["13a", "none", "intl", "char", "zh"])
@pytest.mark.parametrize("lowercase", [False, True])
@settings(max_examples=40, deadline=None)
@given(PAIRS)
def test_bleu_counts_are_sacrebleus(
    tokenize: str, lowercase: bool, pairs: list[tuple[str, str]]
) -> None:
    hypotheses, references = [first for first, _ in pairs], [second for _, second in pairs]
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, effective_order=True, force=True)
    expected = metric._extract_corpus_statistics(hypotheses, [references])
    split = quality.tokenizer(tokenize, lowercase)
    vocabulary: dict[str, int] = {}
    ours = ngrams.words(map(split, hypotheses), vocabulary)
    counts = bleu_counts(ours, ngrams.words(map(split, references), vocabulary))
    assert counts.tolist() == expected
    scores = [metric.sentence_score(first, [second]).score for first, second in pairs]
    assert sentence_bleus(counts).tolist() == pytest.approx(scores, abs=1e-9)
    summed = quality.Scorer("bleu", tokenize, lowercase).score(counts.sum(axis=0).tolist())
    assert summed == quality.bleu(hypotheses, references, tokenize, lowercase).value
    # Two corpora at once: all lines, and the first alone.
    sums = numpy.stack([counts.sum(axis=0), counts[0]]).astype(float)
    first = quality.bleu(hypotheses[:1], references[:1], tokenize, lowercase).value
    assert corpus_bleus(sums).tolist() == pytest.approx([summed, first], abs=1e-9)


@pytest.mark.parametrize("lowercase", [False, True])
@settings(max_examples=80, deadline=None)
@given(PAIRS)
def test_chrf_counts_are_sacrebleus(lowercase: bool, pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = [first for first, _ in pairs], [second for _, second in pairs]
    expected = CHRF(lowercase=lowercase)._extract_corpus_statistics(hypotheses, [references])
    texts = [chrf_characters(lines, lowercase) for lines in (hypotheses, references)]
    counts = chrf_counts(*texts)
    assert counts.tolist() == expected
    summed = quality.Scorer("chrf", lowercase=lowercase).score(counts.sum(axis=0).tolist())
    assert summed == quality.chrf(hypotheses, references, lowercase).value
    sums = numpy.stack([counts.sum(axis=0), counts[0]]).astype(float)
    first = quality.chrf(hypotheses[:1], references[:1], lowercase).value
    assert corpus_chrfs(sums).tolist() == pytest.approx([summed, first], abs=1e-9)


def test_many_kinds_of_symbols_and_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # 6-grams of 20,000 kinds of characters do not fit into 64 bits.
    draw = numpy.random.default_rng(1)
    pool = [chr(0x4E00 + index) for index in range(20_000)]
    lines = ["".join(draw.choice(pool, 60)) for _ in range(400)]
    others = [line[:30] + line[31:40] + line[:20] for line in lines]
    expected = CHRF()._extract_corpus_statistics(others, [lines])
    texts = [chrf_characters(others), chrf_characters(lines)]
    assert chrf_counts(*texts).tolist() == expected
    monkeypatch.setattr(ngrams, "_CHUNK", 100)
    assert chrf_counts(*texts).tolist() == expected


def test_signatures_say_what_sacrebleus_say() -> None:
    lines = ["a b c d"]
    intl = quality.bleu(lines, lines, "intl", True)
    assert quality.Scorer("bleu", "intl", True).signature == intl.signature
    assert quality.Scorer("chrf").signature == quality.chrf(lines, lines).signature
    assert quality.Scorer("ter").signature == quality.ter(lines, lines).signature


def test_ragged_lines_by_hand() -> None:
    lines = ngrams.words([["a", "b"], [], ["b"]], {"b": 0})
    assert list(lines) == [[1, 0], [], [0]]
    assert lines.starts.tolist() == [0, 2, 2, 3]
    assert list(lines.part(1, 3)) == [[], [0]]
    # "a a b" and "a a a b": 2 + 1 words, "a a" and "a b", and "a a b".
    first, second = (
        ngrams.words([text.split()], {"a": 0, "b": 1}) for text in ("a a b", "a a a b")
    )
    assert ngrams.matches(first, second, 4).tolist() == [[3, 2, 1, 0]]
