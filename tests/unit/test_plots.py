"""Heat maps are pictures of the right kind, whole or not there."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import numpy
import pytest

from nmtgrid.analysis.alignment.models import heat
from nmtgrid.analysis.plotting.figure import MissingLetters, as_text
from nmtgrid.analysis.plotting.heatmap import HeatMap, draw_maps
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.cli.app import main
from nmtgrid.search.traces import Trace


def trace(source: int, target: int) -> Trace:
    shares = numpy.full((target + 1, source + 1), 1 / (source + 1), dtype=numpy.float32)
    names = [f"$x_{place}@@" for place in range(source)], [f"y{place}" for place in range(target)]
    return Trace(1, *names, "", [], 0.0, 0.0, shares)


def alignment_map(one: Trace, path: Path, title: str = "") -> None:
    draw_maps([heat("", one)], path, title=title)


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


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    without = Trace(9, ["a"], ["b"], "", [], 0.0, 0.0, None)
    with pytest.raises(InputError, match="line 9 has no alignment"):
        alignment_map(without, tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        alignment_map(trace(1, 1), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def test_letters_that_no_font_has_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A cuneiform sign, which common fonts lack.
    with pytest.warns(MissingLetters, match="1 of the letters in x.png.*\U00012000"):
        one = HeatMap("t", ["a", "\U00012000"], ["b"], numpy.eye(1, 2), "share")
        draw_maps([one], tmp_path / "x.png")
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
    told = capsys.readouterr().err
    assert told.count("warning: No font here has") == 1 and "UserWarning" not in told
