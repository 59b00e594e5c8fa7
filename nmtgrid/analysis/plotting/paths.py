"""READ/WRITE paths through the grid of source and target, over the alignment, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    Axes,
    Figure,
    check_suffix,
    drawable,
    new_figure,
    save,
    shortened,
    text_width,
)
from nmtgrid.analysis.plotting.lines import COLOURS, INK, PALE, darker

_CELL = 0.235
"""Inches."""
_FONT, _NOTE, _HEAD = 8.0, 8.0, 9.0
_LONGEST = 18
"""Characters of a label."""
_EDGE, _BETWEEN, _ABOVE = 0.2, 0.4, 0.3
"""Inches: around the page, between two grids and between two sentences."""
_READ = 0.16
"""How strong the colour of what had been read is."""
_LINK, _STRONG = 0.62, 0.5
"""Side of a link's square in cells, and how strong its ink is."""
_KEY = "■ aligned, and read by then     □ aligned, but not read yet"


@dataclasses.dataclass(frozen=True)
class PathGrid:
    """One translation: units or words of both sides, and the delay of each target one.

    `links` (source, target) or `shares` [T, S] lie under the path; `style` is the colour's place,
    that in the row unless given.
    """

    title: str
    source: Sequence[str]
    target: Sequence[str]
    delays: Sequence[int]
    links: Sequence[tuple[int, int]] = ()
    shares: NDArray[Any] | None = None
    style: int | None = None


@dataclasses.dataclass(frozen=True)
class GridRow:
    """The grids of one sentence, and what stands above them."""

    caption: str
    grids: Sequence[PathGrid]


def draw_paths(rows: Sequence[GridRow], path: Path, *, title: str) -> None:
    """Draw paths as staircases into `path` (.png or .svg).

    Source runs along the top, target down the side. Right along the line is reading, down is
    writing; what had been read when a unit was written is tinted. Raises ConfigError for another
    kind of file.
    """
    check_suffix(path)
    columns = max(len(row.grids) for row in rows)
    lefts = [max(_left(row.grids[place]) for row in rows if place < len(row.grids))
             for place in range(columns)]  # fmt: skip
    widths = [max(_width(row.grids[place]) for row in rows if place < len(row.grids))
              for place in range(columns)]  # fmt: skip
    heights = [_height(row) for row in rows]
    wide = 2 * _EDGE + sum(lefts) + sum(widths) + _BETWEEN * (columns - 1)
    key = _KEY if any(grid.links for row in rows for grid in row.grids) else ""
    captions = max(text_width(text, _NOTE) for text in (*map(_head, rows), key) if text or not key)
    size = (max(wide, captions + 2 * _EDGE, text_width(title, 11.2) + 2 * _EDGE),
            0.45 + sum(heights) + _EDGE + (0.28 if key else 0.0))  # fmt: skip
    figure = new_figure(*size)
    _text(figure, _EDGE, size[1] - 0.16, title, 10, INK, bold=True)
    top = size[1] - 0.45
    if key:
        _text(figure, _EDGE, top, key, _NOTE, INK)
        top -= 0.28
    for row, height in zip(rows, heights, strict=True):
        _text(figure, _EDGE, top, _head(row), _NOTE, "#666666")
        start = _EDGE
        for place, grid in enumerate(row.grids):
            style = place if grid.style is None else grid.style
            colour = COLOURS[style % len(COLOURS)]
            _draw_grid(figure, grid, start + lefts[place], top - 0.28, colour)
            start += lefts[place] + widths[place] + _BETWEEN
        top -= height
    save(figure, path)


def _head(row: GridRow) -> str:
    return shortened(drawable(row.caption), 130)


def _left(grid: PathGrid) -> float:
    return 0.12 + max((text_width(_label(unit), _FONT) for unit in grid.target), default=0.3)


def _width(grid: PathGrid) -> float:
    return max(len(grid.source) * _CELL, 1.12 * text_width(grid.title, _HEAD))


def _over(grid: PathGrid) -> float:
    """Return the height of the source labels in inches."""
    return 0.1 + max((text_width(_label(unit), _FONT) for unit in grid.source), default=0.3)


def _height(row: GridRow) -> float:
    return 0.4 + max(_over(g) + max(len(g.target), 1) * _CELL for g in row.grids) + _ABOVE


def _draw_grid(figure: Figure, grid: PathGrid, left: float, top: float, colour: str) -> None:
    """Draw one grid whose cells begin at `left` and whose title's upper edge is `top`."""
    width, height = figure.get_size_inches()
    shown = (len(grid.source), max(len(grid.target), 1))
    low = top - 0.22 - _over(grid) - shown[1] * _CELL
    axes = figure.add_axes(
        (left / width, low / height, shown[0] * _CELL / width, shown[1] * _CELL / height)
    )
    _text(figure, left, top, grid.title, _HEAD, darker(colour), bold=True)
    _frame(axes, grid)
    for row, delay in enumerate(grid.delays):
        axes.barh(row + 0.5, delay, height=1.0, color=colour, alpha=_READ, linewidth=0)
    _draw_alignment(axes, grid)
    x, y = staircase(grid.delays)
    axes.plot(x, y, color=colour, linewidth=2.0, clip_on=False, solid_joinstyle="miter")
    axes.plot(
        [delay - 0.5 for delay in grid.delays], [row + 0.5 for row in range(len(grid.delays))],
        linestyle="", marker="o", markersize=4.0, color=colour,
    )  # fmt: skip


def _draw_alignment(axes: Axes, grid: PathGrid) -> None:
    """Draw shares as squares of more or less ink; links filled if read, hollow if not yet."""
    if grid.shares is not None:
        for row, column in numpy.argwhere(grid.shares >= 0.02).tolist():
            _square(axes, column, row, 1.0, INK, 0.65 * float(grid.shares[row, column]))
    for source, target in grid.links:
        if source < grid.delays[target]:
            _square(axes, source, target, _LINK, INK, _STRONG)
        else:
            _square(axes, source, target, _LINK, "white", 1.0)
            edge = (1 - _LINK) / 2
            left, right, top, low = (
                source + edge,
                source + 1 - edge,
                target + edge,
                target + 1 - edge,
            )
            axes.plot(
                [left, right, right, left, left], [top, top, low, low, top], color=INK,
                linewidth=1.3, solid_joinstyle="miter",
            )  # fmt: skip


def _square(axes: Axes, column: int, row: int, side: float, colour: str, strength: float) -> None:
    axes.barh(
        row + 0.5, side, left=column + (1 - side) / 2, height=side, color=colour,
        alpha=min(1.0, strength), linewidth=0,
    )  # fmt: skip


def staircase(delays: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the corners of a path: right along what is read, down past what is written."""
    x, y = [0.0], [0.0]
    for row, delay in enumerate(delays):
        x += [float(delay), float(delay)]
        y += [float(row), float(row + 1)]
    return x, y


def _frame(axes: Axes, grid: PathGrid) -> None:
    columns, rows = len(grid.source), max(len(grid.target), 1)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_xticks(
        [place + 0.5 for place in range(columns)], [*map(_label, grid.source)], rotation=90,
        fontsize=_FONT, color=INK, parse_math=False,
    )  # fmt: skip
    axes.set_yticks(
        [place + 0.5 for place in range(len(grid.target))], [*map(_label, grid.target)],
        fontsize=_FONT, color=INK, parse_math=False,
    )  # fmt: skip
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=3)
    axes.set_xticks(range(columns + 1), minor=True)
    axes.set_yticks(range(rows + 1), minor=True)
    axes.grid(which="minor", color=PALE, linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set(color="#bbbbbb", linewidth=0.6)
    axes.set_axisbelow(True)


def _label(unit: str) -> str:
    return shortened(drawable(unit), _LONGEST)


def _text(
    figure: Figure, x: float, y: float, text: str, size: float, colour: str, bold: bool = False
) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        x / width, y / height, text, fontsize=size, color=colour, va="top", parse_math=False,
        fontweight="bold" if bold else "normal",
    )  # fmt: skip
