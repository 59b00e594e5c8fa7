"""Comparisons against compare-mt's own functions and sacreBLEU's own command."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from compare_mt.bucketers import FreqWordBucketer
from compare_mt.ngram_utils import compare_ngrams as theirs_of_ngrams
from compare_mt.stat_utils import extract_salient_features

from nmtgrid.analysis.quality import compare as compare_scores
from nmtgrid.analysis.quality import words as compare_analysis
from nmtgrid.analysis.quality import words as compare_ngrams
from nmtgrid.analysis.quality.compare import ComparisonOptions, comparison_section
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.systems import SystemOutput
from nmtgrid.base.errors import ConfigError
from nmtgrid.metrics import quality
from nmtgrid.metrics.quality import MetricName

WORDS = ("the", "The", "red", "blue", "house", "dog", "runs", "sees", "under", "and", ",", ".")


def corpus(lines: int = 120) -> tuple[list[list[str]], list[str]]:
    """Return three systems, each worse than the one before, and a reference."""
    draw = random.Random(5)
    weights = [2.0**-place for place in range(len(WORDS))]
    reference = [
        " ".join(draw.choices(WORDS, weights, k=draw.randint(0, 14))) for _ in range(lines)
    ]

    def worse(line: str, share: float) -> str:
        held = [w if draw.random() > share else draw.choice(WORDS) for w in line.split()]
        return " ".join(held[: draw.randint(max(0, len(held) - 2), len(held))])

    return [[worse(line, share) for line in reference] for share in (0.2, 0.22, 0.4)], reference


def evaluation(tokenize: str = "none", lowercase: bool = False) -> Evaluation:
    systems, reference = corpus()
    held = [SystemOutput(f"s{place}", Path("-"), lines) for place, lines in enumerate(systems)]
    return Evaluation.of(held, reference, None, tokenize, lowercase)


@pytest.mark.parametrize("lowercase", [False, True])
def test_word_accuracy_is_compare_mts(lowercase: bool) -> None:
    systems, reference = corpus()
    texts = [[line.split() for line in lines] for lines in (reference, *systems)]
    train = [["the"] * 12, ["house", "sees", "sees"], ["."] * 1200]
    for data in (None, train):
        bucketer = FreqWordBucketer(freq_data=data or texts[0], case_insensitive=lowercase)
        wanted = bucketer.calc_statistics(texts[0], texts[1:])[0]
        held = evaluation(lowercase=lowercase)
        counts = None
        if data is not None:
            counts = compare_analysis.frequencies_in(map(" ".join, data), held)
        found = compare_analysis.word_accuracy(held, counts)
        first = 1 if data is None else 0
        assert found.labels[0] == str(first)
        assert found.reference_words == [one[1] for one in wanted[0]][first:]
        for ours, theirs in zip(found.systems, wanted, strict=True):
            for place, (_, in_reference, _, recall, precision, f_measure) in enumerate(
                theirs[first:]
            ):
                if in_reference:
                    assert ours.recall[place] == recall
                    assert ours.precision[place] in (precision, None)
                    assert ours.f_measure[place] == f_measure
                else:
                    assert ours.recall[place] is None and ours.f_measure[place] is None


def test_words_that_no_training_text_has() -> None:
    """All of them are of the first bucket, where that text shares no word with the references."""
    held = evaluation()
    found = compare_analysis.word_accuracy(held, compare_analysis.frequencies_in(["qqqq"], held))
    words = sum(len(line.split()) for line in corpus()[1])
    assert found.labels[0] == "0" and found.reference_words[0] == words
    assert sum(found.reference_words) == words


def test_matched_n_grams_are_compare_mts() -> None:
    systems, reference = corpus()
    held = evaluation()
    split = [[line.split() for line in lines] for lines in (reference, *systems)]
    wanted = [theirs_of_ngrams(split[0], out)[1] for out in split[1:]]
    for one in matched_by_words(held):
        grams, counts = one
        for gram, found in zip(grams, counts, strict=True):
            assert found == [matches.get(gram, 0) for matches in wanted]
    seen = {gram for grams, _ in matched_by_words(held) for gram in grams}
    assert all(set(matches) <= seen for matches in wanted)


def matched_by_words(
    held: Evaluation,
) -> list[tuple[list[tuple[str, ...]], list[list[int]]]]:
    return [
        (
            [
                tuple(held.vocabulary[word] for word in one.words(kind))
                for kind in range(len(one.starts))
            ],
            numpy.stack(one.counts, axis=1).tolist(),
        )
        for one in compare_ngrams.matched(held)
    ]


def test_differing_n_grams_have_compare_mts_salience() -> None:
    systems, reference = corpus()
    split = [[line.split() for line in lines] for lines in (reference, *systems)]
    matches = [theirs_of_ngrams(split[0], out)[1] for out in split[1:]]
    for other, found in enumerate(compare_ngrams.differing(evaluation(), 20), start=1):
        scores = extract_salient_features(matches[0], matches[other])
        best = sorted(scores.values(), reverse=True)[:20]
        assert [one.salience for one in found.better_first] == pytest.approx(best)
        worst = [score for score in sorted(scores.values())[:20] if score < 0.5]
        assert [one.salience for one in found.better_second] == pytest.approx(worst)
        for one in (*found.better_first, *found.better_second):
            gram = tuple(one.words.split())
            assert (one.first, one.second) == (matches[0][gram], matches[other][gram])
            assert one.salience == pytest.approx(scores[gram])


def test_n_grams_by_hand() -> None:
    systems = [
        SystemOutput("a", Path("-"), ["x y x y", "z"]),
        SystemOutput("b", Path("-"), ["x", "z z"]),
    ]
    held = Evaluation.of(systems, ["x y x", "z z"], None, "none")
    found = compare_ngrams.differing(held, 3)[0]
    told = [(one.words, one.first, one.second) for one in found.better_first]
    assert told == [("x y x", 1, 0), ("x y", 1, 0), ("y x", 1, 0)]
    told = [(one.words, one.first, one.second) for one in found.better_second]
    # 1 / 3 before 2 / 5.
    assert told == [("z z", 0, 1), ("z", 1, 2)]


def test_examples_are_the_greatest_differences_once() -> None:
    reference = ["a b c d", "a b c d", "e f g h", "a a a a", "k l m n"]
    first = ["a b c d", "a b c d", "e f x h", "q", "k l m n"]
    second = ["x", "x", "e f g h", "a q q q", "k l m n"]
    systems = [SystemOutput("a", Path("-"), first), SystemOutput("b", Path("-"), second)]
    held = Evaluation.of(systems, reference, None, "none")
    ahead, behind = compare_ngrams.examples(held, 1, 5)
    assert [one.line for one in ahead] == [1]
    assert (ahead[0].first, ahead[0].second) == pytest.approx((100.0, 0.0))
    # 100 against the mean of 3/4, 1/3, 1/4, 1/4; then that of 1/4, 1/6, 1/8, 1/8 against nothing.
    assert [one.line for one in behind] == [3, 4]
    assert behind[0].first == pytest.approx(quality.sentence_bleu(first[2], reference[2], "none"))


@pytest.mark.parametrize(
    ("kind", "option"), [("bootstrap", "--paired-bs"), ("randomisation", "--paired-ar")]
)
def test_paired_tests_are_those_of_sacrebleus_command(
    kind: quality.TestName, option: str, tmp_path: Path
) -> None:
    systems, reference = corpus()
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
    found = compare_scores.test_against_first(evaluation("13a"), kind, 200, metrics, seed=77)
    rows = [line.split("│")[2:5] for line in ran.stdout.splitlines() if line.startswith("│")]
    cells = [[re.findall(r"\d+\.\d+", cell) for cell in row] for row in rows[1:]]
    p_values = set()
    for name, place in zip(metrics, range(3), strict=True):
        first, second, third = found.systems[name]
        told_rows = (cells[0], cells[1], cells[3])
        for ours, row in zip((first, second, third), told_rows, strict=True):
            told = [ours.score, ours.mean, ours.interval]
            assert [f"{one:.9f}" for one in told if one is not None] == row[place]
            assert (ours.mean is not None) == (kind == "bootstrap")
        assert first.p_value is None
        assert [f"{second.p_value:.4f}"] == cells[2][place]
        assert [f"{third.p_value:.4f}"] == cells[4][place]
        assert found.signatures[name] in ran.stdout
        p_values |= {second.p_value, third.p_value}
    # The systems are such that chance decides some and not all.
    assert len(p_values) > 2


def test_corpus_scores_are_sacrebleus() -> None:
    systems, reference = corpus()
    found = compare_scores.corpus_scores(evaluation("13a"), ("bleu", "chrf", "ter"))
    for place, lines in enumerate(systems):
        for name, signature in found.signatures.items():
            whole = getattr(quality, name)(lines, reference)
            assert found.values[name][place] == pytest.approx(whole.value, abs=1e-9)
            assert signature == whole.signature


def test_a_test_too_large_is_refused() -> None:
    counts = numpy.zeros((100_000, 18), numpy.int64)
    with pytest.raises(ConfigError, match="Ask for 536 samples or fewer"):
        quality.paired_test("bootstrap", 1000, {"chrf": [counts, counts]})


def test_the_seed_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "5")
    compare_scores.test_against_first(evaluation(), "bootstrap", 5, ("bleu",))
    assert os.environ["SACREBLEU_SEED"] == "5"
    monkeypatch.delenv("SACREBLEU_SEED")
    compare_scores.test_against_first(evaluation(), "bootstrap", 5, ("bleu",))
    assert "SACREBLEU_SEED" not in os.environ


def test_section_tells_all_and_draws(tmp_path: Path) -> None:
    held = evaluation()
    found = comparison_section(
        held, ComparisonOptions(bootstrap=20, randomisation=20, ngrams=2, examples=1)
    )
    for picture in found.pictures:
        picture.draw(tmp_path / f"{picture.name}.png")
    titles = [table.title for table in found.tables]
    assert titles[:4] == [
        "Corpus scores (percent)",
        "Paired bootstrap against s0 (20 samples)",
        "Approximate randomisation against s0 (20 samples)",
        "Word accuracy by frequency (F-measure in percent)",
    ]
    assert "N-grams that s2 has right more often than s0" in titles
    assert "Sentences where s0 is most ahead of s1" in titles
    json.dumps(found.values)
    assert [one["against"] for one in found.values["tests"]] == ["s0", "s0"]


def test_one_system_is_compared_with_nothing() -> None:
    systems, reference = corpus()
    held = Evaluation.of([SystemOutput("a", Path("-"), systems[0])], reference, None, "none")
    found = comparison_section(held, ComparisonOptions(bootstrap=20))
    assert [table.title for table in found.tables] == [
        "Corpus scores (percent)",
        "Word accuracy by frequency (F-measure in percent)",
    ]


def test_empty_lines_alone() -> None:
    held = Evaluation.of([SystemOutput(n, Path("-"), ["", ""]) for n in "ab"], ["", ""], None)
    found = comparison_section(held, ComparisonOptions(ngrams=3, examples=3))
    assert found.values["scores"]["systems"][0]["bleu"] == 0.0
    assert found.values["ngrams"][0]["better_first"] == []
