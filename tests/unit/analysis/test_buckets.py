"""Buckets of sentences and comparisons of systems, against compare-mt and sacreBLEU."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from compare_mt.bucketers import FreqWordBucketer, LengthSentenceBucketer
from compare_mt.ngram_utils import compare_ngrams as theirs_of_ngrams
from compare_mt.scorers import BleuScorer
from compare_mt.stat_utils import extract_salient_features
from sacrebleu import significance
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmtgrid.analysis.plotting.figure import naming_corpus
from nmtgrid.analysis.quality import buckets, lengths
from nmtgrid.analysis.quality import compare as compare_scores
from nmtgrid.analysis.quality import words as compare_analysis
from nmtgrid.analysis.quality import words as compare_ngrams
from nmtgrid.analysis.quality.buckets import (
    into_buckets,
    labels,
    read_numbers,
    values,
)
from nmtgrid.analysis.quality.compare import ComparisonOptions, comparison_section
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.quality.names import MEASURES, Property
from nmtgrid.analysis.systems import SystemOutput
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.cli.app import main
from nmtgrid.metrics import bootstrap, quality
from nmtgrid.metrics.quality import MetricName
from tests.unit.analysis.drawn_figures import drawn_figures, text_faults

WORDS = ("the", "a", "red", "blue", "house", "dog", "runs", "sees", "under", "and", ",", ".")


def evaluation(
    systems: list[list[str]],
    reference: list[str],
    source: list[str] | None = None,
    tokenize: str = "none",
    lowercase: bool = False,
) -> Evaluation:
    named = [SystemOutput(f"s{index}", Path("-"), lines) for index, lines in enumerate(systems)]
    return Evaluation.of(named, reference, source, tokenize, lowercase)


def corpus(shortest: int) -> tuple[list[list[str]], list[str]]:
    """Return two systems and a reference of lines with at least so many words."""
    draw = random.Random(3)
    sizes = (draw.randint(shortest, 70) for _ in range(300))
    reference = [" ".join(draw.choice(WORDS) for _ in range(size)) for size in sizes]

    def worse(line: str, share: float) -> str:
        words = line.split()
        return " ".join(draw.choice(WORDS) if draw.random() < share else w for w in words)

    return [[worse(line, share) for line in reference] for share in (0.1, 0.3)], reference


def compare_mt_buckets(out: list[str], reference: list[str]) -> list[float]:
    bucketer, scorer = LengthSentenceBucketer(), BleuScorer()
    split_lines = [[line.split() for line in lines] for lines in (out, reference)]
    return [
        scorer.score_corpus(held_reference, held_out)[0]
        for held_out, held_reference, _ in bucketer.create_bucketed_corpus(*split_lines)
    ]


def test_bleu_of_buckets_is_compare_mts() -> None:
    systems, reference = corpus(shortest=4)
    result = buckets.score_buckets(evaluation(systems, reference))
    assert result.buckets.labels == ["< 10", "10–19", "20–29", "30–39", "40–49", "50–59", "≥ 60"]
    assert min(result.buckets.sizes) > 10
    for ours, lines in zip(result.scores["bleu"], systems, strict=True):
        assert ours == pytest.approx(compare_mt_buckets(lines, reference), abs=1e-9)


def test_compare_mt_counts_n_grams_that_short_lines_do_not_have() -> None:
    # It counts one n-gram, wrong, of each order that a line is too short for; sacreBLEU none.
    systems, reference = corpus(shortest=1)
    evaluated = evaluation(systems, reference)
    result = buckets.score_buckets(evaluated)
    theirs = compare_mt_buckets(systems[0], reference)
    ours = result.scores["bleu"][0]
    assert ours[1:] == pytest.approx(theirs[1:], abs=1e-9)
    assert ours[0] is not None and ours[0] > theirs[0] + 0.01
    counts = evaluated.bleu[0][result.buckets.sentences[0]].copy()
    counts[:, 6:] = numpy.maximum(counts[:, 6:], 1)
    like = evaluated.scorer("bleu").score(counts.sum(axis=0).tolist())
    assert like == pytest.approx(theirs[0], abs=1e-9)


def test_scores_of_buckets_are_sacrebleus() -> None:
    systems, reference = corpus(shortest=0)
    actual = buckets.score_buckets(evaluation(systems, reference))
    for system, lines in enumerate(systems):
        for bucket, places in enumerate(actual.buckets.sentences):
            out, references = [[text[n] for n in places] for text in (lines, reference)]
            pairs = zip(out, references, strict=True)
            sentences = [quality.sentence_bleu(*pair, "none") for pair in pairs]
            expected = {
                "bleu": quality.bleu(out, references, "none").value,
                "chrf": quality.chrf(out, references).value,
                "sentence-bleu": sum(sentences) / len(sentences),
            }
            for name in MEASURES:
                ours = actual.scores[name][system][bucket]
                assert ours == pytest.approx(expected[name], abs=1e-9)


def test_edges_and_what_is_not_known() -> None:
    parts = into_buckets(numpy.array([1, 9, 10, 19, 20, 21]), [10, 20, 21], "source-length")
    assert [part.tolist() for part in parts.sentences] == [[0, 1], [2, 3], [4], [5]]
    assert parts.labels == ["< 10", "10–19", "20", "≥ 21"]
    assert parts.bounds == [(None, 10), (10, 20), (20, 21), (21, None)]
    filled = into_buckets(numpy.array([15, 15]), [10, 20], "source-length").filled()
    assert filled.bounds == [(10, 20)]
    filled = into_buckets(numpy.array([25, 5]), [10, 20], "source-length").filled()
    assert filled.labels == ["< 10", "≥ 20"] and filled.sizes == [1, 1]
    parts = into_buckets(numpy.array([0.5, float("nan"), 7.0]), [1.0], "difficulty")
    assert [part.tolist() for part in parts.sentences] == [[0], [2]]
    assert parts.without == 1
    assert labels([0.5, 1.0, 1.25], False) == ["< 0.50", "0.50–1.00", "1.00–1.25", "≥ 1.25"]
    assert labels([1000.0, 2500.0], True) == ["< 1,000", "1,000–2,499", "≥ 2,500"]


def test_values_that_print_as_an_edge_are_in_the_bucket_that_it_begins(tmp_path: Path) -> None:
    """What is a whole number but for the last bit of a sum, or in the four digits of a file."""
    tenths = sum([0.1] * 10)
    numbers = numpy.array([tenths, numpy.nextafter(2, 0), 0.99996, 0.99994, 2.00004, numpy.nan])
    assert tenths < 1 and f"{0.99996:.4f}" == "1.0000" and f"{0.99994:.4f}" == "0.9999"
    path = tmp_path / "difficulty"
    buckets.write_numbers(path, numbers)
    written = numpy.array(read_numbers(path, path, len(numbers)))
    for values_read in (numbers, written):
        parts = into_buckets(values_read, [1.0, 2.0], "difficulty")
        assert [part.tolist() for part in parts.sentences] == [[3], [0, 2], [1, 4]]
        assert parts.without == 1


def test_difficulty_and_buckets_by_its_numbers_agree_at_edges(tmp_path: Path) -> None:
    """Links whose average lagging is 1 but for the last bit, in both commands."""
    # Target word t waits for source word t: the lagging is 1 whatever the length.
    sizes = range(3, 40)
    lines = [" ".join(f"w{n}" for n in range(size)) for size in sizes]
    links = [" ".join(f"{n}-{n}" for n in range(size)) for size in sizes]
    for name, texts in (("s", lines), ("r", [x.upper() for x in lines]), ("links", links)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "x").write_bytes((tmp_path / "r").read_bytes())
    common = [str(tmp_path / "x"), "-r", str(tmp_path / "r"), "--bootstrap", "0", "--json"]
    numbers, reports = str(tmp_path / "d"), [tmp_path / name for name in ("1.json", "2.json")]
    command = ["-s", str(tmp_path / "s"), "--alignments", str(tmp_path / "links")]
    assert main(["analyze", "difficulty", *common, str(reports[0]), *command,
                 "--difficulty-out", numbers]) == 0  # fmt: skip
    assert main(["analyze", "buckets", *common, str(reports[1]), "--difficulty", numbers]) == 0
    first, second = (json.loads(path.read_text())["buckets"] for path in reports)
    assert first == second
    assert first[0]["buckets"] == [{"bucket": "1–2", "least": 1.0, "below": 2.0}]
    assert first[0]["sentences"] == [len(lines)]


def test_length_ratios_by_hand() -> None:
    evaluated = evaluation([["x"] * 4], ["a b c", "a b", "", "a"], ["q r s t u", "q r", "", ""])
    result = values(evaluated, "length-ratio").tolist()
    assert result[:2] == [0.6, 1.0] and result[3] == float("inf")
    measured = buckets.score_buckets(evaluated, "length-ratio", [0.6, 1.0])
    # 0.6 is not below 0.6, so that its bucket is the first with a sentence; two empty lines have
    # no ratio.
    assert measured.buckets.labels == ["0.6–1.0", "≥ 1.0"]
    assert measured.buckets.sizes == [1, 2] and measured.buckets.without == 1
    assert measured.scores["bleu"][0] == [0.0, 0.0]
    evaluated = evaluation([["x"]], ["a"])
    with pytest.raises(ConfigError, match="source"):
        values(evaluated, "length-ratio")
    with pytest.raises(ConfigError, match="difficulty"):
        values(evaluated, "difficulty")


def test_numbers_a_line(tmp_path: Path) -> None:
    path, reference = tmp_path / "difficulty", tmp_path / "reference"
    path.write_text("1.5\nnan\n-2\n")
    numbers = read_numbers(path, reference, 3)
    assert numbers[0] == 1.5 and numbers[1] != numbers[1] and numbers[2] == -2.0
    with pytest.raises(InputError, match=r"3 lines, but .*reference has 4"):
        read_numbers(path, reference, 4)
    path.write_text("1\nhard\n")
    with pytest.raises(InputError, match=r"difficulty:2: `hard` is not a number"):
        read_numbers(path, reference, 2)


def test_sections_draw_and_tell(tmp_path: Path) -> None:
    systems, reference = corpus(shortest=0)
    evaluated = evaluation(systems, reference, reference)
    number = list(map(float, range(len(reference))))
    by: list[Property] = ["reference-length", "length-ratio", "difficulty", "sentence-bleu"]
    section = buckets.buckets_section(evaluated, by, edges=[20.0, 40.0], difficulty=number)
    empty = reference.count("")
    assert empty > 1
    assert [table.title for table in section.tables] == [
        "BLEU by reference length (percent; in brackets: 95 %)",
        f"BLEU by length ratio (percent; without {empty} sentences for which it is not known; in "
        "brackets: 95 %)",
        "Sentence BLEU by difficulty (percent; in brackets: 95 %)",
        "Sentences by sentence BLEU (percent of the 300 sentences; in brackets: 95 %)",
    ]
    # Lengths and difficulty are counted in words of the files, whatever units a model has.
    assert "(source words)" in section.tables[2].columns[0]
    for picture in section.pictures:
        picture.draw(tmp_path / f"{picture.name}.svg")
    report = section.values["buckets"][0]
    sizes = numpy.searchsorted([20, 40], evaluated.reference.lengths, side="right")
    assert report["sentences"] == numpy.bincount(sizes).tolist()
    scores = {"bleu", "sentence_bleu", "chrf"}
    intervals = {f"{score}_interval_95" for score in scores}
    assert set(report["systems"][0]) == {"system"} | scores | intervals
    shares = section.values["buckets"][3]["systems"]
    assert [sum(share["sentences"]) for share in shares] == [300, 300]
    for share in shares:
        for size, (low, high) in zip(share["sentences"], share["percent_interval_95"], strict=True):
            assert low <= size / 3 <= high
    assert buckets.labels([0.00001, 0.5], is_whole=False)[0] == "< 0.00001"


def test_intervals_of_buckets_are_those_of_a_plain_loop() -> None:
    systems, reference = cased_corpus()
    systems, reference = [lines[:40] for lines in systems[1:]], reference[:40]
    result = buckets.score_buckets(evaluation(systems, reference), edges=[6], samples=15)
    assert len(result.buckets.sizes) == 2
    for bucket, lines in enumerate(result.buckets.sentences):
        draw = numpy.random.default_rng(quality.SEED)
        draws = lines[draw.integers(0, len(lines), (15, len(lines)))].tolist()
        for index, system in enumerate(systems):
            texts = [([system[n] for n in drawn], [reference[n] for n in drawn]) for drawn in draws]
            expected = {
                "bleu": [quality.bleu(*pair, "none").value for pair in texts],
                "chrf": [quality.chrf(*pair).value for pair in texts],
                "sentence-bleu": [
                    sum(quality.sentence_bleu(*line, "none") for line in zip(*pair, strict=True))
                    / len(lines)
                    for pair in texts
                ],
            }
            for name in MEASURES:
                ends = numpy.percentile(expected[name], [2.5, 97.5])
                assert result.intervals[name][index][bucket] == pytest.approx(ends, abs=1e-9)


def test_intervals_by_hand_and_few_sentences() -> None:
    # One sentence right, one wrong, one alone in its bucket: of two draws, both are often alike.
    texts = ["a b c d", "a b c d", "a b c d e"]
    evaluated = evaluation([["a b c d", "x x x x", "a b c d e"]], texts)
    result = buckets.score_buckets(evaluated, edges=[5])
    assert result.intervals["sentence-bleu"] == [[pytest.approx((0, 100)), None]]
    assert [group.is_few for group in result.buckets.groups] == [True, True]
    assert result.buckets.note == "pale: fewer than 30 sentences"
    plain = buckets.score_buckets(evaluated, edges=[5], samples=0)
    assert plain.intervals["bleu"] == [[None, None]]
    section = buckets.buckets_section(evaluated, ["reference-length"], edges=[5], samples=0)
    assert section.tables[0].title == "BLEU by reference length (percent)"
    assert section.tables[0].rows[1][2] == pytest.approx(100.0)
    many = buckets.score_buckets(evaluation([texts * 15], texts * 15), edges=[5])
    assert [group.is_few for group in many.buckets.groups] == [False, True]


def test_few_sentences_are_drawn_pale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn_figures(monkeypatch)
    texts = ["a b c d"] * 30 + ["a b c d e f"] * 29
    evaluated = dataclasses.replace(evaluation([texts], texts), corpus="Corpus, test")
    section = buckets.buckets_section(evaluated, ["reference-length"], edges=[5, 6, 7])
    with naming_corpus(section.corpus):
        section.pictures[0].draw(tmp_path / "x.png")
    (axes,) = figures[0].axes
    bars = list(axes.containers[0])
    assert [bar.get_alpha() is None for bar in bars] == [True, False]
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["< 5\n30", "6\n29"]
    assert "pale: fewer than 30 sentences" in axes.get_xlabel()
    assert "lines: 95 %" in axes.get_xlabel()
    title = figures[0].legends[0].get_title().get_text()
    assert " ".join(title.split()) == "BLEU by reference length (Corpus, test)"
    assert not text_faults(figures[0])


LOWER = "`s0` is in lower case and the references are not"
LOWER_REFERENCES = "The references are in lower case and `s0` is not"


@pytest.mark.parametrize(
    ("hypotheses", "references", "fault"),
    [
        (["a cat ."], ["A cat ."], LOWER),
        (["A cat ."], ["a cat ."], LOWER_REFERENCES),
        (["A cat ."], ["A dog ."], ""),
        (["a cat ."], ["a dog ."], ""),
        (["猫"], ["犬"], ""),
        (["猫"], ["A cat ."], ""),
        (["A cat ."], ["42"], ""),
        # A line without letters, such as an empty one, has no case.
        ([""] * 20 + ["A cat ."], ["a cat ."] * 21, LOWER_REFERENCES),
        # One stray capital in two hundred lines; a quarter of the lines.
        (["a cat ."] * 199 + ["A cat ."], ["A cat ."] * 200, LOWER),
        (["a cat ."] * 3 + ["A cat ."], ["A cat ."] * 4, ""),
    ],
)
def test_sides_of_unlike_case(hypotheses: list[str], references: list[str], fault: str) -> None:
    faults = evaluation([hypotheses], references, None, "13a").case_mismatches()
    assert [text.split(" (")[0] for text in faults] == ([fault] if fault else [])
    assert not evaluation([hypotheses], references, None, "13a", True).case_mismatches()


TOKENISED = "`s0` is tokenised and the references are not"
TOKENISED_REFERENCES = "The references are tokenised and `s0` is not"


@pytest.mark.parametrize(
    ("hypotheses", "references", "fault"),
    [
        (["A cat , a dog ."], ["A cat, a dog."], TOKENISED),
        (["A cat."], ["A cat ."], TOKENISED_REFERENCES),
        (["A cat."], ["A dog."], ""),
        (["A cat ."], ["A dog ."], ""),
        (["A cat of 3.5 kg"], ["A cat ."], ""),
        (["猫。"], ["犬 ."], ""),
        # Lines without a mark say nothing; some lines of a tokenised text may lack the space.
        (["A cat"] * 20 + ["A cat ."], ["A cat."] * 21, TOKENISED),
        (["A cat ."] * 1 + ["A cat."] * 2, ["A cat."] * 3, ""),
    ],
)
def test_sides_of_unlike_tokens(hypotheses: list[str], references: list[str], fault: str) -> None:
    faults = evaluation([hypotheses], references, None, "13a").token_mismatches()
    assert [text.split(" (")[0] for text in faults] == ([fault] if fault else [])


def test_lengths_by_hand(tmp_path: Path) -> None:
    evaluated = evaluation([["a b c", "", "x y"], ["a", "b", "c"]], ["a b", "a", "x y"])
    section = lengths.lengths_section(evaluated)
    first, second = section.values["lengths"]
    assert first["sentences_by_difference"] == {"-1": 1, "0": 1, "1": 1}
    assert (first["mean_difference"], first["length_ratio"]) == (0.0, 1.0)
    assert first["deviation"] == pytest.approx((2 / 3) ** 0.5)
    assert [first[f"share_{kind}"] for kind in ("shorter", "equal", "longer")] == pytest.approx(
        [1 / 3] * 3
    )
    assert second["sentences_by_difference"] == {"-1": 2, "0": 1}
    assert second["length_ratio"] == pytest.approx(3 / 5)
    differences = numpy.array([1, -1, 0])
    assert lengths.shares(differences, 2) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert lengths.reach([differences, numpy.array([-1, 0, -1])]) == 5
    section.pictures[0].draw(tmp_path / "lengths.png")
    differences = numpy.array([99, -6])
    assert lengths.reach([differences]) == 20
    assert lengths.shares(differences, 5) == pytest.approx([0.5, *[0] * 9, 0.5])
    (empty,) = lengths.lengths_section(evaluation([["a"]], [""])).values["lengths"]
    assert empty["length_ratio"] is None


CASED = ("the", "The", "red", "blue", "house", "dog", "runs", "sees", "under", "and", ",", ".")


def cased_corpus() -> tuple[list[list[str]], list[str]]:
    """Return three systems, each worse than the one before, and a reference."""
    draw = random.Random(5)
    weights = [2.0**-index for index in range(len(CASED))]
    reference = [" ".join(draw.choices(CASED, weights, k=draw.randint(0, 14))) for _ in range(120)]

    def worse(line: str, share: float) -> str:
        words = [w if draw.random() > share else draw.choice(CASED) for w in line.split()]
        return " ".join(words[: draw.randint(max(0, len(words) - 2), len(words))])

    return [[worse(line, share) for line in reference] for share in (0.2, 0.22, 0.4)], reference


def compared(tokenize: str = "none", lowercase: bool = False) -> Evaluation:
    return evaluation(*cased_corpus(), None, tokenize, lowercase)


@pytest.mark.parametrize("lowercase", [False, True])
def test_word_accuracy_is_compare_mts(lowercase: bool) -> None:
    systems, reference = cased_corpus()
    texts = [[line.split() for line in lines] for lines in (reference, *systems)]
    train = [["the"] * 12, ["house", "sees", "sees"], ["."] * 1200]
    for data in (None, train):
        bucketer = FreqWordBucketer(freq_data=data or texts[0], case_insensitive=lowercase)
        expected = bucketer.calc_statistics(texts[0], texts[1:])[0]
        evaluated = compared(lowercase=lowercase)
        counts = None
        if data is not None:
            counts = compare_analysis.frequencies_in(map(" ".join, data), evaluated)
        actual = compare_analysis.word_accuracy(evaluated, counts)
        first = 1 if data is None else 0
        assert actual["buckets"][0] == str(first)
        assert actual["reference_words"] == [row[1] for row in expected[0]][first:]
        for ours, theirs in zip(actual["systems"], expected, strict=True):
            for bucket, (_, count, _, recall, precision, f) in enumerate(theirs[first:]):
                right = (recall, f) if count else (None, None)
                assert (ours["recall"][bucket], ours["f_measure"][bucket]) == right
                assert not count or ours["precision"][bucket] in (precision, None)


def test_words_that_no_training_text_has() -> None:
    evaluated = compared()
    result = compare_analysis.word_accuracy(
        evaluated, compare_analysis.frequencies_in(["qqqq"], evaluated)
    )
    words = sum(len(line.split()) for line in cased_corpus()[1])
    assert result["buckets"][0] == "0" and result["reference_words"][0] == words
    assert sum(result["reference_words"]) == words


def test_matched_n_grams_are_compare_mts() -> None:
    systems, reference = cased_corpus()
    evaluated = compared()
    split = [[line.split() for line in lines] for lines in (reference, *systems)]
    expected = [theirs_of_ngrams(split[0], out)[1] for out in split[1:]]
    seen = set()
    for order in compare_ngrams.matched(evaluated):
        for kind, counted in enumerate(numpy.stack(order.counts, axis=1).tolist()):
            gram = tuple(evaluated.vocabulary[word] for word in order.words(kind))
            assert counted == [matches.get(gram, 0) for matches in expected]
            seen.add(gram)
    assert all(set(matches) <= seen for matches in expected)


def test_differing_n_grams_have_compare_mts_salience() -> None:
    systems, reference = cased_corpus()
    split = [[line.split() for line in lines] for lines in (reference, *systems)]
    matches = [theirs_of_ngrams(split[0], out)[1] for out in split[1:]]
    for other, difference in enumerate(compare_ngrams.differing(compared(), 20), start=1):
        scores = extract_salient_features(matches[0], matches[other])
        best = sorted(scores.values(), reverse=True)[:20]
        assert [ngram["salience"] for ngram in difference["better_first"]] == pytest.approx(best)
        worst = [score for score in sorted(scores.values())[:20] if score < 0.5]
        assert [ngram["salience"] for ngram in difference["better_second"]] == pytest.approx(worst)
        for ngram in (*difference["better_first"], *difference["better_second"]):
            gram = tuple(ngram["words"].split())
            assert (ngram["first"], ngram["second"]) == (matches[0][gram], matches[other][gram])
            assert ngram["salience"] == pytest.approx(scores[gram])


def test_n_grams_by_hand() -> None:
    evaluated = evaluation([["x y x y", "z"], ["x", "z z"]], ["x y x", "z z"])
    difference = compare_ngrams.differing(evaluated, 3)[0]
    # 1 / 3 before 2 / 5.
    for grams, expected in (
        (difference["better_first"], [("x y x", 1, 0), ("x y", 1, 0), ("y x", 1, 0)]),
        (difference["better_second"], [("z z", 0, 1), ("z", 1, 2)]),
    ):
        assert [(gram["words"], gram["first"], gram["second"]) for gram in grams] == expected


def test_examples_are_the_greatest_differences_once() -> None:
    reference = ["a b c d", "a b c d", "e f g h", "a a a a", "k l m n"]
    first = ["a b c d", "a b c d", "e f x h", "q", "k l m n"]
    evaluated = evaluation([first, ["x", "x", "e f g h", "a q q q", "k l m n"]], reference)
    pair = compare_ngrams.examples(evaluated, 1, 5)
    (ahead,), behind = pair["better_first"], pair["better_second"]
    assert (ahead["line"], ahead["reference"], ahead["second"]) == (1, "a b c d", "x")
    scores = ahead["sentence_bleu_first"], ahead["sentence_bleu_second"]
    assert scores == pytest.approx((100.0, 0.0))
    # 100 against the mean of 3/4, 1/3, 1/4, 1/4; then that of 1/4, 1/6, 1/8, 1/8 against nothing.
    assert [example["line"] for example in behind] == [3, 4]
    score = quality.sentence_bleu(first[2], reference[2], "none")
    assert behind[0]["sentence_bleu_first"] == pytest.approx(score)


@pytest.mark.parametrize(
    ("kind", "option"), [("bootstrap", "--paired-bs"), ("randomisation", "--paired-ar")]
)
def test_paired_tests_are_sacrebleus(kind: quality.TestName, option: str, tmp_path: Path) -> None:
    systems, reference = cased_corpus()
    paths = [tmp_path / name for name in ("reference", "s0", "s1", "s2")]
    for path, lines in zip(paths, (reference, *systems), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    # As text: its JSON fails on means of the bootstrap.
    ran = subprocess.run(
        [
            sys.executable, "-m", "sacrebleu", paths[0], "-i", *paths[1:], option,
            f"{option}-n", "200", "-m", "bleu", "chrf", "ter", "-f", "text", "-w", "9",
            "--force", "--ter-case-sensitive",
        ],
        env={**os.environ, "SACREBLEU_SEED": "77"},
        capture_output=True,
        check=True,
        text=True,
    )  # fmt: skip
    metrics: tuple[MetricName, ...] = ("bleu", "chrf", "ter")
    result = compare_scores.test_against_first(compared("13a"), kind, 200, metrics, seed=77)
    rows = [line.split("│")[2:5] for line in ran.stdout.splitlines() if line.startswith("│")]
    cells = [[re.findall(r"\d+\.\d+", cell) for cell in row] for row in rows[1:]]
    p_values = set()
    for tested, name, column in zip(result["metrics"], metrics, range(3), strict=True):
        assert tested["metric"] == name
        first, second, third = tested["systems"]
        told_rows = (cells[0], cells[1], cells[3])
        for ours, row in zip((first, second, third), told_rows, strict=True):
            shown = [ours["score"], ours["bootstrap_mean"], ours["interval_95"]]
            numbers = [number for number in shown if number is not None]
            assert f"{numbers[0]:.9f}" == row[column][0]
            # SacreBLEU scores samples in single precision; the next test has it score in double.
            assert numbers == pytest.approx([*map(float, row[column])], abs=1e-5)
            assert (ours["bootstrap_mean"] is not None) == (kind == "bootstrap")
        assert first["p_value"] is None
        for ours, (shown,) in ((second, cells[2][column]), (third, cells[4][column])):
            # Samples with the very difference count here; with these lines there are some.
            is_equal = f"{ours['p_value']:.4f}" == shown
            assert is_equal or (kind == "randomisation" and ours["p_value"] > float(shown))
        assert tested["signature"] in ran.stdout
        p_values |= {second["p_value"], third["p_value"]}
    # The systems are such that chance decides some and not all.
    assert len(p_values) > 2


@pytest.mark.parametrize(("kind", "short"), [("bootstrap", "bs"), ("randomisation", "ar")])
def test_paired_tests_are_sacrebleus_in_double_precision(
    kind: quality.TestName, short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own draws, where samples whose difference is as great as the real one count too."""
    strictly = significance._compute_p_value
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    monkeypatch.setattr(
        significance, "_compute_p_value", lambda sizes, real: strictly(sizes, real - 1e-9)
    )
    metrics: dict[str, Any] = {
        "bleu": BLEU(force=True), "chrf": CHRF(), "ter": TER(case_sensitive=True),
    }  # fmt: skip
    for metric in metrics.values():
        compute = metric._compute_score_from_stats
        metric._compute_score_from_stats = lambda sums, compute=compute: compute(
            [float(number) for number in sums]
        )
    systems, reference = cased_corpus()
    texts: list[tuple[str, Sequence[str]]] = [(str(n), lines) for n, lines in enumerate(systems)]
    signatures, tested = significance.PairedTest(texts, metrics, [reference], short, 400)()
    titles = [name for name in tested if name != "System"]
    result = compare_scores.test_against_first(compared("13a"), kind, 400, [*metrics], seed=77)
    for row, title in zip(result["metrics"], titles, strict=True):
        assert row["signature"] == str(signatures[title])
        for ours, theirs in zip(row["systems"], tested[title], strict=True):
            assert not isinstance(theirs, str)
            assert ours["p_value"] == theirs.p_value
            for name in ("score", "mean", "ci"):
                key = {"mean": "bootstrap_mean", "ci": "interval_95"}.get(name, name)
                assert ours[key] == pytest.approx(getattr(theirs, name), abs=1e-9)


@pytest.mark.parametrize("kind", ["bootstrap", "randomisation"])
def test_samples_are_drawn_in_blocks(
    kind: quality.TestName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is not in the way of many samples of many sentences."""
    whole = compare_scores.test_against_first(compared(), kind, 200)
    for most in (1, 5000):
        monkeypatch.setattr(bootstrap, "_MOST_WEIGHTS", most)
        assert compare_scores.test_against_first(compared(), kind, 200) == whole
    assert max(map(len, bootstrap.swaps(300, 200, 1))) == 32
    assert max(map(len, bootstrap.weights(300, 200, 1))) == 5000 // 300


@pytest.mark.parametrize("changed", [1, 3])
def test_randomisation_of_systems_that_hardly_differ(changed: int) -> None:
    """Against all swaps of the sentences that differ, by sacreBLEU's own scores."""
    systems, reference = corpus(shortest=4)
    first = systems[0]
    second = [*systems[1][:changed], *first[changed:]]
    assert all(a != b for a, b in zip(first[:changed], second, strict=False))

    def bleu(lines: list[str]) -> float:
        return quality.bleu(lines, reference, "none").value

    real = abs(bleu(first) - bleu(second))
    greater = 0
    for swaps in itertools.product((False, True), repeat=changed):
        pairs = [
            (b, a) if swap else (a, b) for swap, a, b in zip(swaps, first, second, strict=False)
        ]
        swapped = [[pair[side] for pair in pairs] + first[changed:] for side in (0, 1)]
        greater += abs(bleu(swapped[0]) - bleu(swapped[1])) > real - 1e-9
    expected = greater / 2**changed
    result = compare_scores.test_against_first(
        evaluation([first, second], reference), "randomisation", 2000, ("bleu",)
    )
    tested = result["metrics"][0]["systems"][1]
    assert tested["p_value"] == pytest.approx(expected, abs=0.04)
    assert expected >= 0.25


def test_one_sentence_is_not_tested() -> None:
    evaluated = evaluation([["a red house"], ["the blue dog"]], ["a red house"])
    options = ComparisonOptions(bootstrap=50, randomisation=50, ter=True)
    section = comparison_section(evaluated, options)
    assert section.values["tests"] == [] and "is better" not in section.finding
    assert "would need two sentences or more" in section.finding
    alone = comparison_section(evaluation([["a red house"]], ["a red house"]), options)
    assert "interval" not in alone.finding


def test_ter_of_samples_without_words_is_sacrebleus() -> None:
    evaluated = evaluation([["a", "b c"], ["", "b c"]], ["", "b d"])
    drawn = evaluated.resampled(["ter"], None, 200, 5)["ter"]
    expected = {
        quality.ter(["a", "a"], ["", ""]).value,
        quality.ter(["a", "b c"], ["", "b d"]).value,
        quality.ter(["b c", "b c"], ["b d", "b d"]).value,
    }
    assert {round(float(x), 6) for x in drawn[0]} == {round(x, 6) for x in expected}
    assert min(drawn[1]) == 0.0 and max(drawn[1]) == 50.0


def test_differences_are_of_sacrebleus_own_draws() -> None:
    evaluated = compared("13a")
    result = compare_scores.test_against_first(evaluated, "bootstrap", 200, seed=77)
    drawn = evaluated.resampled(["bleu", "chrf"], None, 200, 77)
    for metric in result["metrics"]:
        own = drawn[metric["metric"]]
        first, *others = metric["systems"]
        means = [tested["bootstrap_mean"] for tested in (first, *others)]
        # SacreBLEU adds them up in single precision.
        assert own.mean(1).tolist() == pytest.approx(means, abs=1e-4)
        assert first["difference"] is None and first["difference_interval_95"] is None
        for index, tested in enumerate(others, start=1):
            assert tested["difference"] == tested["score"] - first["score"]
            ends = numpy.percentile(own[index] - own[0], [2.5, 97.5])
            assert tested["difference_interval_95"] == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize("kind", ["bootstrap", "randomisation"])
def test_identical_systems_have_no_p_value(kind: quality.TestName) -> None:
    systems, reference = cased_corpus()
    # The third is the first but for case, which chrF counts in one test and not in the other.
    copies = [systems[0], systems[0], [line.lower() for line in systems[0]], systems[2]]
    for lowercase in (False, True):
        evaluated = evaluation(copies, reference, None, "13a", lowercase)
        result = compare_scores.test_against_first(evaluated, kind, 20)
        for metric in result["metrics"]:
            tested = metric["systems"]
            assert [system["identical"] for system in tested] == [False, True, lowercase, False]
            assert [system["p_value"] is None for system in tested] == [
                True, True, lowercase, False,
            ]  # fmt: skip
        options = (
            ComparisonOptions(bootstrap=20)
            if kind == "bootstrap"
            else ComparisonOptions(randomisation=20)
        )
        section = comparison_section(evaluated, options)
        assert [row[-1] == "identical" for row in section.tables[1].rows] == [
            False, True, lowercase, False,
        ] * 2  # fmt: skip
        values = section.values["tests"][0]["metrics"][0]["systems"][1]
        assert values["identical"] and values["p_value"] is None
        assert "s1 and s0 are identical" in section.finding
        sees_none = "BLEU sees no difference between s2 and s0" in section.finding
        assert sees_none == lowercase


@pytest.mark.parametrize("kind", ["bootstrap", "randomisation"])
def test_equal_scores_are_no_difference(kind: quality.TestName) -> None:
    """Without any match, in every sample: sacreBLEU would say that it is significant."""
    _, reference = cased_corpus()
    lengths = [["q q q q"] * len(reference), ["z z z"] * len(reference)]
    evaluated = evaluation(lengths, reference)
    result = compare_scores.test_against_first(evaluated, kind, 20)
    assert result["metrics"][0]["systems"][1]["p_value"] == 1
    tested = ComparisonOptions(bootstrap=20) if kind == "bootstrap" else ComparisonOptions(
        randomisation=20
    )  # fmt: skip
    finding = comparison_section(evaluated, tested).finding
    assert "BLEU sees no difference between s1 and s0 (0.00)" in finding
    three = evaluation([*lengths, ["q q q"] * len(reference)], reference)
    finding = comparison_section(three, ComparisonOptions()).finding
    assert "s0, s1, s2 have the highest BLEU, 0.00." in finding
    assert "s1 and s0 have the same BLEU (0.00)." in finding


def test_corpus_scores_are_sacrebleus() -> None:
    systems, reference = cased_corpus()
    section = comparison_section(compared("13a"), ComparisonOptions(ter=True))
    scores = section.values["scores"]
    for own, lines in zip(scores["systems"], systems, strict=True):
        for name in ("bleu", "chrf", "ter"):
            whole = getattr(quality, name)(lines, reference)
            assert own[name] == pytest.approx(whole.value, abs=1e-9)
            assert scores[f"signature_{name}"] == whole.signature


def test_sacrebleus_seed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "5")
    first = compare_scores.test_against_first(compared(), "bootstrap", 5, ("bleu",))
    assert os.environ["SACREBLEU_SEED"] == "5"
    monkeypatch.delenv("SACREBLEU_SEED")
    second = compare_scores.test_against_first(compared(), "bootstrap", 5, ("bleu",))
    assert "SACREBLEU_SEED" not in os.environ and first == second


def test_section_tells_all_and_draws(tmp_path: Path) -> None:
    evaluated = compared()
    result = comparison_section(
        evaluated, ComparisonOptions(bootstrap=20, randomisation=20, ngrams=2, examples=1)
    )
    for picture in result.pictures:
        picture.draw(tmp_path / f"{picture.name}.png")
    titles = [table.title for table in result.tables]
    assert titles[:4] == [
        "Corpus scores (percent)",
        "Paired bootstrap against s0 (20 samples)",
        "Approximate randomisation against s0 (20 samples)",
        "Word accuracy by frequency (F-measure in percent)",
    ]
    assert "N-grams that s2 has right more often than s0" in titles
    assert "Sentences where s0 is most ahead of s1" in titles
    json.dumps(result.values)
    assert [test["against"] for test in result.values["tests"]] == ["s0", "s0"]


def test_few_systems_and_empty_lines() -> None:
    systems, reference = cased_corpus()
    evaluated = Evaluation.of([SystemOutput("a", Path("-"), systems[0])], reference, None, "none")
    result = comparison_section(evaluated, ComparisonOptions(bootstrap=20))
    assert [table.title for table in result.tables] == [
        "Corpus scores (percent)",
        "Word accuracy by frequency (F-measure in percent)",
    ]
    evaluated = Evaluation.of([SystemOutput(n, Path("-"), ["", ""]) for n in "ab"], ["", ""], None)
    result = comparison_section(evaluated, ComparisonOptions(ngrams=3, examples=3))
    assert result.values["scores"]["systems"][0]["bleu"] == 0.0
    assert result.values["ngrams"][0]["better_first"] == []
