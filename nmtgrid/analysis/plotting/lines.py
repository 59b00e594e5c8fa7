"""Diagrams of lines and of maps over time, several on a page, with one legend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    AXIS,
    Axes,
    Figure,
    colour,
    dash,
    line_handles,
    log_label,
    log_ticks,
    new_picture,
    wrapped,
)

# Inches of a diagram, of its labels too.
_WIDTH, _HEIGHT = 5.0, 3.5
# Names that have room on several lines each.
_FEW = 7


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve: `mark` shows its points, `faint` puts it behind the others."""

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
    columns = min(2, len(panels))
    heights = [
        max(
            max(1.0, 0.165 * len(panel.rows)) + 1.0 if isinstance(panel, HeatPanel) else _HEIGHT
            for panel in panels[start : start + columns]
        )
        for start in range(0, len(panels), columns)
    ]
    lines = [line for panel in panels if isinstance(panel, Panel) for line in panel.lines]
    # A system has one look in all diagrams, and stands in the legend once.
    styles = {line.name: line.style for line in lines}
    # Where one look stands for different lines in two diagrams, each diagram has a legend.
    is_shared = len({*styles.values()}) == len(styles) > 0
    size = columns * _WIDTH + (2.4 if is_shared else 0.0), max(sum(heights), 0.18 * len(styles))
    with new_picture(path, *size) as figure:
        cells = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
        for axes, panel in zip(cells.flatten(), panels, strict=False):
            axes.set_title(wrapped(panel.title, 52))
            axes.set_xlabel(panel.x_label)
            axes.xaxis.set_major_formatter("{x:,.10g}")
            if isinstance(panel, HeatPanel):
                _draw_heat(figure, axes, panel)
            else:
                _draw_lines(axes, panel)
                if not is_shared:
                    own = {line.name: line.style for line in panel.lines}
                    axes.legend(handles=line_handles(own, 26, 3))
        for axes in cells.flatten()[len(panels) :]:
            axes.set_axis_off()
        if is_shared:
            # Many names have a line each, lest the legend be taller than the page.
            letters, most = (26, 3) if len(styles) <= _FEW else (30, 1)
            handles = line_handles(styles, letters, most)
            figure.legend(handles=handles, loc="outside right upper")


def _draw_lines(axes: Axes, panel: Panel) -> None:
    axes.set_ylabel(panel.y_label)
    for line in panel.lines:
        axes.plot(
            line.x, line.y, color=colour(line.style), linestyle=dash(line.style),
            linewidth=0.8 if line.faint else 1.6, alpha=0.45 if line.faint else 1.0,
            zorder=2 if line.faint else 3, marker="o" if line.mark or len(line.x) < 4 else "",
            markersize=2.6, solid_capstyle="round",
        )  # fmt: skip
    axes.set_xlim(0.0, 1.008 * max([1e-9, *(x for line in panel.lines for x in line.x)]))
    if panel.whole:
        axes.locator_params(axis="x", integer=True)
    least, most = _limits(panel)
    if panel.logarithmic:
        axes.set_yscale("log")
    axes.set_ylim(least, most)
    if panel.logarithmic:
        axes.set_yticks(log_ticks(least, most))
        axes.set_yticks([], minor=True)
        axes.yaxis.set_major_formatter(log_label)
    axes.grid(axis="y")
    if panel.level is not None and least < panel.level < most:
        axes.axhline(panel.level, color=AXIS, linewidth=0.8, zorder=1)
    if panel.exponential:
        second = axes.secondary_yaxis("right", functions=(numpy.exp, _logarithm))
        second.set_yticks(log_ticks(math.exp(least), math.exp(most), 7))
        second.set_yticks([], minor=True)
        second.yaxis.set_major_formatter(log_label)
        second.set_ylabel(panel.exponential)


def _limits(panel: Panel) -> tuple[float, float]:
    """Return the ends of the y scale: all points, with a little air, unless the panel says."""
    values = [y for line in panel.lines for y in line.y if math.isfinite(y)]
    if panel.logarithmic:
        values = [math.log(y) for y in values if y > 0] or [0.0]
    least, most = min(values, default=0.0), max(values, default=1.0)
    # What hardly changes is not blown up.
    air = max(0.05 * (most - least), 0.2 if panel.logarithmic else 0.02 * abs(most)) or 0.5
    least, most = least - air, most + air
    if panel.logarithmic:
        least, most = math.exp(least), math.exp(most)
    least = least if panel.least is None else panel.least
    most = most if panel.most is None else min(most, panel.most)
    return least, max(most, least + 1e-9)


def _logarithm(values: Any) -> Any:
    # Before its limits are set, a scale asks for the logarithm of zero.
    return numpy.log(numpy.maximum(values, 1e-300))


def _draw_heat(figure: Figure, axes: Axes, panel: HeatPanel) -> None:
    x = numpy.asarray(panel.x, dtype=numpy.float64)
    # A measurement stands for the time since the one before.
    edges = numpy.concatenate([[min(0.0, float(x[0]))], x])
    image = axes.pcolormesh(
        edges, numpy.arange(len(panel.rows) + 1), numpy.ma.masked_invalid(panel.values),
        cmap="viridis", norm="log", vmin=panel.limits[0], vmax=panel.limits[1], rasterized=True,
    )  # fmt: skip
    axes.set_facecolor("#d9d9d9")
    axes.set_yticks(numpy.arange(len(panel.rows)) + 0.5, panel.rows, fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    parts = [name.partition(".")[0] for name in panel.rows]
    for row in range(1, len(parts)):
        if parts[row] != parts[row - 1]:
            axes.axhline(row, color="white", linewidth=2.5)
    bar = figure.colorbar(
        image, ax=axes, label=panel.label, format=log_label, pad=0.02, fraction=0.06
    )
    bar.set_ticks(log_ticks(*panel.limits))
    bar.minorticks_off()
