"""Buckets by hand, and their BLEU against compare-mt's and sacreBLEU's."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
from compare_mt.bucketers import LengthSentenceBucketer
from compare_mt.scorers import BleuScorer

from nmtgrid.analysis.quality import buckets, lengths
from nmtgrid.analysis.quality.buckets import (
    Property,
    check_edges,
    labels,
    read_numbers,
    split,
    values,
)
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.systems import SystemOutput
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.metrics import quality

WORDS = ("the", "a", "red", "blue", "house", "dog", "runs", "sees", "under", "and", ",", ".")


def evaluation(
    systems: list[list[str]], reference: list[str], source: list[str] | None = None
) -> Evaluation:
    held = [SystemOutput(f"s{place}", Path("-"), lines) for place, lines in enumerate(systems)]
    return Evaluation.of(held, reference, source, "none")


def corpus(shortest: int) -> tuple[list[list[str]], list[str]]:
    """Return two systems and a reference of lines with at least so many words."""
    draw = random.Random(3)
    reference = [
        " ".join(draw.choice(WORDS) for _ in range(draw.randint(shortest, 70))) for _ in range(300)
    ]

    def worse(line: str, share: float) -> str:
        return " ".join(
            draw.choice(WORDS) if draw.random() < share else word for word in line.split()
        )

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
    found = buckets.score_buckets(evaluation(systems, reference))
    assert found.buckets.labels == ["< 10", "10–19", "20–29", "30–39", "40–49", "50–59", "≥ 60"]
    assert min(found.buckets.sizes) > 10
    for ours, lines in zip(found.scores["bleu"], systems, strict=True):
        assert ours == pytest.approx(compare_mt_buckets(lines, reference), abs=1e-9)


def test_compare_mt_counts_n_grams_that_short_lines_do_not_have() -> None:
    # It counts one n-gram, wrong, of each order that a line is too short for; sacreBLEU none.
    systems, reference = corpus(shortest=1)
    held = evaluation(systems, reference)
    found = buckets.score_buckets(held)
    theirs = compare_mt_buckets(systems[0], reference)
    ours = found.scores["bleu"][0]
    assert ours[1:] == pytest.approx(theirs[1:], abs=1e-9)
    assert ours[0] is not None and ours[0] > theirs[0] + 0.01
    counts = held.bleu[0][found.buckets.sentences[0]].copy()
    counts[:, 6:] = numpy.maximum(counts[:, 6:], 1)
    like = held.scorer("bleu").score(counts.sum(axis=0).tolist())
    assert like == pytest.approx(theirs[0], abs=1e-9)


def test_scores_of_buckets_are_sacrebleus() -> None:
    systems, reference = corpus(shortest=0)
    found = buckets.score_buckets(evaluation(systems, reference))
    for system, lines in enumerate(systems):
        for bucket, places in enumerate(found.buckets.sentences):
            out, wanted = [[text[n] for n in places] for text in (lines, reference)]
            sentences = [
                quality.sentence_bleu(*pair, "none") for pair in zip(out, wanted, strict=True)
            ]
            expected = {
                "bleu": quality.bleu(out, wanted, "none").value,
                "chrf": quality.chrf(out, wanted).value,
                "sentence-bleu": sum(sentences) / len(sentences),
            }
            for name in buckets.MEASURES:
                ours = found.scores[name][system][bucket]
                assert ours == pytest.approx(expected[name], abs=1e-9)


def test_lower_edges_belong_to_a_bucket() -> None:
    held = split(numpy.array([1, 9, 10, 19, 20, 21]), [10, 20, 21], "source-length", True)
    assert [part.tolist() for part in held.sentences] == [[0, 1], [2, 3], [4], [5]]
    assert held.labels == ["< 10", "10–19", "20", "≥ 21"]
    assert held.bounds == [(None, 10), (10, 20), (20, 21), (21, None)]
    assert split(numpy.array([15, 15]), [10, 20], "source-length").trimmed().bounds == [(10, 20)]


def test_what_is_not_known_stands_in_no_bucket() -> None:
    held = split(numpy.array([0.5, float("nan"), 7.0]), [1.0], "difficulty")
    assert [part.tolist() for part in held.sentences] == [[0], [2]]
    assert held.without == 1


def test_length_ratios_by_hand() -> None:
    held = evaluation([["x"] * 4], ["a b c", "a b", "", "a"], ["q r s t u", "q r", "", ""])
    found = values(held, "length-ratio").tolist()
    assert found[:2] == [0.6, 1.0] and found[3] == float("inf")
    measured = buckets.score_buckets(held, "length-ratio", [0.6, 1.0])
    # 0.6 is not below 0.6; two empty lines have no ratio.
    assert measured.buckets.sizes == [0, 1, 2] and measured.buckets.without == 1
    assert measured.scores["bleu"][0] == [None, 0.0, 0.0]


def test_labels_have_digits_alike() -> None:
    assert labels([0.5, 1.0, 1.25], False) == ["< 0.50", "0.50–1.00", "1.00–1.25", "≥ 1.25"]
    assert labels([1000.0, 2500.0], True) == ["< 1,000", "1,000–2,499", "≥ 2,500"]


@pytest.mark.parametrize(
    ("edges", "word"), [([], "No edges"), ([2.0, 2.0], "rise"), ([1.0, float("nan")], "nan")]
)
def test_edges_at_fault(edges: list[float], word: str) -> None:
    assert word in check_edges(edges)[0]
    with pytest.raises(ConfigError, match=word):
        split(numpy.array([1.0]), edges, "difficulty")


def test_what_is_missing_is_said() -> None:
    held = evaluation([["x"]], ["a"])
    with pytest.raises(ConfigError, match="source"):
        values(held, "length-ratio")
    with pytest.raises(ConfigError, match="difficulty"):
        values(held, "difficulty")


def test_numbers_a_line(tmp_path: Path) -> None:
    path, reference = tmp_path / "difficulty", tmp_path / "reference"
    path.write_text("1.5\nnan\n-2\n")
    found = read_numbers(path, reference, 3)
    assert found[0] == 1.5 and found[1] != found[1] and found[2] == -2.0
    with pytest.raises(InputError, match=r"3 lines, but .*reference has 4"):
        read_numbers(path, reference, 4)
    path.write_text("1\nhard\n")
    with pytest.raises(InputError, match=r"difficulty:2: `hard` is no number"):
        read_numbers(path, reference, 2)


def test_sections_draw_and_tell(tmp_path: Path) -> None:
    systems, reference = corpus(shortest=0)
    held = evaluation(systems, reference, reference)
    number = list(map(float, range(len(reference))))
    by: list[Property] = ["reference-length", "length-ratio", "difficulty", "sentence-bleu"]
    section = buckets.buckets_section(held, by, edges=[20.0, 40.0], difficulty=number)
    assert [table.title for table in section.tables] == [
        "BLEU by reference length (percent)",
        "BLEU by length ratio (percent)",
        "Sentence BLEU by difficulty (percent)",
        "Sentences by sentence BLEU (percent of the 300 sentences)",
    ]
    # Lengths and difficulty are counted in words of the files, whatever units a model has.
    assert "(source words)" in section.tables[2].columns[0]
    for picture in section.pictures:
        picture.draw(tmp_path / f"{picture.name}.svg")
    report = section.values["buckets"][0]
    assert report["sentences"] == [len(part) for part in report_lines(held)]
    assert set(report["systems"][0]) == {"system", "bleu", "sentence_bleu", "chrf"}
    shares = section.values["buckets"][3]["systems"]
    assert [sum(one["sentences"]) for one in shares] == [300, 300]


def report_lines(held: Evaluation) -> list[list[int]]:
    sizes = held.reference.lengths.tolist()
    return [
        [place for place, size in enumerate(sizes) if low <= size < high]
        for low, high in ((0, 20), (20, 40), (40, 100))
    ]


def test_lengths_by_hand(tmp_path: Path) -> None:
    held = evaluation([["a b c", "", "x y"], ["a", "b", "c"]], ["a b", "a", "x y"])
    first, second = lengths.length_differences(held)
    assert first.differences.tolist() == [1, -1, 0]
    assert (first.mean, first.ratio) == (0.0, 1.0)
    assert first.deviation == pytest.approx((2 / 3) ** 0.5)
    assert [first.share(sign) for sign in (-1, 0, 1)] == pytest.approx([1 / 3] * 3)
    assert second.differences.tolist() == [-1, 0, -1]
    assert second.ratio == pytest.approx(3 / 5)
    assert first.shares(2) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert lengths.reach([first, second]) == 5
    section = lengths.lengths_section(held)
    assert section.values["lengths"][1]["sentences_by_difference"] == {"-1": 2, "0": 1}
    section.pictures[0].draw(tmp_path / "lengths.png")


def test_lengths_far_off_count_at_the_ends() -> None:
    held = evaluation([["a " * 100, "a"]], ["a", "a a a a a a a"])
    found = lengths.length_differences(held)
    assert lengths.reach(found) == 20
    assert found[0].shares(5) == pytest.approx([0.5, *[0] * 9, 0.5])
    assert lengths.length_differences(evaluation([["a"]], [""]))[0].ratio is None
