"""Exits: relative positions, shares, joint histograms and pictures, by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy
import pytest

from nmtgrid.analysis.exits import (
    ExitTraces,
    correlation,
    exits_of_traces,
    exits_section,
    length_edges,
    read_exits,
    sentence_confidence,
    sentence_lengths,
    token_confidence,
    tokens_of,
)
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.cli.app import main
from nmtgrid.search.traces import Trace


def trace(
    line: int, target: str, exits: list[int] | None, shares: list[float], source: str = "a b"
) -> Trace:
    logs = [math.log(share) for share in shares]
    return Trace(
        line, source.split(), target.split(), target, logs, sum(logs), sum(logs), exits=exits,
        exit_scores=None if exits is None else [[0.5, None, None, None]] * len(exits),
    )  # fmt: skip


# Eleven tokens with the end symbol: relative positions are 0, 0.1, .. 1.
LONG = trace(
    1, "a b c d e f g h i j", [4, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1],
    [0.05, *[0.5] * 9, 1.0], source="s " * 12,
)  # fmt: skip
SHORT = trace(2, "a b", [2, 1, 2], [0.95, 0.95, 0.5])
NOTHING = trace(3, "", [2], [0.25], source="s")
EMPTY = Trace(4, [], [], "", [], 0.0, 0.0)
ALL = [LONG, SHORT, NOTHING, EMPTY]
HERE = Path("t.jsonl")


@pytest.fixture
def found() -> ExitTraces:
    return exits_of_traces("one", ALL, HERE)


def test_tokens_by_hand(found: ExitTraces) -> None:
    assert found.num_exits == 4 and not found.is_by_sentence
    assert found.average_exit == pytest.approx((4 + 9 * 3 + 1 + 2 + 1 + 2 + 2) / 15)
    # 0.1 is not below 0.1 and 0.9 not above 0.9; the end symbol alone has no relative position.
    assert found.exits[found.at_beginning].tolist() == [4, 2]
    assert found.exits[found.near_end].tolist() == [1, 2]
    assert found.distribution() == pytest.approx([2 / 15, 3 / 15, 9 / 15, 1 / 15])
    assert found.distribution(found.at_beginning) == pytest.approx([0, 0.5, 0, 0.5])
    assert found.distribution(found.exits > 4) is None


def test_all_blocks_stand_though_none_left_behind_the_last() -> None:
    """Six blocks, all tokens leave behind the first two: four shares and rows are empty."""
    held = [dataclasses.replace(SHORT, exit_scores=None, num_exits=6)]
    found = exits_of_traces("one", held, HERE)
    assert found.num_exits == 6
    assert found.distribution() == pytest.approx([1 / 3, 2 / 3, 0, 0, 0, 0])
    assert token_confidence(found).rows == [1, 2, 3, 4, 5, 6]
    assert sentence_confidence(found, 0.5).counts.sum(1).tolist() == [0, 1, *[0] * 9]
    old = exits_of_traces("one", [dataclasses.replace(held[0], num_exits=None)], HERE)
    assert old.num_exits == 2


def test_sentences_by_hand(found: ExitTraces) -> None:
    assert found.sentence_exits.tolist() == pytest.approx([32 / 11, 5 / 3, 2])
    assert found.sentence_confidence.tolist() == pytest.approx([5.55 / 11, 0.8, 0.25])
    assert found.source_lengths.tolist() == [12, 2, 1]
    assert found.examples == [LONG, SHORT]
    token, exit, confidence = tokens_of(SHORT)[-1]
    assert (token, exit) == ("</s>", 2) and confidence == pytest.approx(0.5)


def test_joint_histograms_by_hand(found: ExitTraces) -> None:
    counts = token_confidence(found).counts
    assert counts.sum() == 15
    held = {(int(r) + 1, int(c)): int(counts[r, c]) for r, c in zip(*counts.nonzero(), strict=True)}
    # 0.5 lies in the class that begins with it, 1 in the last.
    assert held == {(4, 0): 1, (3, 5): 9, (1, 9): 2, (2, 9): 1, (2, 5): 1, (2, 2): 1}
    edges = length_edges([found])
    assert edges == [0, 2, 4, 6, 8, 10, 12, 14]
    lengths = sentence_lengths(found, 0.5, edges)
    assert lengths.rows == [1, 1.5, 2, 2.5, 3, 3.5, 4]
    # 32/11 = 2.9 goes to 3, 5/3 to 1.5, 2 to 2; lengths 12, 2, 1.
    assert lengths.counts[4, 6] == lengths.counts[1, 1] == lengths.counts[2, 0] == 1
    confidence = sentence_confidence(found, 1.0)
    assert [int(n) for n in confidence.counts.sum(1)] == [0, 2, 1, 0]


def test_a_probability_is_in_the_class_that_it_begins(found: ExitTraces) -> None:
    """0.3 = 3 / 10 must not fall below its own border for a rounding error."""
    for tenth in range(1, 10):
        held = exits_of_traces("x", [trace(1, "", [1], [tenth / 10])], HERE)
        sure = numpy.array([tenth / 10])
        placed = token_confidence(
            ExitTraces(**{**vars(held), "confidence": sure})
        ).counts  # as given, not through a logarithm
        assert placed[0].nonzero()[0].tolist() == [tenth]


def test_alike_in_each_sentence() -> None:
    held = exits_of_traces(
        "x", [trace(1, "a", [3, 3], [1, 1]), trace(2, "a", [1, 1], [1, 1])], HERE
    )
    assert held.is_by_sentence
    report = exits_section([held])
    assert report.values["systems"][0]["exits_by_sentence"]
    rows = report.values["systems"][0]["sentences_by_exit_and_confidence"]["exits"]
    assert rows == [1, 2, 3, 4]


def test_correlation() -> None:
    assert correlation(numpy.array([1, 2, 3]), numpy.array([6.0, 4.0, 2.0])) == pytest.approx(-1)
    assert correlation(numpy.array([1, 1]), numpy.array([6.0, 4.0])) is None


@pytest.mark.parametrize(("count", "suffix"), [(1, ".svg"), (4, ".png")])
def test_pictures(found: ExitTraces, count: int, suffix: str, tmp_path: Path) -> None:
    name = "a system with quite a long name that nobody can read in a small diagram"
    systems = [ExitTraces(**{**vars(found), "system": f"{n} {name}"}) for n in range(count)]
    made = exits_section(systems, ["r " * 40, "second $x_1$", "", ""])
    for picture in made.pictures:
        picture.draw(tmp_path / f"{picture.name}{suffix}")
        assert (tmp_path / f"{picture.name}{suffix}").stat().st_size > 1000
    assert json.loads(json.dumps(made.values))["systems"][0]["tokens"] == 15


def write(path: Path, traces: list[Trace]) -> Path:
    path.write_text("".join(f"{one.to_line()}\n" for one in traces))
    return path


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one.jsonl", ALL)
    report = tmp_path / "r.json"
    code = main(
        ["analyze", "exits", f"A={one}", f"B={one}", "--line", "2", "--out", str(tmp_path / "o"),
         "--json", str(report)]
    )  # fmt: skip
    assert code == 0
    values = json.loads(report.read_text())
    assert [one["system"] for one in values["systems"]] == ["A", "B"]
    assert [one["line"] for one in values["systems"][0]["examples"]] == [2]
    assert len(values["pictures"]) == 5 and all(Path(p).is_file() for p in values["pictures"])
    assert "15" in capsys.readouterr().err


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.jsonl", ALL)
    plain = write(tmp_path / "plain.jsonl", [trace(1, "a", None, [0.5, 0.5])])
    mixed = write(tmp_path / "mixed.jsonl", [SHORT, trace(3, "a", None, [0.5, 0.5])])
    nothing = write(tmp_path / "nothing.jsonl", [])
    old = tmp_path / "old.jsonl"
    old.write_text('{"line": 1, "hypothesis": "a"}\n')
    words = tmp_path / "words.txt"
    words.write_text("a b c\n")
    cases: dict[str, list[object]] = {
        "no exits in it": [plain],
        "has no exits, though others have": [mixed],
        "is empty": [nothing],
        "`source` is missing": [old],
        "not JSON": [words],
        "Two systems are called `good`": [good, good],
        "has 1 lines": [good, f"B={write(tmp_path / 'short.jsonl', [SHORT])}"],
        "no translation of line 9": [good, "--line", "9"],
        "counts from 1": [good, "--line", "0"],
        "has 1 lines, but": [good, "--reference", words],
    }
    for told, arguments in cases.items():
        assert main(["analyze", "exits", *map(str, arguments)]) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert told in shown, shown
    assert main(["analyze", "exits", str(plain)]) == 2
    assert "--exit" in capsys.readouterr().err


def test_examples_must_be_there() -> None:
    with pytest.raises(InputError, match="line 3"):
        exits_of_traces("x", [SHORT], HERE, lines=[3])
    with pytest.raises(ConfigError):
        exits_section([exits_of_traces("x", [SHORT], HERE)]).pictures[0].draw(Path("x.pdf"))
    assert read_exits({}) == []
