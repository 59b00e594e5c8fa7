"""What pictures of bars and steps show; no pixels are looked at here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nmtgrid.analysis.plotting import bars as plots_bars
from nmtgrid.analysis.plotting import bars as plots_heads
from nmtgrid.analysis.plotting import bars as plots_steps
from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.plotting.figure import text_width
from nmtgrid.base.errors import ConfigError


def draw(path: Path, groups: list[Group], series: list[Series]) -> str:
    draw_bars(groups, series, path, title="T", x_label="x (units)", y_label="y (percent)")
    return path.read_text() if path.suffix == ".svg" else ""


def size(picture: str) -> tuple[float, float]:
    found = re.search(r'<svg[^>]*?width="([\d.]+)pt"', picture)
    other = re.search(r'<svg[^>]*?height="([\d.]+)pt"', picture)
    assert found and other
    return float(found[1]) / 72, float(other[1]) / 72


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("systems", [1, 3, 9])
def test_bars_draw(suffix: str, systems: int, tmp_path: Path) -> None:
    groups = [Group("< 10", 1234), Group("10–19", 5), Group("≥ 20", 0)]
    series = [
        Series(f"system {place}", [30.0, None, float("nan")], [29.0, None, None], [31.5, None, 2.0])
        for place in range(systems)
    ]
    path = tmp_path / f"bars.{suffix}"
    draw(path, groups, series)
    first = path.read_bytes()
    draw(path, groups, series)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("groups", "values"),
    [
        ([], []),
        (["all"], [None]),
        (["all"], [0.0]),
        (["below", "above"], [-3.0, 2.0]),
        (["a label that is too long for its place"] * 7, [1.0] * 7),
        (["$x_1$ % & <", "漢字\ud800\n"], [1e9, 1e-9]),
    ],
)
def test_odd_bars_draw(groups: list[str], values: list[float | None], tmp_path: Path) -> None:
    held = [Group(label) for label in groups]
    path = tmp_path / "bars.png"
    draw(path, held, [Series("a\ud800$_", values), Series("", values)])
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_page_of_many_bars_is_not_wider_than_paper(tmp_path: Path) -> None:
    groups = [Group(f"{place}–{place + 9}", 100_000) for place in range(0, 70, 10)]
    series = [Series(f"a rather long name {place}" * 3, [30.0] * 7) for place in range(8)]
    width, _ = size(draw(tmp_path / "bars.svg", groups, series))
    assert width < 12


def test_long_numbers_at_the_axis_have_room_beside_its_name(tmp_path: Path) -> None:
    """In a picture of tiny values the page grows by as much as its numbers need."""
    groups = [Group("one"), Group("two")]
    usual, tiny = (
        draw(tmp_path / f"{name}.svg", groups, [Series("a", values)])
        for name, values in (("usual", [3.0, 2.0]), ("tiny", [-0.00028, 0.00021]))
    )
    longest = max(text_width(f"{n / 10_000:.10g}", 8.5) for n in (-2, -1, 1, 2))
    assert size(tiny)[0] - size(usual)[0] >= longest + plots_bars._AXIS - plots_bars._LEFT - 0.01
    assert size(tiny)[0] > size(usual)[0]


def test_sizes_and_interval_are_told(tmp_path: Path) -> None:
    groups = [Group("one", 12_345), Group("two", 6)]
    page = plots_bars._Page.of(groups, [Series("a", [1.0, 2.0])], "sentences")
    assert page.bottom > plots_bars._Page.of([Group("one"), Group("two")], [], "").bottom
    assert page.inside == pytest.approx(2 * page.group)
    assert page.middle(1, 0) == 1.0
    two = plots_bars._Page.of(groups, [Series("a", [1.0]), Series("b", [1.0])], "sentences")
    assert two.middle(0, 1) - two.middle(0, 0) == pytest.approx(two.bar / two.group)


def test_names_fill_rows_in_order() -> None:
    names = [f"system number {place}" for place in range(7)]
    rows = plots_heads.name_rows(names, 4.0)
    assert [name for row in rows for name in row] == list(enumerate(names))
    assert len(rows) > 1
    for row in rows:
        widths = [0.17 + text_width(name, 8.5) for _, name in row]
        assert sum(widths) + 0.17 * (len(row) - 1) <= 4.0 + 1e-6
    assert len({(plots_heads.colour(n), plots_heads.hatch(n)) for n in range(20)}) == 20
    assert len({(plots_heads.colour(n), str(plots_heads.dash(n))) for n in range(20)}) == 20


def test_steps_draw(tmp_path: Path) -> None:
    shares = [[0.0, 10.0, 50.0, 40.0, 0.0], [20.0] * 5]
    for suffix in ("png", "svg"):
        plots_steps.draw_steps(
            ["a", "b"], shares, tmp_path / f"s.{suffix}", title="T", x_label="x", y_label="y"
        )
    assert plots_steps._ticks(5) == list(range(-5, 6))
    assert plots_steps._ticks(13) == [-13, -10, -8, -6, -4, -2, 0, 2, 4, 6, 8, 10, 13]
    assert [plots_steps._label(tick, 5) for tick in (-5, -1, 0, 2, 5)] == [
        "≤ −5", "−1", "0", "+2", "≥ +5",
    ]  # fmt: skip


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pdf"):
        draw(tmp_path / "bars.pdf", [Group("a")], [Series("a", [1.0])])
