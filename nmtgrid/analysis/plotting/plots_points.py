"""Systems as points on two scales, each with its name beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.plotting.figure import check_suffix, new_figure, save, text_width
from nmtgrid.analysis.plotting.label_places import Obstacles
from nmtgrid.analysis.plotting.labels import drawable, shortened
from nmtgrid.analysis.plotting.lines import COLOURS, INK, darker, frame

_WIDTH, _HEIGHT = 4.6, 2.9
"""Inches of the inside."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.8, 0.3, 0.5, 0.6
_FONT = 8.5
_LONGEST = 30
"""Characters of a name."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A system's place on both scales."""

    name: str
    x: float
    y: float


def draw_points(
    points: Sequence[Point], path: Path, *, title: str, x_label: str, y_label: str
) -> None:
    """Draw the points into `path` (.png or .svg). Raises ConfigError for another kind of file."""
    check_suffix(path)
    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    figure = new_figure(width, height)
    axes = figure.add_axes((_LEFT / width, _BOTTOM / height, _WIDTH / width, _HEIGHT / height))
    x_limits = _limits([point.x for point in points])
    y_limits = _limits([point.y for point in points])
    axes.set(xlim=x_limits, ylim=y_limits)
    frame(axes, x_label, y_label, _FONT)
    figure.text(
        0.1 / width, 1 - 0.12 / height, drawable(title), fontsize=10, fontweight="bold", color=INK,
        va="top", parse_math=False,
    )  # fmt: skip
    taken = Obstacles(_WIDTH * 72, _HEIGHT * 72)
    places = [
        (_share(point.x, x_limits) * _WIDTH * 72, _share(point.y, y_limits) * _HEIGHT * 72)
        for point in points
    ]
    for place in places:
        taken.add_line([place])
    for number, (point, (x, y)) in enumerate(zip(points, places, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        marker = "osD"[number // len(COLOURS) % 3]
        axes.plot([point.x], [point.y], marker=marker, markersize=5, color=colour, clip_on=False)
        name = shortened(drawable(point.name), _LONGEST)
        box = taken.place(x, y, text_width(name, _FONT) * 72 + 2, _FONT * 1.25)
        if box is not None:
            axes.text(
                (box.left + box.right) / 2 / (_WIDTH * 72),
                (box.low + box.high) / 2 / (_HEIGHT * 72),
                name, transform=axes.transAxes, ha="center", va="center", fontsize=_FONT,
                color=darker(colour), parse_math=False,
            )  # fmt: skip
    save(figure, path)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a scale on which all values have room around them."""
    least, most = min(values), max(values)
    room = 0.15 * (most - least) or 0.1 * abs(most) or 0.1
    return least - room, most + room


def _share(value: float, limits: tuple[float, float]) -> float:
    return (value - limits[0]) / (limits[1] - limits[0])
