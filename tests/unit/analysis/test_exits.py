"""Exits: positions, shares, histograms and pictures by hand; quality against cost."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from nmtgrid.analysis.exits import (
    ExitTraces,
    correlation,
    exits_of_traces,
    exits_section,
    joint_histograms,
    length_edges,
    read_exits,
    tokens_of,
)
from nmtgrid.analysis.plotting.lines import CurvePoint, TradeoffCurve, draw_tradeoff
from nmtgrid.analysis.tuning import exit_curves, parse_tuning, read_tuning, tuning_section
from nmtgrid.base.errors import ConfigError, InputError, StorageError
from nmtgrid.cli.app import main
from nmtgrid.search.traces import Trace


def trace(line: int, target: str, exits: Any, shares: list[float], source: str = "a b") -> Trace:
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
def exit_traces() -> ExitTraces:
    return exits_of_traces("one", ALL, HERE)


def test_tokens_and_sentences_by_hand(exit_traces: ExitTraces) -> None:
    assert exit_traces.num_exits == 4 and not exit_traces.is_by_sentence
    assert exit_traces.average_exit == pytest.approx((4 + 9 * 3 + 1 + 2 + 1 + 2 + 2) / 15)
    # 0.1 is not below 0.1 and 0.9 not above 0.9; the end symbol alone has no relative position.
    assert exit_traces.exits[exit_traces.at_beginning].tolist() == [4, 2]
    assert exit_traces.exits[exit_traces.near_end].tolist() == [1, 2]
    assert exit_traces.distribution() == pytest.approx([2 / 15, 3 / 15, 9 / 15, 1 / 15])
    assert exit_traces.distribution(exit_traces.at_beginning) == pytest.approx([0, 0.5, 0, 0.5])
    assert exit_traces.distribution(exit_traces.exits > 4) is None
    assert exit_traces.sentence_exits.tolist() == pytest.approx([32 / 11, 5 / 3, 2])
    assert exit_traces.sentence_confidence.tolist() == pytest.approx([5.55 / 11, 0.8, 0.25])
    assert exit_traces.source_lengths.tolist() == [12, 2, 1]
    assert exit_traces.examples == [LONG, SHORT]
    token, exit, confidence = tokens_of(SHORT)[-1]
    assert (token, exit) == ("</s>", 2) and confidence == pytest.approx(0.5)


def test_all_blocks_stand_though_none_left_behind_the_last() -> None:
    traces = [dataclasses.replace(SHORT, exit_scores=None, num_exits=6)]
    exit_traces = exits_of_traces("one", traces, HERE)
    assert exit_traces.num_exits == 6
    assert exit_traces.distribution() == pytest.approx([1 / 3, 2 / 3, 0, 0, 0, 0])
    tokens, sentences, _ = joint_histograms(exit_traces, 0.5, [0, 2, 4]).values()
    assert tokens.rows == [1, 2, 3, 4, 5, 6]
    assert sentences.counts.sum(1).tolist() == [0, 1, *[0] * 9]
    old = exits_of_traces("one", [dataclasses.replace(traces[0], num_exits=None)], HERE)
    assert old.num_exits == 2


def test_joint_histograms_by_hand(exit_traces: ExitTraces) -> None:
    edges = length_edges([exit_traces])
    assert edges == [0, 2, 4, 6, 8, 10, 12, 14]
    tokens, _, lengths = joint_histograms(exit_traces, 0.5, edges).values()
    counts = tokens.counts
    assert counts.sum() == 15
    cells = {(r + 1, c): counts[r, c] for r, c in zip(*counts.nonzero(), strict=True)}
    # 0.5 lies in the class that begins with it, 1 in the last.
    assert cells == {(4, 0): 1, (3, 5): 9, (1, 9): 2, (2, 9): 1, (2, 5): 1, (2, 2): 1}
    assert lengths.rows == [1, 1.5, 2, 2.5, 3, 3.5, 4]
    # 32/11 = 2.9 goes to 3, 5/3 to 1.5, 2 to 2; lengths 12, 2, 1.
    assert lengths.counts[4, 6] == lengths.counts[1, 1] == lengths.counts[2, 0] == 1
    _, confidence, _ = joint_histograms(exit_traces, 1.0, edges).values()
    assert [int(n) for n in confidence.counts.sum(1)] == [0, 2, 1, 0]


def test_a_probability_is_in_the_class_that_it_begins() -> None:
    """0.3 = 3 / 10 must not fall below its own border for a rounding error."""
    for tenth in range(1, 10):
        single = exits_of_traces("x", [trace(1, "", [1], [tenth / 10])], HERE)
        sure = numpy.array([tenth / 10])
        # As given, not through a logarithm.
        placed = joint_histograms(dataclasses.replace(single, confidence=sure), 1.0, [0.0, 9.0])
        counts = placed["tokens_by_exit_and_confidence"].counts
        assert counts[0].nonzero()[0].tolist() == [tenth]


def test_alike_in_each_sentence() -> None:
    alike = exits_of_traces(
        "x", [trace(1, "a", [3, 3], [1, 1]), trace(2, "a", [1, 1], [1, 1])], HERE
    )
    assert alike.is_by_sentence
    report = exits_section([alike])
    assert report.values["systems"][0]["exits_by_sentence"]
    assert "For verified exits" in report.text and "not how many blocks ran" in report.text
    rows = report.values["systems"][0]["sentences_by_exit_and_confidence"]["exits"]
    assert rows == [1, 2, 3, 4]
    assert correlation(numpy.array([1, 2, 3]), numpy.array([6.0, 4.0, 2.0])) == pytest.approx(-1)
    assert correlation(numpy.array([1, 1]), numpy.array([6.0, 4.0])) is None


def test_verified_exits_are_titled_by_their_accepted_drafts(
    exit_traces: ExitTraces, tmp_path: Path
) -> None:
    """5 of 8 tokens leave before the last of 6 blocks; other systems have an average exit."""
    traces = [trace(n, "a b c", [2, n, 2, 6], [0.5] * 4) for n in (2, 6)]
    traces = [
        dataclasses.replace(each, exit_scores=None, num_exits=6, verified=True) for each in traces
    ]
    verified = exits_of_traces("ver", [*traces, EMPTY], HERE)
    assert verified.accepted_drafts == 5 / 8 and exit_traces.accepted_drafts is None
    section = exits_section([verified, dataclasses.replace(exit_traces, num_exits=8)])
    assert [row["accepted_drafts"] for row in section.values["systems"]] == [5 / 8, None]
    section.pictures[0].draw(tmp_path / "places.svg")
    text = (tmp_path / "places.svg").read_text()
    assert "62.5 % of tokens: accepted drafts" in text and text.count("average exit") == 1
    assert f"average exit {exit_traces.average_exit:.2f}" in text


@pytest.mark.parametrize(("count", "suffix"), [(1, ".svg"), (4, ".png")])
def test_pictures(exit_traces: ExitTraces, count: int, suffix: str, tmp_path: Path) -> None:
    name = "a system with quite a long name that nobody can read in a small diagram"
    systems = [ExitTraces(**{**vars(exit_traces), "system": f"{n} {name}"}) for n in range(count)]
    report = exits_section(systems, ["r " * 40, "second $x_1$", "", ""])
    for picture in report.pictures:
        picture.draw(tmp_path / f"{picture.name}{suffix}")
        assert (tmp_path / f"{picture.name}{suffix}").stat().st_size > 1000
    assert json.loads(json.dumps(report.values))["systems"][0]["tokens"] == 15


def write(path: Path, traces: list[Trace]) -> Path:
    path.write_text("".join(f"{trace.to_line()}\n" for trace in traces))
    return path


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = write(tmp_path / "one.jsonl", ALL)
    report = tmp_path / "r.json"
    options = ["--line", "2", "--out", str(tmp_path / "o"), "--json", str(report)]
    assert main(["analyze", "exits", f"A={system}", f"B={system}", *options]) == 0
    values = json.loads(report.read_text())
    assert [system["system"] for system in values["systems"]] == ["A", "B"]
    assert [system["line"] for system in values["systems"][0]["examples"]] == [2]
    assert len(values["pictures"]) == 5 and all(Path(p).is_file() for p in values["pictures"])
    assert "15" in capsys.readouterr().err


def test_references_are_those_of_the_lines(tmp_path: Path, refused: Callable[..., str]) -> None:
    """Of traces of a part, the references of the whole text."""
    system = write(tmp_path / "part.jsonl", [trace(3, "a", [1, 2], [0.5, 0.5])])
    reference, report = tmp_path / "ref", tmp_path / "r.json"
    reference.write_text("one\ntwo\nthree\nfour\n")
    options = ["--reference", str(reference), "--out", str(tmp_path / "o"), "--json", str(report)]
    assert main(["analyze", "exits", str(system), *options]) == 0
    (example,) = json.loads(report.read_text())["systems"][0]["examples"]
    assert (example["line"], example["reference"]) == (3, "three")
    reference.write_text("three\n")
    message = refused("analyze", "exits", system, *options)
    assert "it has 1 line, but there are traces of line 3" in message


def test_traces_of_another_source_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of one in other subwords, or with another source in one of two lines."""
    sources = {
        "first": ("ein Haus", "ein Baum"),
        "units": ("ein H@@ aus", "ein Bau@@ m"),
        "half": ("ein Haus", "ein Dach"),
        "other": ("zwei Hunde", "ein Dach"),
    }
    files = []
    for name, lines in sources.items():
        traces = [trace(n, "a", [1, 2], [0.5, 0.5], line) for n, line in enumerate(lines, 1)]
        files.append(str(write(tmp_path / f"{name}.jsonl", traces)))
    assert main(["analyze", "exits", *files]) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert "The source of `other` differs from that of `first` in 2 of 2 lines" in message
    assert message.count("The source of") == 1


def test_a_report_warns_of_verified_exits_and_of_another_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each once, though both exits and scores are of the same traces."""
    files = []
    for name, source in (("free", "ein Haus"), ("drafted", "zwei Hunde")):
        traces = [trace(n, "a b", [1, 2, 2], [0.5, 0.5, 0.5], source) for n in (1, 2)]
        is_verified = name == "drafted"
        traces = [
            dataclasses.replace(each, exit_scores=None, num_exits=2, verified=is_verified)
            for each in traces
        ]
        files.append(str(write(tmp_path / f"{name}.jsonl", traces)))
    (tmp_path / "reference").write_text("a b\nb a\n")
    command = ["analyze", "report", *files, "-r", str(tmp_path / "reference"), "--bootstrap", "5"]
    assert main([*command, "--out", str(tmp_path / "page.html")]) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("with verified exits these averages show") == 1
    assert "`drafted`: with verified exits" in message
    assert message.count("The source of `drafted` differs from that of `free`") == 1
    assert message.count("The source of") == 1


def test_what_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    good = write(tmp_path / "good.jsonl", ALL)
    plain = write(tmp_path / "plain.jsonl", [trace(1, "a", None, [0.5, 0.5])])
    mixed = write(tmp_path / "mixed.jsonl", [SHORT, trace(3, "a", None, [0.5, 0.5])])
    nothing, short = write(tmp_path / "no.jsonl", []), write(tmp_path / "short.jsonl", [SHORT])
    old, words = tmp_path / "old.jsonl", tmp_path / "words.txt"
    old.write_text('{"line": 1, "hypothesis": "a"}\n')
    words.write_text("a b c\n")
    cases: list[tuple[str, list[object]]] = [
        ("contains no exits", [plain]),
        ("--exit", [plain]),
        ("has no exits, though others have", [mixed]),
        ("is empty", [nothing]),
        ("`source` is missing", [old]),
        ("not JSON", [words]),
        ("Two systems have the name `good`", [good, good]),
        ("has 1 line", [good, f"B={short}"]),
        ("no translation of line 9", [good, "--line", "9", "--out", tmp_path / "o"]),
        ("`--line` is for the examples", [good, "--line", "1"]),
        ("`--examples` is for the examples", [good, "--examples", "1"]),
        ("`--format` is for figures: add `--out`", [good, "--format", "svg"]),
        ("`--format` is for figures in a", [good, "--format", "svg", "--out", tmp_path / "o.png"]),
        ("counts from 1", [good, "--line", "0"]),
        ("has 1 line, but", [good, "--reference", words, "--out", tmp_path / "o"]),
    ]
    for message, arguments in cases:
        assert message in refused("analyze", "exits", *arguments)

    with pytest.raises(InputError, match="line 3"):
        exits_of_traces("x", [SHORT], HERE, lines=[3])
    with pytest.raises(ConfigError):
        exits_section([exits_of_traces("x", [SHORT], HERE)]).pictures[0].draw(Path("x.pdf"))
    assert read_exits({}) == []


LABELS = ["average exit", "MFLOPs", "seconds"]


def draw(path: Path, *drawn: TradeoffCurve) -> str:
    draw_tradeoff(drawn, path, title="Test $x", x_labels=LABELS, y_label="BLEU")
    return path.read_text() if path.suffix == ".svg" else ""


def test_all_that_is_named_is_written(tmp_path: Path) -> None:
    ours = TradeoffCurve(
        "confidence",
        [CurvePoint((1.2, 3.0, 9.0), 30, "1.5"), CurvePoint((2, 4, 9), 31)],
        "adaptive",
    )
    others = [
        TradeoffCurve(
            "fixed exits",
            [CurvePoint((1, 2, 7), 25, "n 1"), CurvePoint((3, 5, 9), 32, "n 2")],
            "fixed",
        ),
        TradeoffCurve("random", [CurvePoint((2, 3, 8), 20)], "uniform"),
        TradeoffCurve("nothing", [], "baseline"),
    ]
    text = draw(tmp_path / "curve.svg", ours, *others)
    for name in ("confidence", "fixed exits", "random", "1.5", "n 2", *LABELS):
        assert f"<!-- {name}" in text
    assert "nothing" not in text and text.count("<!-- confidence") == 1
    assert draw(tmp_path / "again.svg", ours, *others) == text, "the same values, the same file"
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw(tmp_path / "curve.pdf", ours)
    curve = TradeoffCurve("pervasive", [CurvePoint((1.0, math.nan, 4.0), 30.0)], "baseline")
    text = draw(tmp_path / "curve.svg", curve)
    assert "<!-- seconds" in text and "MFLOPs" not in text
    draw(tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


def row(bleu: float, depth: float, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    base = {"bleu": bleu, "average_exit": depth, "seconds": seconds, "flops_per_token": 2e6 * depth}
    return base | {"test": {**base, "bleu": bleu - 1}} | more


def results(points: list[dict[str, Any]], test_split: str | None = "test") -> dict[str, Any]:
    return {
        "name": "ours", "split": "valid", "test_split": test_split, "sentences": 10,
        "test_sentences": 20, "points": points, "full": row(30, 2, 4.0),
        "fixed": [row(20, 1, exit=1), row(30, 2, 4.0, exit=2)],
        "verified": [row(30, 2.3, 2.0, exit=1)], "uniform": row(22, 1.5),
        "baselines": [row(21, 1, name="b", flops_per_token=None) | {"depth": 1}],
    }  # fmt: skip


def test_points_are_those_of_the_test_split(tmp_path: Path) -> None:
    points = [row(28, 1.4, 3.0, budget=1.5), row(29, 1.8, budget=2.0)]
    drawn = exit_curves([parse_tuning(results(points))], seconds=True)
    assert [curve.kind for curve in drawn] == [
        "adaptive", "fixed", "verified", "uniform", "baseline",
    ]  # fmt: skip
    assert drawn[0].points[0] == CurvePoint((1.4, 2.8, 3.0), 27, "1.5")
    assert drawn[1].points[1].label == "2" and drawn[4].points[0].bleu == 20
    assert drawn[2].points == [CurvePoint((2.3, 4.6, 2.0), 29, "1")]
    section = tuning_section([parse_tuning(results(points))])
    names = {row["system"] for row in section.values["rows"]}
    assert {"verified exits", "random exits"} < names
    # As `adaptive-tune` writes it, and once wrote it.
    alone = results(points, None) | {"test_sentences": None}
    del alone["verified"]
    assert parse_tuning(alone).sentences == alone["sentences"]
    plain = exit_curves([parse_tuning(alone)], seconds=False)
    assert plain[0].points[0] == CurvePoint((1.4, 2.8, 75.0), 28, "1.5")


def test_what_has_no_depth_has_no_place_on_its_axis() -> None:
    values = results([row(28, 1.4, 3.0, budget=1.5)], None)
    baseline = row(21, 1, name="b", flops_per_token=None, average_exit=None)
    values["baselines"] = [baseline | {"depth": None}]
    tuning = parse_tuning(values)
    (mark,) = exit_curves([tuning], seconds=True)[-1].points
    assert [math.isnan(x) for x in mark.costs] == [True, True, False] and mark.label == ""
    report = tuning_section([tuning])
    row_of = report.values["rows"][-1]
    assert (row_of["average_exit"], row_of["flops_per_token"]) == (None, None)
    assert report.tables[0].formatted()[-1][3:5] == ["-", "-"]
    json.dumps(report.values, allow_nan=False)


def test_one_name_is_pooled_by_what_was_tuned_on() -> None:
    """The best of a budget on the split tuned on is shown, even if another is better on test."""
    first = results([row(28, 1.4, budget=1.5), row(29, 2.0, budget=2.0)])
    better = row(28.5, 1.1, budget=1.5)
    better["test"]["bleu"] = 3.0
    pooled = exit_curves(
        [parse_tuning(first), parse_tuning(results([better]), "ours")], seconds=True
    )
    assert [mark.bleu for mark in pooled[0].points] == [3.0, 28]
    apart = exit_curves(
        [parse_tuning(first), parse_tuning(results([better]), "theirs")], seconds=True
    )
    assert [curve.name for curve in apart][:2] == ["ours", "theirs"]


def test_exits_of_two_models_are_told_apart() -> None:
    """Each model has fixed, verified and random exits of its own; baselines are of neither."""
    point = [row(28, 1.4, budget=1.5)]
    ours, theirs = results(point), results(point) | {"full": row(31, 2, 4.0)}
    theirs["fixed"] = [row(25, 1, exit=1), row(31, 2, 4.0, exit=2)]
    theirs["baselines"] = [
        row(21.5, 1, name="b") | {"depth": 1}, row(24, 2, name="c") | {"depth": 2},
    ]  # fmt: skip
    tunings = [parse_tuning(ours), parse_tuning(theirs, "theirs")]
    curves = {
        curve.name: [mark.bleu for mark in curve.points]
        for curve in exit_curves(tunings, seconds=True)
    }
    # On the test split each BLEU is lower by 1.
    assert curves == {
        "ours": [27], "theirs": [27],
        "ours: fixed exits": [19, 29], "theirs: fixed exits": [24, 30],
        "ours: verified exits": [29], "theirs: verified exits": [29],
        "ours: random exits": [21], "theirs: random exits": [21],
        "decoders trained separately": [20.5, 23],
    }  # fmt: skip
    section = tuning_section(tunings)
    assert {cells[0] for cells in section.tables[0].rows} == set(curves)
    fixed = [entry for entry in section.values["rows"] if entry["system"] == "fixed exits"]
    assert [(entry["of"], entry["label"]) for entry in fixed] == [
        ("ours", "1"), ("ours", "2"), ("theirs", "1"), ("theirs", "2"),
    ]  # fmt: skip
    # The exits of one model that was tuned twice are shown once.
    again = exit_curves([parse_tuning(ours), parse_tuning(ours, "again")], seconds=True)
    assert [curve.name for curve in again] == [
        "ours", "again", "fixed exits", "verified exits", "random exits",
        "decoders trained separately",
    ]  # fmt: skip
    # Of one name, the best of each exit stands for all.
    pooled = exit_curves([parse_tuning(ours), parse_tuning(theirs, "ours")], seconds=True)
    assert [mark.bleu for mark in pooled[1].points] == [24, 30]


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results([row(28, 1.4, budget=1.5)])))
    assert read_tuning(tmp_path).name == "ours" and read_tuning(tmp_path, "x").name == "x"
    (tmp_path / "other.json").write_text('{"points": 3}')
    with pytest.raises(InputError, match="no results of adaptive-tune"):
        read_tuning(tmp_path / "other.json")
    with pytest.raises(StorageError, match="missing"):
        read_tuning(tmp_path / "nothing")


def test_only_tunings_measured_alike_stand_in_one_picture() -> None:
    same = {"beam": 4, "precision": "fp32", "exits": 2, "budget": 0.5}
    values = results([row(28, 1.4, budget=1.5)])
    report = tuning_section(
        [
            parse_tuning(values | same),
            parse_tuning(values | same | {"budget": 0.50}, "b"),
            parse_tuning(values),
        ]
    )
    assert report.tables[0].title.startswith("test (20 sentences), beam 4; BLEU")
    assert ", greedy; BLEU" in tuning_section([parse_tuning(values | {"beam": 1})]).tables[0].title
    other: dict[str, Any] = {
        "beam": 1, "precision": "bf16", "exits": 3, "budget": 1, "split": "dev",
    }  # fmt: skip
    names = ["beam", "precision", "number of exits", "budget width", "split tuned on"]
    for (key, value), name in zip(other.items(), names, strict=True):
        with pytest.raises(ConfigError, match=f"differ in their {name}: .*ours.*{value} .`b`"):
            tuning_section(
                [parse_tuning(values | same), parse_tuning(values | same | {key: value}, "b")]
            )
    with pytest.raises(ConfigError, match="different splits"):
        tuning_section([parse_tuning(values), parse_tuning(values | {"test_sentences": 21})])
