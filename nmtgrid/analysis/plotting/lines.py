"""Systems as points on two scales, each with its name beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    Axes,
    Figure,
    Obstacles,
    check_suffix,
    drawable,
    line_labels,
    log_label,
    log_ticks,
    new_figure,
    save,
    shortened,
    spread,
    text_width,
)

# Okabe and Ito's colours without the yellow, which is too light for a line.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#555555", "#56b4e9")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
MOST_LINES = len(COLOURS) * len(_DASHES)
"""Lines that can be told apart."""
_WIDTH, _HEIGHT = 4.1, 2.5
"""Inches of a panel's inside."""
_LEFT, _SECOND, _TOP, _BOTTOM, _GAP = 0.75, 0.72, 0.5, 0.6, 0.28
"""Inches around it; `_SECOND` is a second scale, `_GAP` lies between a line and its name."""
_FONT, _LINE = 8.5, 10.6
"""Points: letters, and a line of them."""
INK, PALE = "#333333", "#dddddd"


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve: `mark` shows its points, `faint` puts it behind the others, without a name."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: int
    faint: bool = False
    mark: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """A diagram of lines; a second scale shows exp(y) if `exponential` names it."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    logarithmic: bool = False
    least: float | None = None
    most: float | None = None
    exponential: str = ""
    level: float | None = None
    """Where to draw a thin line across."""
    whole: bool = False
    """Whether only whole numbers are named under the axis."""


@dataclasses.dataclass(frozen=True)
class HeatPanel:
    """A diagram of positive numbers [rows, points] on a log scale; the first row is the lowest.

    `limits` are the scale's ends, so that maps beside each other compare.
    """

    title: str
    x_label: str
    label: str
    x: Sequence[float]
    rows: Sequence[str]
    values: NDArray[numpy.float64]
    limits: tuple[float, float]


def draw_panels(panels: Sequence[Panel | HeatPanel], path: Path) -> None:
    """Draw the panels on one page into `path`. Raises ConfigError for another kind of file."""
    check_suffix(path)
    names = [line.name for panel in panels if isinstance(panel, Panel) for line in panel.lines]
    labels = line_labels(list(dict.fromkeys(names)), _HEIGHT * 72 / _LINE)
    right = _GAP + 0.1 + max((text_width(text, _FONT) for text in labels.values()), default=0.0)
    columns = min(2, len(panels))
    lefts = [max(_left(panel) for panel in panels[place::columns]) for place in range(columns)]
    right = max(right, *(1.05 if isinstance(panel, HeatPanel) else 0.0 for panel in panels), 0.0)
    starts = [sum(lefts[: place + 1]) + place * (_WIDTH + right) for place in range(columns)]
    rows = [panels[place : place + columns] for place in range(0, len(panels), columns)]
    heights = [max(_inside(panel) for panel in row) + _TOP + _BOTTOM for row in rows]
    size = (starts[-1] + _WIDTH + right, sum(heights))
    figure = new_figure(*size)
    for number, row in enumerate(rows):
        top = sum(heights[number + 1 :]) + heights[number] - _TOP
        for place, panel in enumerate(row):
            start, inside = starts[place], _inside(panel)
            box = (start, top - inside, _WIDTH, inside)
            axes = figure.add_axes(_part(box, size))
            _frame(axes, panel, _WIDTH + right)
            if isinstance(panel, HeatPanel):
                scale = (start + _WIDTH + 0.12, top - inside, 0.13, inside)
                _draw_map(figure, axes, panel, figure.add_axes(_part(scale, size)))
            else:
                _draw_lines(axes, panel, labels)
    save(figure, path)


def frame(axes: Axes, x_label: str, y_label: str, size: float) -> None:
    """Give a diagram of points its labels, in letters of `size`, and a pale grid both ways."""
    axes.set_xlabel(x_label, fontsize=size, color=INK)
    axes.set_ylabel(y_label, fontsize=size, color=INK)
    axes.tick_params(labelsize=size, colors=INK, length=3, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="#888888", linewidth=0.6)
    axes.grid(color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)


def _inside(panel: Panel | HeatPanel) -> float:
    return max(1.0, 0.165 * len(panel.rows)) if isinstance(panel, HeatPanel) else _HEIGHT


def _left(panel: Panel | HeatPanel) -> float:
    if isinstance(panel, HeatPanel):
        return 0.2 + max(text_width(row, _FONT) for row in panel.rows)
    return _LEFT + (_SECOND if panel.exponential else 0.0)


def _part(
    box: tuple[float, float, float, float], size: tuple[float, float]
) -> tuple[float, float, float, float]:
    return box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1]


def _frame(axes: Axes, panel: Panel | HeatPanel, room: float) -> None:
    title = whole = drawable(panel.title)
    while text_width(title, 11.6) > room and len(title) > 9:
        title = shortened(whole, len(title) - 2)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, parse_math=False)
    axes.set_xlabel(panel.x_label, fontsize=_FONT, color=INK)
    axes.tick_params(labelsize=_FONT, colors=INK, length=3, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="#888888", linewidth=0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _draw_lines(axes: Axes, panel: Panel, labels: dict[str, str]) -> None:
    axes.set_ylabel(panel.y_label, fontsize=_FONT, color=INK)
    for line in panel.lines:
        axes.plot(
            line.x, line.y, color=_colour(line.style), linestyle=_dash(line.style),
            linewidth=0.8 if line.faint else 1.6, alpha=0.45 if line.faint else 1.0,
            zorder=2 if line.faint else 3, marker="o" if line.mark or len(line.x) < 4 else "",
            markersize=2.6, solid_capstyle="round",
        )  # fmt: skip
    ends = [max((x for x in line.x), default=0.0) for line in panel.lines]
    axes.set_xlim(0.0, 1.008 * max(max(ends, default=0.0), 1e-9))
    if panel.whole:
        axes.locator_params(axis="x", integer=True)
    least, most = _limits(panel)
    if panel.logarithmic:
        axes.set_yscale("log")
    axes.set_ylim(least, most)
    if panel.logarithmic:
        ticks = log_ticks(least, most)
        axes.set_yticks(ticks, [log_label(tick) for tick in ticks])
        axes.set_yticks([], minor=True)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    if panel.level is not None and least < panel.level < most:
        axes.axhline(panel.level, color="#888888", linewidth=0.8, zorder=1)
    if panel.exponential:
        _second_scale(axes, panel.exponential)
    _name_lines(axes, [line for line in panel.lines if not line.faint], labels)


def _limits(panel: Panel) -> tuple[float, float]:
    """Return the ends of the y scale: all points, with a little air, unless the panel says."""
    held = [y for line in panel.lines for y in line.y if math.isfinite(y)]
    if panel.logarithmic:
        held = [math.log(y) for y in held if y > 0] or [0.0]
    least, most = min(held, default=0.0), max(held, default=1.0)
    # What hardly changes is not blown up.
    air = max(0.05 * (most - least), 0.2 if panel.logarithmic else 0.02 * abs(most)) or 0.5
    least, most = least - air, most + air
    if panel.logarithmic:
        least, most = math.exp(least), math.exp(most)
    least = least if panel.least is None else panel.least
    most = most if panel.most is None else min(most, panel.most)
    return least, max(most, least + 1e-9)


def _second_scale(axes: Axes, label: str) -> None:
    """Show exp(y) further left."""
    least, most = (math.exp(value) for value in axes.get_ylim())
    second = axes.secondary_yaxis(-_SECOND / _WIDTH, functions=(numpy.exp, _logarithm))
    ticks = log_ticks(least, most, 7)
    second.set_yticks(ticks, [log_label(tick) for tick in ticks])
    second.set_yticks([], minor=True)
    second.tick_params(labelsize=_FONT, colors=INK, length=3, width=0.6)
    second.spines["left"].set(color="#888888", linewidth=0.6)
    second.set_ylabel(label, fontsize=_FONT, color=INK)


def _logarithm(values: Any) -> Any:
    # Before its limits are set, a scale asks for the logarithm of zero.
    return numpy.log(numpy.maximum(values, 1e-300))


def _name_lines(axes: Axes, lines: Sequence[Line], labels: dict[str, str]) -> None:
    """Write each line's name beside its last point, names moved apart where they would touch."""
    ends = [_end(axes, line) for line in lines]
    named = [(line, end) for line, end in zip(lines, ends, strict=True) if end is not None]
    heights = [(labels[line.name].count("\n") + 1) * _LINE / 72 / _HEIGHT for line, _ in named]
    places = spread([end[1] for _, end in named], heights, -0.12, 1.05)
    for (line, end), place in zip(named, places, strict=True):
        start = 1.0 + _GAP / _WIDTH
        axes.plot(
            [end[0], start - 0.06 / _WIDTH], [end[1], place], transform=axes.transAxes,
            color="#999999", linewidth=0.7, clip_on=False, linestyle=(0, (1, 2.5)), zorder=2,
        )  # fmt: skip
        axes.text(
            start, place, labels[line.name], transform=axes.transAxes, va="center",
            fontsize=_FONT, color=darker(_colour(line.style)), parse_math=False, linespacing=1.1,
        )  # fmt: skip


def _end(axes: Axes, line: Line) -> tuple[float, float] | None:
    """Return where a line ends, in parts of the panel; None for a line without a point."""
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    if axes.get_yscale() == "log":
        points = [(x, y) for x, y in points if y > 0]
    if not points:
        return None
    x, y = axes.transAxes.inverted().transform(axes.transData.transform(points[-1]))
    return float(x), min(1.0, max(0.0, float(y)))


def _draw_map(figure: Figure, axes: Axes, held: HeatPanel, scale: Axes) -> None:
    with numpy.errstate(divide="ignore", invalid="ignore"):
        logs = numpy.log10(held.values)
    shown = numpy.ma.masked_invalid(logs)
    x = numpy.asarray(held.x, dtype=numpy.float64)
    # A measurement stands for the time since the one before.
    edges = numpy.concatenate([[min(0.0, float(x[0]))], x])
    image = axes.pcolormesh(
        edges, numpy.arange(len(held.rows) + 1), shown, cmap="viridis",
        vmin=math.log10(held.limits[0]), vmax=math.log10(held.limits[1]), rasterized=True,
    )  # fmt: skip
    axes.set_facecolor("#d9d9d9")
    axes.set_yticks(
        numpy.arange(len(held.rows)) + 0.5, held.rows, fontsize=min(_FONT, 7.5), parse_math=False
    )
    axes.tick_params(axis="y", length=0)
    parts = [name.partition(".")[0] for name in held.rows]
    for place in range(1, len(parts)):
        if parts[place] != parts[place - 1]:
            axes.axhline(place, color="white", linewidth=2.5)
    ticks = log_ticks(*held.limits)
    bar = figure.colorbar(image, cax=scale)
    bar.set_ticks([math.log10(t) for t in ticks], labels=[log_label(t) for t in ticks])
    bar.outline.set_visible(False)
    scale.tick_params(labelsize=7.5, colors=INK, length=2, width=0.6)
    scale.minorticks_off()
    bar.set_label(held.label, fontsize=_FONT, color=INK)


def _colour(style: int) -> str:
    return COLOURS[style % len(COLOURS)]


def _dash(style: int) -> str | tuple[int, tuple[float, float]]:
    return _DASHES[style // len(COLOURS) % len(_DASHES)]


def darker(colour: str) -> str:
    """Return a colour dark enough for letters."""
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    light = 0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2]
    factor = min(1.0, 105 / light)
    return "#" + "".join(f"{int(part * factor):02x}" for part in parts)


_POINTS_WIDTH, _POINTS_HEIGHT = 4.6, 2.9
"""Inches of the inside."""
_POINTS_LEFT, _POINTS_RIGHT, _POINTS_TOP, _POINTS_BOTTOM = 0.8, 0.3, 0.5, 0.6
_POINTS_FONT = 8.5
_POINTS_LONGEST = 30
"""Characters of a name."""


@dataclasses.dataclass(frozen=True)
class NamedPoint:
    """A system's place on both scales."""

    name: str
    x: float
    y: float


def draw_points(
    points: Sequence[NamedPoint], path: Path, *, title: str, x_label: str, y_label: str
) -> None:
    """Draw the points into `path` (.png or .svg). Raises ConfigError for another kind of file."""
    check_suffix(path)
    width, height = (
        _POINTS_LEFT + _POINTS_WIDTH + _POINTS_RIGHT,
        _POINTS_TOP + _POINTS_HEIGHT + _POINTS_BOTTOM,
    )
    figure = new_figure(width, height)
    axes = figure.add_axes(
        (
            _POINTS_LEFT / width,
            _POINTS_BOTTOM / height,
            _POINTS_WIDTH / width,
            _POINTS_HEIGHT / height,
        )
    )
    x_limits = _point_limits([point.x for point in points])
    y_limits = _point_limits([point.y for point in points])
    axes.set(xlim=x_limits, ylim=y_limits)
    frame(axes, x_label, y_label, _POINTS_FONT)
    figure.text(
        0.1 / width, 1 - 0.12 / height, drawable(title), fontsize=10, fontweight="bold", color=INK,
        va="top", parse_math=False,
    )  # fmt: skip
    taken = Obstacles(_POINTS_WIDTH * 72, _POINTS_HEIGHT * 72)
    places = [
        (
            _share(point.x, x_limits) * _POINTS_WIDTH * 72,
            _share(point.y, y_limits) * _POINTS_HEIGHT * 72,
        )
        for point in points
    ]
    for place in places:
        taken.add_line([place])
    for number, (point, (x, y)) in enumerate(zip(points, places, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        marker = "osD"[number // len(COLOURS) % 3]
        axes.plot([point.x], [point.y], marker=marker, markersize=5, color=colour, clip_on=False)
        name = shortened(drawable(point.name), _POINTS_LONGEST)
        box = taken.place(x, y, text_width(name, _POINTS_FONT) * 72 + 2, _POINTS_FONT * 1.25)
        if box is not None:
            axes.text(
                (box.left + box.right) / 2 / (_POINTS_WIDTH * 72),
                (box.low + box.high) / 2 / (_POINTS_HEIGHT * 72),
                name, transform=axes.transAxes, ha="center", va="center", fontsize=_POINTS_FONT,
                color=darker(colour), parse_math=False,
            )  # fmt: skip
    save(figure, path)


def _point_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a scale on which all values have room around them."""
    least, most = min(values), max(values)
    room = 0.15 * (most - least) or 0.1 * abs(most) or 0.1
    return least - room, most + room


def _share(value: float, limits: tuple[float, float]) -> float:
    return (value - limits[0]) / (limits[1] - limits[0])
