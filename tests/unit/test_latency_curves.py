"""Pictures of quality against latency, and of paths: whole files, readable, nothing on top."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nmtgrid.analysis.latency import Curve, Level, Mark, draw_curves
from nmtgrid.analysis.plotting.figure import Box, Obstacles, scale_ends
from nmtgrid.analysis.plotting.paths import GridRow, PathGrid, draw_paths, staircase
from nmtgrid.base.errors import ConfigError

OURS = Curve("ours, wait-k", [Mark(1.0, 20.0, "k = 1"), Mark(3.0, 28.0, "3")], "wait-k")
THEIRS = Curve("theirs, table D.3", [Mark(0.5, 19.0, "1"), Mark(4.0, 27.0)], "wait-k", True)


def draw(path: Path, *curves: Curve) -> str:
    draw_curves(
        curves, [Level("ours, ", 30.0)], path, title="Test $x", x_label="AL (source tokens)",
        y_label="BLEU",
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
    assert "#0072b2" in text and "#8a8a8a" in text, "ours in colour, theirs in grey"
    assert draw(tmp_path / "again.svg", OURS, THEIRS) == text, "the same values, the same file"


def test_points_without_numbers_are_left_out(tmp_path: Path) -> None:
    marks = [Mark(math.nan, 3.0, "lost"), *OURS.marks, Mark(2.0, math.inf, "gone")]
    text = draw(tmp_path / "curve.svg", Curve("ours, wait-k", marks, "wait-k"))
    assert "lost" not in text and "gone" not in text and "k = 1" in text
    draw(tmp_path / "none.png", Curve("nothing", [Mark(math.nan, 1.0)], "oracle"))
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("x", "y"), [(6.314, 0.0), (0.62, 27.1), (-0.4, 27.1), (0.0, 0.0)])
def test_one_point_has_a_scale_that_can_be_read(x: float, y: float) -> None:
    for value in (x, y):
        low, high = scale_ends([value], 0.05, 0.05)
        assert low < value < high
        assert high - low == pytest.approx(1.1 * (abs(value) / 10 or 1.0))
    assert scale_ends([2.0, math.nan, 4.0], 0.1, 0.25) == (1.8, 4.5)


def test_other_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw(tmp_path / "curve.pdf", OURS)
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw_paths([GridRow("", [PathGrid("", ["a"], ["b"], [1])])], tmp_path / "x.gif", title="")


def test_writing_keeps_off_lines_and_writing() -> None:
    held = Obstacles(100, 100)
    held.add_line([(10, 50), (90, 50)])
    first, second = held.place(50, 50, 10, 6), held.place(50, 50, 10, 6)
    assert first is not None and second is not None
    assert first.low > 50 and second.high < 50 and not first.touches(second)
    for x in range(20, 90, 6):
        held.place(x, 50, 12, 12)
    assert held.place(50, 50, 12, 12, insist=False) is None
    assert held.place(50, 50, 12, 12) is not None
    assert Box(0, 0, 2, 2).holds(1, 1) and not Box(0, 0, 2, 2).touches(Box(2, 0, 3, 1))


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
