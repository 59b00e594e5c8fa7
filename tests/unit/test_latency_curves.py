"""Pictures of quality against latency, and of paths: whole files, readable, nothing on top."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nmtgrid.analysis.plotting.paths import GridRow, PathGrid, draw_paths, staircase
from nmtgrid.analysis.plotting.tradeoff import CurvePoint, Level, TradeoffCurve, draw_tradeoff
from nmtgrid.base.errors import ConfigError
from tests.unit.drawn_figures import drawn_figures, text_faults

OURS = TradeoffCurve(
    "ours, wait-k", [CurvePoint((1.0,), 20.0, "k = 1"), CurvePoint((3.0,), 28.0, "3")], "wait-k"
)
THEIRS = TradeoffCurve(
    "theirs, table D.3", [CurvePoint((0.5,), 19.0, "1"), CurvePoint((4.0,), 27.0)], "wait-k", True
)


def draw(path: Path, *curves: TradeoffCurve) -> str:
    draw_tradeoff(
        curves, path, title="Test $x", x_labels=["AL (source tokens)"], y_label="BLEU",
        levels=[Level("ours, ", 30.0)],
    )  # fmt: skip
    return path.read_text() if path.suffix == ".svg" else ""


def test_all_that_is_named_is_written(tmp_path: Path) -> None:
    text = draw(tmp_path / "curve.svg", OURS, THEIRS)
    for name in (
        "ours, wait-k",
        "theirs, table D.3",
        "ours, offline: 30.00",
        "k = 1",
        "AL (source",
    ):
        assert f"<!-- {name}" in text
    assert "#0072b2" in text and "#444444" in text, "ours in colour, theirs in grey"
    assert draw(tmp_path / "again.svg", OURS, THEIRS) == text, "the same values, the same file"


def test_points_without_numbers_are_left_out(tmp_path: Path) -> None:
    lost, gone = CurvePoint((math.nan,), 3.0, "lost"), CurvePoint((2.0,), math.inf, "gone")
    curve = TradeoffCurve("ours, wait-k", [lost, *OURS.points, gone], "wait-k")
    text = draw(tmp_path / "curve.svg", curve)
    assert "lost" not in text and "gone" not in text and "k = 1" in text
    draw(tmp_path / "none.png", TradeoffCurve("nothing", [CurvePoint((math.nan,), 1.0)], "oracle"))
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


def test_other_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw(tmp_path / "curve.pdf", OURS)
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw_paths([GridRow("", [PathGrid("", ["a"], ["b"], [1])])], tmp_path / "x.gif", title="")


def test_labels_keep_off_lines_and_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels of crowded points that have no room are left out; those that stand are free."""
    curves = [
        TradeoffCurve(
            f"system {number}",
            [CurvePoint((float(x),), 20 + x**0.5 + number / 4, f"label {x}") for x in range(12)],
            "wait-k",
        )
        for number in range(4)
    ]
    figures = drawn_figures(monkeypatch)
    draw(tmp_path / "crowded.png", *curves)
    (figure,) = figures
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 0 < len(boxes) < 48 and not text_faults(figure)
    for line in axes.lines:
        path = line.get_transform().transform_path(line.get_path())
        assert not any(path.intersects_bbox(box, filled=False) for box in boxes)


def test_a_staircase_reads_right_and_writes_down() -> None:
    assert staircase([2, 2, 3]) == ([0, 2, 2, 2, 2, 3, 3], [0, 0, 1, 1, 2, 2, 3])
    assert staircase([]) == ([0], [0])


def test_paths_name_units_of_both_sides(tmp_path: Path) -> None:
    grids = [
        PathGrid("agent, τ = 0.5", ["ein", "Haus@@", "tier"], ["a", "pet"], [1, 3]),
        PathGrid("wait-k, k = 1", ["ein", "Haus@@", "tier"], [], []),
    ]
    draw_paths(
        [GridRow("Line 3", grids), GridRow("Line 4", grids[:1])], tmp_path / "p.svg", title="Paths"
    )
    text = (tmp_path / "p.svg").read_text()
    for name in ("Paths", "Line 3", "agent, τ = 0.5", "wait-k, k = 1", "Haus@@", "pet"):
        assert f"<!-- {name} -->" in text
