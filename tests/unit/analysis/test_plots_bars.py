"""What pictures of bars, steps and heat maps show, whole or not there."""

import re
import struct
import warnings
from pathlib import Path

import numpy
import pytest

from nmtgrid.analysis.alignment.models import heat
from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars, draw_steps
from nmtgrid.analysis.plotting.figure import MissingLetters, as_text, colour, dash, hatch
from nmtgrid.analysis.plotting.grids import HeatMap, draw_maps
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import main
from nmtgrid.search.traces import Trace
from tests.unit.analysis.drawn_figures import drawn_figures, text_faults


def draw(path: Path, groups: list[Group], series: list[Series]) -> str:
    draw_bars(groups, series, path, title="T", x_label="x (units)", y_label="y (percent)")
    return path.read_text() if path.suffix == ".svg" else ""


def width(picture: str) -> float:
    """Return the width of a picture in inches."""
    match = re.search(r'<svg[^>]*?width="([\d.]+)pt"', picture)
    assert match
    return float(match[1]) / 72


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("systems", [1, 3, 9])
def test_bars_draw(suffix: str, systems: int, tmp_path: Path) -> None:
    groups = [Group("< 10", 1234), Group("10–19", 5), Group("≥ 20", 0)]
    series = [
        Series(
            f"system {number}", [30.0, None, float("nan")], [29.0, None, None], [31.5, None, 2.0]
        )
        for number in range(systems)
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
    path = tmp_path / "bars.png"
    series = [Series("a\ud800$_", values), Series("", values)]
    draw(path, [Group(label) for label in groups], series)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_page_of_many_bars_is_not_wider_than_paper(tmp_path: Path) -> None:
    groups = [Group(f"{number}–{number + 9}", 100_000) for number in range(0, 70, 10)]
    series = [Series(f"a rather long name {number}" * 3, [30.0] * 7) for number in range(8)]
    assert width(draw(tmp_path / "bars.svg", groups, series)) < 12


def test_long_numbers_at_the_axis_have_room_beside_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_figures(monkeypatch)
    values: list[float | None] = [-0.00028, 0.00021]
    draw(tmp_path / "x.png", [Group("one"), Group("two")], [Series("a", values)])
    (axes,) = figures[0].axes
    shown = [text.get_text() for text in axes.get_yticklabels()]
    assert any(len(text) >= 6 for text in shown), shown
    name = axes.yaxis.label.get_window_extent()
    assert not any(name.overlaps(text.get_window_extent()) for text in axes.get_yticklabels())
    assert not text_faults(figures[0])


def test_twenty_systems_look_unlike() -> None:
    assert len({(colour(n), hatch(n)) for n in range(20)}) == 20
    assert len({(colour(n), str(dash(n))) for n in range(20)}) == 20


def test_steps_draw(tmp_path: Path) -> None:
    shares = [[0.0, 10.0, 50.0, 40.0, 0.0], [20.0] * 5]
    for suffix in ("png", "svg"):
        path = tmp_path / f"s.{suffix}"
        draw_steps(["a", "b"], shares, path, title="T", x_label="x", y_label="y")
        assert path.stat().st_size > 1000


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
    groups = [Group(label, 12_345 * index) for index in range(7)]
    series = [Series(f"a long name of system {index}", [-0.00028, *[30.0] * 6], [-1.0] * 7)
              for index in range(systems)]  # fmt: skip
    figures = drawn_figures(monkeypatch)
    draw_bars(
        groups, series, tmp_path / "x.png", title="A rather long title " * 6, x_label="x",
        y_label="y (percent)",
    )  # fmt: skip
    (figure,) = figures
    assert not text_faults(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [bars.name for bars in series]
    shown = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert "12,345" in shown[1] and "sentences" in figure.axes[0].get_xlabel()
    looks = {(patch.get_facecolor(), patch.get_hatch()) for patch in legend.get_patches()}
    assert len(looks) == systems


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pdf"):
        draw(tmp_path / "bars.pdf", [Group("a")], [Series("a", [1.0])])
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        alignment_map(trace(1, 1), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def trace(source: int, target: int) -> Trace:
    shares = numpy.full((target + 1, source + 1), 1 / (source + 1), dtype=numpy.float32)
    names = (
        [f"$x_{number}@@" for number in range(source)],
        [f"y{number}" for number in range(target)],
    )
    return Trace(1, *names, "", [], 0.0, 0.0, shares)


def alignment_map(sentence: Trace, path: Path, title: str = "") -> None:
    draw_maps([heat("", sentence)], path, title=title)


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_size_follows_the_lengths(tmp_path: Path) -> None:
    alignment_map(trace(4, 5), tmp_path / "small.png")
    alignment_map(trace(30, 5), tmp_path / "wide.png")
    alignment_map(trace(4, 40), tmp_path / "tall.png")
    small, wide, tall = (size(tmp_path / f"{name}.png") for name in ("small", "wide", "tall"))
    assert wide[0] > 2 * small[0] and tall[1] > 2 * small[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.png", "tall.png", "wide.png"]


def test_svg_keeps_the_marks_and_is_reproducible(tmp_path: Path) -> None:
    for name in ("1.svg", "2.svg"):
        alignment_map(trace(3, 2), tmp_path / name, title="sentence <1> & $2")
    text = (tmp_path / "1.svg").read_text()
    assert "<svg" in text and text == (tmp_path / "2.svg").read_text()
    assert "$x_0@@" in text and "share of the alignment" in text


def test_letters_that_no_font_has_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A cuneiform sign, which common fonts lack.
    with pytest.warns(MissingLetters, match="1 of the letters in x.png.*\U00012000"):
        sentence = HeatMap("t", ["a", "\U00012000"], ["b"], numpy.eye(1, 2), "share")
        draw_maps([sentence], tmp_path / "x.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_maps([HeatMap("t", ["aé", "ß@@"], ["б"], numpy.eye(1, 2), "")], tmp_path / "known.png")
        # In a page letters are text, which the reader's own fonts draw.
        with as_text():
            draw_maps([HeatMap("", ["\U00012000"], ["b"], numpy.eye(1), "")], tmp_path / "x.svg")
    for name in ("text", "reference"):
        (tmp_path / name).write_text("one\n")
    arguments = ["-r", str(tmp_path / "reference"), "--out", str(tmp_path / "y.png")]
    assert main(["analyze", "lengths", f"\U00012000={tmp_path / 'text'}", *arguments]) == 0
    message = capsys.readouterr().err
    assert message.count("warning: No font here has") == 1 and "UserWarning" not in message
