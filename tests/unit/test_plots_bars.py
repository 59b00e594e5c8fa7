"""What pictures of bars and steps show; no pixels are looked at here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars, draw_steps
from nmtgrid.base.errors import ConfigError
from tests.unit.drawn_figures import drawn_figures, text_faults


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


def test_steps_draw(tmp_path: Path) -> None:
    shares = [[0.0, 10.0, 50.0, 40.0, 0.0], [20.0] * 5]
    for suffix in ("png", "svg"):
        draw_steps(
            ["a", "b"], shares, tmp_path / f"s.{suffix}", title="T", x_label="x", y_label="y"
        )


def test_steps_name_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn_figures(monkeypatch)
    for most in (5, 13, 20):
        shares = [[1.0] * (2 * most + 1)]
        draw_steps(["a"], shares, tmp_path / "s.png", title="T", x_label="x", y_label="y")
        labels = [text.get_text() for text in figures[-1].axes[0].get_xticklabels()]
        assert (labels[0], labels[-1]) == (f"≤ −{most}", f"≥ +{most}") and "0" in labels
        assert not text_faults(figures[-1])


@pytest.mark.parametrize("systems", [1, 2, 8, 20])
@pytest.mark.parametrize("label", ["10–19", "a label that is too long for its place"])
def test_nothing_is_cut_off_and_all_is_named(
    systems: int, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [Group(label, 12_345 * place) for place in range(7)]
    series = [Series(f"a long name of system {place}", [-0.00028, *[30.0] * 6], [-1.0] * 7)
              for place in range(systems)]  # fmt: skip
    figures = drawn_figures(monkeypatch)
    draw_bars(
        groups, series, tmp_path / "x.png", title="A rather long title " * 6, x_label="x",
        y_label="y (percent)",
    )  # fmt: skip
    (figure,) = figures
    assert not text_faults(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [one.name for one in series]
    shown = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert "12,345" in shown[1] and "sentences" in figure.axes[0].get_xlabel()
    looks = {(patch.get_facecolor(), patch.get_hatch()) for patch in legend.get_patches()}
    assert len(looks) == systems


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pdf"):
        draw(tmp_path / "bars.pdf", [Group("a")], [Series("a", [1.0])])
