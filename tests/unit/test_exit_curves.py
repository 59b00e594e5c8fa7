"""Pictures of quality against cost, and the results that they are drawn from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.analysis.plotting.tradeoff import CurvePoint, TradeoffCurve, draw_tradeoff
from nmtgrid.analysis.tuning import (
    exit_curves,
    parse_tuning,
    read_tuning,
    tuning_section,
)
from nmtgrid.base.errors import ConfigError, InputError, StorageError

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


def test_a_panel_without_points_is_left_out(tmp_path: Path) -> None:
    one = TradeoffCurve("pervasive", [CurvePoint((1.0, math.nan, 4.0), 30.0)], "baseline")
    text = draw(tmp_path / "curve.svg", one)
    assert "<!-- seconds" in text and "MFLOPs" not in text
    draw(tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


def row(bleu: float, depth: float, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    shown = {
        "bleu": bleu,
        "average_exit": depth,
        "seconds": seconds,
        "flops_per_token": 2e6 * depth,
    }
    return shown | {"test": {**shown, "bleu": bleu - 1}} | more


def results(points: list[dict[str, Any]], test_split: str | None = "test") -> dict[str, Any]:
    return {
        "name": "ours", "split": "valid", "test_split": test_split, "sentences": 10,
        "test_sentences": 20, "points": points, "full": row(30, 2, 4.0),
        "fixed": [row(20, 1, exit=1), row(30, 2, 4.0, exit=2)], "uniform": row(22, 1.5),
        "baselines": [row(21, 1, name="b", flops_per_token=None) | {"depth": 1}],
    }  # fmt: skip


def test_points_are_those_of_the_test_split(tmp_path: Path) -> None:
    points = [row(28, 1.4, 3.0, budget=1.5), row(29, 1.8, budget=2.0)]
    found = exit_curves([parse_tuning(results(points))], seconds=True)
    assert [one.kind for one in found] == ["adaptive", "fixed", "uniform", "baseline"]
    assert found[0].points[0] == CurvePoint((1.4, 2.8, 3.0), 27, "1.5")
    assert found[1].points[1].label == "2" and found[3].points[0].bleu == 20
    plain = exit_curves([parse_tuning(results(points, None))], seconds=False)
    assert plain[0].points[0] == CurvePoint((1.4, 2.8, 75.0), 28, "1.5")


def test_what_has_no_depth_has_no_place_on_its_axis() -> None:
    values = results([row(28, 1.4, 3.0, budget=1.5)], None)
    baseline = row(21, 1, name="b", flops_per_token=None, average_exit=None)
    values["baselines"] = [baseline | {"depth": None}]
    found = parse_tuning(values)
    (mark,) = exit_curves([found], seconds=True)[-1].points
    assert [math.isnan(x) for x in mark.costs] == [True, True, False] and mark.label == ""
    made = tuning_section([found])
    row_of = made.values["rows"][-1]
    assert (row_of["average_exit"], row_of["flops_per_token"]) == (None, None)
    assert made.tables[0].formatted()[-1][3:5] == ["-", "-"]
    json.dumps(made.values, allow_nan=False)


def test_one_name_is_pooled_by_what_was_tuned_on() -> None:
    """The best of a budget on the split tuned on is shown, even if another is better on test."""
    first = results([row(28, 1.4, budget=1.5), row(29, 2.0, budget=2.0)])
    better = row(28.5, 1.1, budget=1.5)
    better["test"]["bleu"] = 3.0
    found = exit_curves(
        [parse_tuning(first), parse_tuning(results([better]), "ours")], seconds=True
    )
    assert [mark.bleu for mark in found[0].points] == [3.0, 28]
    apart = exit_curves(
        [parse_tuning(first), parse_tuning(results([better]), "theirs")], seconds=True
    )
    assert [one.name for one in apart][:2] == ["ours", "theirs"]


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
    held = results([row(28, 1.4, budget=1.5)])
    made = tuning_section(
        [
            parse_tuning(held | same),
            parse_tuning(held | same | {"budget": 0.50}, "b"),
            parse_tuning(held),
        ]
    )
    assert made.tables[0].title.startswith("test (20 sentences), beam 4; BLEU")
    assert ", greedy; BLEU" in tuning_section([parse_tuning(held | {"beam": 1})]).tables[0].title
    other: dict[str, Any] = {
        "beam": 1, "precision": "bf16", "exits": 3, "budget": 1, "split": "dev",
    }  # fmt: skip
    names = ["beam", "precision", "number of exits", "budget width", "split tuned on"]
    for (key, value), name in zip(other.items(), names, strict=True):
        with pytest.raises(ConfigError, match=f"differ in their {name}: .*ours.*{value} .`b`"):
            tuning_section(
                [parse_tuning(held | same), parse_tuning(held | same | {key: value}, "b")]
            )
    with pytest.raises(ConfigError, match="different splits"):
        tuning_section([parse_tuning(held), parse_tuning(held | {"test_sentences": 21})])
