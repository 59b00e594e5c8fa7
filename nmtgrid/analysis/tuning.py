"""Quality against what early exit costs: average exit, operations, seconds; panels abreast.

Adaptive decoding has a curve for each system, fixed exits and separately trained decoders one in
dark and light grey; each name stands once, at the right, behind a piece of its line.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nmtgrid.analysis.plotting.figure import (
    Axes,
    check_suffix,
    new_figure,
    save,
    scale_ends,
    text_width,
)
from nmtgrid.analysis.plotting.label_places import Obstacles
from nmtgrid.analysis.plotting.labels import drawable, shortened, spread
from nmtgrid.analysis.plotting.lines import COLOURS, INK, darker, frame

Kind = Literal["adaptive", "fixed", "baseline", "uniform"]

_WIDTH, _HEIGHT = 3.5, 3.3
"""Inches of a panel's inside."""
_LEFT, _BETWEEN, _TOP, _BOTTOM, _GAP, _SAMPLE = 0.7, 0.35, 0.55, 0.6, 0.16, 0.34
_FONT, _SMALL, _LINE = 8.5, 7.0, 10.6
"""Points: letters, those beside markers, and a line of names."""
_LETTERS, _LONGEST = 26, 78
_OTHERS: dict[Kind, tuple[str, Any, str]] = {
    "fixed": ("#444444", "-", "o"),
    "baseline": ("#9a9a9a", (0, (4, 1.4)), "s"),
    "uniform": ("#777777", "", "x"),
}
"""Colour, dashes and marker of what is not adaptive."""
_ADAPTIVE = ("o", "^", "s", "D", "v", "P", "X")
_COLOURS = (*(colour for colour in COLOURS if colour != "#555555"), "#8c564b")
"""Greys are for what is not adaptive."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point: its place in each panel (NaN: it has none there), BLEU in percent, and a label."""

    x: tuple[float, ...]
    y: float
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Points of one system, in order."""

    name: str
    kind: Kind
    marks: Sequence[Mark]


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A curve with its looks."""

    curve: Curve
    colour: str
    dash: Any
    marker: str

    def looks(self) -> dict[str, Any]:
        width = 1.7 if self.curve.kind == "adaptive" else 1.2
        return {
            "color": self.colour,
            "linewidth": width,
            "linestyle": self.dash or "none",
            "marker": self.marker,
            "markersize": 4.4,
            "markerfacecolor": "white",
            "markeredgecolor": self.colour,
            "markeredgewidth": 0.75 * width,
        }


def draw_exit_curves(
    curves: Sequence[Curve], path: Path, *, title: str, x_labels: Sequence[str], y_label: str
) -> None:
    """Draw the curves into `path` (.png or .svg), a panel for each of `x_labels`.

    A panel in which no point has a place is left out. Raises ConfigError for another kind of file.
    """
    check_suffix(path)
    drawn = _styled([one for one in curves if one.marks])
    panels = [
        place
        for place in range(len(x_labels))
        if any(math.isfinite(mark.x[place]) for one in drawn for mark in one.curve.marks)
    ]
    right = _GAP + _SAMPLE + 0.2
    right += max((text_width(_broken(one.curve.name), _FONT) for one in drawn), default=0.0)
    inside = max(len(panels), 1) * (_WIDTH + _BETWEEN) - _BETWEEN
    size = (_LEFT + inside + right, _TOP + _HEIGHT + _BOTTOM)
    figure = new_figure(*size)
    figure.text(
        _LEFT / size[0], 1 - 0.16 / size[1], shortened(drawable(title), 140), fontsize=10,
        fontweight="bold", color=INK, va="top", parse_math=False,
    )  # fmt: skip
    limits = scale_ends([mark.y for one in drawn for mark in one.curve.marks], 0.08, 0.08)
    axes: Axes | None = None
    for number, place in enumerate(panels):
        left = _LEFT + number * (_WIDTH + _BETWEEN)
        box = (left / size[0], _BOTTOM / size[1], _WIDTH / size[0], _HEIGHT / size[1])
        axes = figure.add_axes(box)
        frame(axes, x_labels[place], "" if number else y_label, _FONT)
        if number:
            axes.tick_params(labelleft=False)
        _draw_panel(axes, drawn, place, limits)
    if axes is not None:
        _write_names(axes, drawn, limits)
    save(figure, path)


def _styled(curves: Sequence[Curve]) -> list[_Drawn]:
    found, adaptive = [], 0
    for one in curves:
        if one.kind == "adaptive":
            looks: tuple[str, Any, str] = (
                _COLOURS[adaptive % len(_COLOURS)], "-", _ADAPTIVE[adaptive % len(_ADAPTIVE)],
            )  # fmt: skip
            adaptive += 1
        else:
            looks = _OTHERS[one.kind]
        found.append(_Drawn(one, *looks))
    return found


_Range = tuple[float, float]


def _draw_panel(axes: Axes, drawn: Sequence[_Drawn], place: int, y_limits: _Range) -> None:
    x_limits = scale_ends([m.x[place] for one in drawn for m in one.curve.marks], 0.05, 0.05)
    axes.set_xlim(*x_limits)
    axes.set_ylim(*y_limits)
    obstacles = Obstacles(_WIDTH * 72, _HEIGHT * 72)
    placed = []
    for one in drawn:
        marks = [m for m in one.curve.marks if math.isfinite(m.x[place]) and math.isfinite(m.y)]
        order = 3.0 if one.curve.kind == "adaptive" else 2.0
        axes.plot([m.x[place] for m in marks], [m.y for m in marks], zorder=order, **one.looks())
        points = [
            (_part(m.x[place], x_limits) * _WIDTH * 72, _part(m.y, y_limits) * _HEIGHT * 72)
            for m in marks
        ]
        if one.dash:
            obstacles.add_line(points)
        else:
            for point in points:
                obstacles.add_line([point])
        placed.append((one, marks, points))
    # Ours first: where there is no room, it is the others that go without.
    for one, marks, points in sorted(placed, key=lambda held: held[0].curve.kind != "adaptive"):
        for mark, point in zip(marks, points, strict=True):
            if mark.label:
                _write_mark(axes, obstacles, mark.label, point, darker(one.colour))


def _write_mark(
    axes: Axes, obstacles: Obstacles, label: str, point: tuple[float, float], colour: str
) -> None:
    box = obstacles.place(*point, text_width(label, _SMALL) * 72, _SMALL * 0.95, insist=False)
    if box is None:
        return
    axes.text(
        (box.left + box.right) / 2 / (_WIDTH * 72), (box.low + box.high) / 2 / (_HEIGHT * 72),
        label, transform=axes.transAxes, ha="center", va="center_baseline", fontsize=_SMALL,
        color=colour, parse_math=False, zorder=4,
    )  # fmt: skip


def _write_names(axes: Axes, drawn: Sequence[_Drawn], y_limits: _Range) -> None:
    """Write each name behind a piece of its line, as high as its last point if there is room."""
    texts = [_broken(one.curve.name) for one in drawn]
    heights = [((text.count("\n") + 1) * _LINE + 3.5) / 72 / _HEIGHT for text in texts]
    wanted = [_part(one.curve.marks[-1].y, y_limits) for one in drawn]
    places = spread(wanted, heights, -0.15, 1.12)
    start = 1.0 + _GAP / _WIDTH
    for one, text, place in zip(drawn, texts, places, strict=True):
        ends = [start, start + _SAMPLE / 2 / _WIDTH, start + _SAMPLE / _WIDTH]
        axes.plot(
            ends, [place] * 3, transform=axes.transAxes, clip_on=False, markevery=[1], **one.looks()
        )
        axes.text(
            ends[2] + 0.08 / _WIDTH, place, text, transform=axes.transAxes, va="center",
            fontsize=_FONT, color=darker(one.colour), parse_math=False, linespacing=1.1,
        )  # fmt: skip


def _part(value: float, limits: _Range) -> float:
    return (value - limits[0]) / (limits[1] - limits[0])


def _broken(name: str) -> str:
    text = shortened(drawable(name), _LONGEST)
    return "\n".join(textwrap.wrap(text, _LETTERS, break_on_hyphens=False)) or text
