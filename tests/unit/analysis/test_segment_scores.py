"""Scores that other programs gave sentences: read, compared by their means, put into buckets."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from nmtgrid.analysis.quality.evaluation import MEASURE_KINDS, read_evaluation
from nmtgrid.analysis.quality.names import MEASURES
from nmtgrid.analysis.quality.segment_scores import with_segment_scores
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import main
from nmtgrid.metrics.quality import Scorer

OURS = ["a cat sat", "a dog ran off", "it rained all day long", "yes"]
THEIRS = ["a cat sits", "the dog ran off", "it rained the whole day", "no"]
REFERENCE = ["a cat sat", "a dog ran away", "it rained the whole day", "yes"]
_SOURCE_AND_LINKS = {"source": "source.txt", "alignments": "links.txt"}
OUR_SCORES, THEIR_SCORES = [0.9, 0.8, 0.7, 1.0], [0.8, 0.7, 0.6, 0.9]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, lines in (("ours", OURS), ("theirs", THEIRS), ("ref", REFERENCE)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [f"{a}\t{b}" for a, b in zip(OUR_SCORES, THEIR_SCORES, strict=True)]
    (tmp_path / "quality.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    files = {
        # In another order than the systems', and with spaces that files often have.
        "out/theirs.txt": _comet(THEIRS, THEIR_SCORES),
        "out/ours.txt": _comet([f"{line} " for line in OURS], OUR_SCORES),
    }
    (tmp_path / "comet.json").write_text(json.dumps(files), encoding="utf-8")
    return tmp_path


def _comet(lines: list[str], scores: list[float]) -> list[dict[str, Any]]:
    pairs = zip(lines, scores, strict=True)
    return [{"src": "s", "mt": line, "ref": "r", "COMET": score} for line, score in pairs]


def words(folder: Path, command: str, scores: str, *options: str) -> list[str]:
    systems = [f"{name}={folder / name}.txt" for name in ("ours", "theirs")]
    reference = ["--reference", str(folder / "ref.txt"), "--segment-scores", scores]
    return ["analyze", command, *systems, *reference, *options]


def report(folder: Path, *arguments: str) -> dict[str, Any]:
    file = folder / "report.json"
    assert main(words(folder, *arguments, "--json", str(file))) == 0
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values


@pytest.mark.parametrize(("file", "name"), [("quality.txt", "quality"), ("comet.json", "COMET")])
def test_means_and_tests(folder: Path, file: str, name: str) -> None:
    tests = ("--bootstrap", "200", "--randomisation", "200")
    values = report(folder, "compare", str(folder / file), *tests)
    means = {row["system"]: row[name] for row in values["segment_scores"]}
    assert means == pytest.approx({"ours": 0.85, "theirs": 0.75})
    bootstrap, randomisation = (test["metrics"][-1] for test in values["tests"])
    assert (bootstrap["metric"], randomisation["metric"]) == (name, name)
    # The same difference in every sentence: no sample has another one.
    second = bootstrap["systems"][1]
    assert second["difference_interval_95"] == pytest.approx([-0.1, -0.1])
    assert second["difference"] == pytest.approx(-0.1)
    assert second["p_value"] == pytest.approx(1 / 201)
    # Of the 16 ways to exchange four sentences, two have so large a difference.
    assert randomisation["systems"][1]["p_value"] == pytest.approx(2 / 16, abs=0.08)


def test_systems_with_the_same_scores(folder: Path) -> None:
    (folder / "quality.txt").write_text("1 1\n2 2\n3 3\n4 4\n", encoding="utf-8")
    values = report(folder, "compare", f"X={folder / 'quality.txt'}", "--bootstrap", "100")
    row = values["tests"][0]["metrics"][-1]
    assert row["metric"] == "X"
    assert row["systems"][1]["identical"] and row["systems"][1]["p_value"] is None


def test_means_in_buckets(folder: Path) -> None:
    """Sentences of 1, 3, 4 and 5 reference words."""
    scores = str(folder / "comet.json")
    values = report(folder, "buckets", scores, "--edges", "3,5", "--out", str(folder / "pictures"))
    (buckets,) = values["buckets"]
    ours, theirs = (row["segment_scores"]["COMET"] for row in buckets["systems"])
    assert ours["mean"] == pytest.approx([1.0, 0.85, 0.7])
    assert theirs["mean"] == pytest.approx([0.9, 0.75, 0.6])
    low, high = ours["interval_95"][1]
    assert 0.8 <= low <= 0.85 <= high <= 0.9
    assert (folder / "pictures" / "COMET-by-reference-length.png").is_file()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("q.txt", "1 2\n1\n1 2\n1 2\n", r"q.txt:2: `1` is not 2 numbers, one for each system"),
        ("q.txt", "1 2\n1 nan\n1 2\n1 2\n", "q.txt:2: `1 nan` is not 2 numbers"),
        ("q.txt", "1 2\n1 2\n", "q.txt:3: it has 2 lines, but .*ours.txt has 4"),
        ("BLEU.txt", "1 2\n" * 4, "the name `BLEU` is taken"),
        ("q.json", "[]", "it is not a file of `comet-score --to_json`"),
        ("q.json", '{"a": [{"mt": "a"}]}', "it is not a file of `comet-score --to_json`"),
        (
            "q.json",
            json.dumps({"a.txt": _comet([*OURS[:2], "other", "yes"], OUR_SCORES)}),
            "no scores of the translations of `ours`: line 3 of a.txt, the most similar, is anoth",
        ),
        ("q.json", "{}", "no scores of the translations of `ours`"),
    ],
)
def test_refusals(
    folder: Path, name: str, text: str, problem: str, refused: Callable[..., str]
) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    message = refused(*words(folder, "compare", str(folder / name)))
    assert re.search(problem, message), message


def test_a_name_is_given_once(folder: Path, refused: Callable[..., str]) -> None:
    scores = str(folder / "comet.json")
    more = ("--segment-scores", f"COMET={folder / 'quality.txt'}")
    assert "the name `COMET` is taken" in refused(*words(folder, "compare", scores, *more))


def test_a_report_has_them(folder: Path) -> None:
    page = folder / "report.html"
    arguments = words(folder, "report", str(folder / "comet.json"), "--out", str(page))
    assert main(arguments) == 0
    text = page.read_text(encoding="utf-8")
    assert "Mean scores by other programs" in text and "COMET by reference length" in text


def test_a_report_without_translations_has_no_scores(
    folder: Path, refused: Callable[..., str]
) -> None:
    options = ["--segment-scores", str(folder / "comet.json"), "--out", str(folder / "report.html")]
    assert "`--segment-scores` applies to translations" in refused(
        "analyze", "report", "--curves", str(folder), *options
    )


def test_means_by_difficulty(folder: Path) -> None:
    (folder / "links.txt").write_text("2-0\n0-0\n0-0\n0-0\n", encoding="utf-8")
    (folder / "source.txt").write_text("a b c\nd\ne\nf\n", encoding="utf-8")
    more = [f"--{name}={folder / file}" for name, file in _SOURCE_AND_LINKS.items()]
    (buckets,) = report(folder, "difficulty", str(folder / "quality.txt"), *more)["buckets"]
    ours = buckets["systems"][0]["segment_scores"]["quality"]["mean"]
    assert [mean for mean in ours if mean is not None] == pytest.approx([2.5 / 3, 0.9])


def test_scores_of_no_translation_are_refused(folder: Path, refused: Callable[..., str]) -> None:
    texts = ("--reference", str(folder / "ref.txt"), "--source", str(folder / "ref.txt"))
    scores = ("--segment-scores", str(folder / "quality.txt"))
    message = refused("analyze", "difficulty", *texts, *scores)
    assert "`--segment-scores` is for scores of translations: give some" in message


def test_an_unknown_name_is_no_mean(folder: Path) -> None:
    systems = [f"{name}={folder / name}.txt" for name in ("ours", "theirs")]
    evaluation = read_evaluation(systems, folder / "ref.txt")
    evaluation = with_segment_scores(evaluation, [str(folder / "quality.txt")])
    # The known ones: the measures of buckets, and what the file gave.
    assert {*MEASURES} < {*MEASURE_KINDS}
    assert evaluation.resampled(["quality"], None, 5)["quality"].shape == (2, 5)
    lines = [numpy.arange(4)]
    for call in (
        lambda: evaluation.counts("qualty"),
        lambda: evaluation.scorer("qualty"),
        lambda: evaluation.scores("qualty", lines),
        lambda: evaluation.resampled(["bleu", "qualty"], None, 5),
        lambda: evaluation.swapped(["bleu", "qualty"], 5),
    ):
        with pytest.raises(ConfigError, match=r"no measure `qualty`\. Did you mean `quality`\?"):
            call()
    with pytest.raises(ConfigError, match=r"no metric `blue`\. There are bleu, chrf, ter"):
        Scorer("blue")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"`sentence-bleu` .* has no corpus score"):
        evaluation.scorer("sentence-bleu")
