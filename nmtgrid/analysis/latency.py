"""Quality against latency: one curve a system and policy, published ones in grey underneath."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.plotting.figure import (
    Axes,
    check_suffix,
    new_figure,
    save,
    scale_ends,
    text_width,
)
from nmtgrid.analysis.plotting.label_places import Box, Obstacles
from nmtgrid.analysis.plotting.labels import drawable, shortened, spread
from nmtgrid.analysis.plotting.lines import COLOURS, INK, darker, frame

_Dash = str | tuple[int, tuple[float, ...]]

_WIDTH, _HEIGHT = 5.4, 3.9
"""Inches of the diagram's inside."""
_LEFT, _TOP, _BOTTOM, _GAP, _SAMPLE = 0.7, 0.55, 0.6, 0.16, 0.34
_FONT, _SMALL, _LINE = 8.5, 7.0, 10.6
"""Points: letters, those beside markers, and a line of names."""
_LETTERS, _LONGEST = 30, 84
_GREYS = ("#8a8a8a", "#a3a3a3", "#777777", "#b0b0b0")
_GREY_DASHES: tuple[_Dash, ...] = (
    (0, (4, 1.4)), (0, (1.4, 1.2)), (0, (5, 1.2, 1.2, 1.2)), "-",
)  # fmt: skip
_LEVEL: _Dash = (0, (6, 3))
_MARKERS = {"wait-k": "o", "threshold": "s", "dynamic": "s", "oracle": "^"}


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point: latency, BLEU in percent, and what stands beside it."""

    x: float
    y: float
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Points of one system and policy (wait-k, threshold, oracle, dynamic), in order."""

    name: str
    marks: Sequence[Mark]
    policy: str
    published: bool = False


@dataclasses.dataclass(frozen=True)
class Level:
    """A system's BLEU offline: a dashed line in the colour of its first curve."""

    name: str
    y: float


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A curve or level with its looks, and how high its name belongs, in parts of the panel."""

    name: str
    colour: str
    dash: _Dash
    marker: str
    y: float


def draw_curves(
    curves: Sequence[Curve],
    levels: Sequence[Level],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> None:
    """Draw the curves into `path` (.png or .svg), a level's colour by its place in the curves.

    A level is named like the curve it belongs to, or stands alone. Points that are no numbers are
    left out. Raises ConfigError for another kind of file.
    """
    check_suffix(path)
    texts = [_broken(name) for name in [*(one.name for one in curves), *map(_level_name, levels)]]
    right = _GAP + _SAMPLE + 0.2 + max((text_width(text, _FONT) for text in texts), default=0.0)
    size = (_LEFT + _WIDTH + right, _TOP + _HEIGHT + _BOTTOM)
    figure = new_figure(*size)
    place = (_LEFT / size[0], _BOTTOM / size[1], _WIDTH / size[0], _HEIGHT / size[1])
    axes = figure.add_axes(place)
    frame(axes, x_label, y_label, _FONT)
    figure.text(
        _LEFT / size[0], 1 - 0.16 / size[1], shortened(drawable(title), 96), fontsize=10,
        fontweight="bold", color=INK, va="top", parse_math=False,
    )  # fmt: skip
    kept = [dataclasses.replace(one, marks=_finite(one.marks)) for one in curves]
    limits = _limits(kept, levels)
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    drawn = _draw(axes, kept, limits)
    drawn += _draw_levels(axes, levels, kept, limits)
    _label_marks(axes, kept, levels, limits)
    _write_names(axes, drawn)
    save(figure, path)


_Limits = tuple[tuple[float, float], tuple[float, float]]


def _limits(curves: Sequence[Curve], levels: Sequence[Level]) -> _Limits:
    """Return the ends of both scales: all points, with a little air."""
    marks = [mark for one in curves for mark in one.marks]
    y = [mark.y for mark in marks] + [one.y for one in levels]
    return scale_ends([mark.x for mark in marks], 0.06, 0.04), scale_ends(y, 0.07, 0.07)


def _part(mark: Mark, limits: _Limits) -> tuple[float, float]:
    """Return a point in parts of the panel."""
    (left, right), (low, high) = limits
    return (mark.x - left) / (right - left), (mark.y - low) / (high - low)


def _draw(axes: Axes, curves: Sequence[Curve], limits: _Limits) -> list[_Drawn]:
    ours = [one for one in curves if not one.published and one.marks]
    theirs = [one for one in curves if one.published and one.marks]
    found: list[_Drawn] = []
    for number, one in enumerate(theirs):
        colour = _GREYS[number % len(_GREYS)]
        dash = _GREY_DASHES[number % len(_GREY_DASHES)]
        found.append(_line(axes, one, colour, dash, limits))
    for number, one in enumerate(ours):
        found.append(_line(axes, one, COLOURS[number % len(COLOURS)], "-", limits))
    return found


def _line(axes: Axes, one: Curve, colour: str, dash: _Dash, limits: _Limits) -> _Drawn:
    drawn = _Drawn(
        one.name, colour, dash, _MARKERS.get(one.policy, "o"), _part(one.marks[-1], limits)[1]
    )
    x, y = [mark.x for mark in one.marks], [mark.y for mark in one.marks]
    axes.plot(x, y, zorder=2.0 if one.published else 3.0, **_looks(drawn, one.published))
    return drawn


def _looks(drawn: _Drawn, published: bool) -> dict[str, Any]:
    width = 1.0 if published else 1.7
    return {
        "color": drawn.colour,
        "linewidth": width,
        "linestyle": drawn.dash,
        "marker": drawn.marker,
        "markersize": 3.0 if published else 4.4,
        "markerfacecolor": "white",
        "markeredgecolor": drawn.colour,
        "markeredgewidth": 0.75 * width,
        "solid_capstyle": "round",
    }


def _draw_levels(
    axes: Axes, levels: Sequence[Level], curves: Sequence[Curve], limits: _Limits
) -> list[_Drawn]:
    """Draw each level in the colour of the first of our curves whose name begins like its own."""
    ours = [one.name for one in curves if not one.published and one.marks]
    found = []
    for number, level in enumerate(levels):
        like = [place for place, name in enumerate(ours) if name.startswith(level.name)]
        colour = COLOURS[(like[0] if like else len(ours) + number) % len(COLOURS)]
        axes.axhline(level.y, color=colour, linewidth=1.1, linestyle=_LEVEL, zorder=1.5)
        height = _part(Mark(0.0, level.y), limits)[1]
        found.append(_Drawn(_level_name(level), colour, _LEVEL, "", height))
    return found


def _label_marks(
    axes: Axes, curves: Sequence[Curve], levels: Sequence[Level], limits: _Limits
) -> None:
    """Write what each point is beside it, where there is room; ours before the published."""
    curves = sorted((one for one in curves if one.marks), key=lambda one: one.published)
    obstacles = Obstacles(_WIDTH * 72, _HEIGHT * 72)
    scale = _WIDTH * 72, _HEIGHT * 72
    points = [
        [(x * scale[0], y * scale[1]) for x, y in (_part(mark, limits) for mark in one.marks)]
        for one in curves
    ]
    for line in points:
        obstacles.add_line(line)
    for level in levels:
        height = _part(Mark(0.0, level.y), limits)[1] * scale[1]
        obstacles.add_line([(0.0, height), (scale[0], height)])
    for number, (one, line) in enumerate(zip(curves, points, strict=True)):
        # Ours come first: their place is their colour's.
        colour = "#888888" if one.published else darker(COLOURS[number % len(COLOURS)])
        for mark, (x, y) in zip(one.marks, line, strict=True):
            if not mark.label:
                continue
            size = text_width(mark.label, _SMALL) * 72, _SMALL * 0.95
            box = obstacles.place(x, y, *size, insist=not one.published)
            if box is not None:
                _write(axes, box, mark.label, colour)


def _write(axes: Axes, box: Box, text: str, colour: str) -> None:
    axes.text(
        (box.left + box.right) / 2 / (_WIDTH * 72), (box.low + box.high) / 2 / (_HEIGHT * 72), text,
        transform=axes.transAxes, ha="center", va="center_baseline", fontsize=_SMALL, color=colour,
        parse_math=False, zorder=4,
    )  # fmt: skip


def _write_names(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    """Write each name behind a piece of its line, as high as the line ends if there is room."""
    texts = [_broken(one.name) for one in drawn]
    heights = [((text.count("\n") + 1) * _LINE + 3.5) / 72 / _HEIGHT for text in texts]
    places = spread([one.y for one in drawn], heights, -0.12, 1.08)
    start = 1.0 + _GAP / _WIDTH
    for one, text, place in zip(drawn, texts, places, strict=True):
        ends = [start, start + _SAMPLE / 2 / _WIDTH, start + _SAMPLE / _WIDTH]
        axes.plot(
            ends, [place] * 3, transform=axes.transAxes, clip_on=False, markevery=[1],
            **_looks(one, one.colour in _GREYS),
        )  # fmt: skip
        axes.text(
            ends[2] + 0.08 / _WIDTH, place, text, transform=axes.transAxes, va="center",
            fontsize=_FONT, color=darker(one.colour), parse_math=False, linespacing=1.1,
        )  # fmt: skip


def _finite(marks: Sequence[Mark]) -> list[Mark]:
    return [mark for mark in marks if math.isfinite(mark.x) and math.isfinite(mark.y)]


def _broken(name: str) -> str:
    text = shortened(drawable(name), _LONGEST)
    return "\n".join(textwrap.wrap(text, _LETTERS, break_on_hyphens=False)) or text


def _level_name(level: Level) -> str:
    return f"{level.name}offline: {level.y:.2f}"
