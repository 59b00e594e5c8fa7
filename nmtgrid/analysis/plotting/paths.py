"""READ/WRITE paths through the grid of source and target, over the alignment, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    COLOURS,
    INK,
    Axes,
    Patch,
    add_legend,
    darker,
    frame_cells,
    new_picture,
    shortened,
    text_width,
    wrapped,
)

# Inches; points.
_CELL, _FONT = 0.235, 8.0
# Characters of a label.
_LONGEST = 18
# How strong the colour of what had been read, and the ink of a link, is.
_READ, _STRONG = 0.16, 0.5
# Side of a link's square in cells.
_LINK = 0.62


@dataclasses.dataclass(frozen=True)
class PathGrid:
    """One translation: units or words of both sides, and the delay of each target one.

    `links` (source, target) or `shares` [T, S] lie under the path; `style` is the index of the
    colour, that of the grid in its row unless given.
    """

    title: str
    source: Sequence[str]
    target: Sequence[str]
    delays: Sequence[int]
    links: Sequence[tuple[int, int]] = ()
    shares: NDArray[Any] | None = None
    style: int | None = None

    def size(self) -> tuple[float, float]:
        """Return width and height in inches, of the cells and of the units beside and above."""
        beside, above = (
            0.3 + max((text_width(_label(unit), _FONT) for unit in units), default=0.3)
            for units in (self.target, self.source)
        )
        # A narrow grid takes as much as its title on two lines.
        cells = max(len(self.source) * _CELL, 0.55 * text_width(self.title, 9.5))
        return beside + cells, above + max(len(self.target), 1) * _CELL


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
    columns = max(len(row.grids) for row in rows)
    widths = [
        max(row.grids[column].size()[0] for row in rows if column < len(row.grids))
        for column in range(columns)
    ]
    heights = [0.75 + max(grid.size()[1] for grid in row.grids) for row in rows]
    width = max(sum(widths) + 0.3 * columns, 5.0)
    with new_picture(path, width, sum(heights) + 0.6) as figure:
        # A subfigure a sentence: captions stand above their own grids.
        pages = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
        for page, row in zip(pages, rows, strict=True):
            caption = wrapped(row.caption, int(width * 72 / (0.6 * _FONT)))
            page.suptitle(caption, x=0.01, ha="left", fontsize=_FONT, fontweight="normal")
            cells = page.subplots(1, columns, squeeze=False, width_ratios=widths)[0]
            for index, (axes, grid) in enumerate(zip(cells, row.grids, strict=False)):
                _draw_grid(axes, grid, index if grid.style is None else grid.style)
            for axes in cells[len(row.grids) :]:
                axes.set_axis_off()
        has_links = any(grid.links for row in rows for grid in row.grids)
        handles = [
            Patch(facecolor=INK, alpha=_STRONG, label="aligned, and read by then"),
            Patch(facecolor="white", edgecolor=INK, label="aligned, but not read yet"),
        ]
        add_legend(figure, handles if has_links else [], title)


def _draw_grid(axes: Axes, grid: PathGrid, index: int) -> None:
    colour = COLOURS[index % len(COLOURS)]
    letters = int((grid.size()[0] + 0.2) * 72 / (0.68 * 9.5))
    axes.set_title(wrapped(grid.title, letters), color=darker(colour))
    x_labels, y_labels = ([*map(_label, units)] for units in (grid.source, grid.target))
    frame_cells(axes, x_labels, y_labels, max(len(y_labels), 1), _FONT)
    for row, delay in enumerate(grid.delays):
        axes.barh(row + 0.5, delay, height=1.0, color=colour, alpha=_READ, linewidth=0)
    if grid.shares is not None:
        for row, column in numpy.argwhere(grid.shares >= 0.02).tolist():
            _draw_square(axes, column, row, 1.0, 0.65 * float(grid.shares[row, column]))
    for source, target in grid.links:
        # Filled if it had been read, hollow if not yet.
        strength = _STRONG if source < grid.delays[target] else 0.0
        _draw_square(axes, source, target, _LINK, strength)
    # Above the squares, which lie in the tinted cells.
    x, y = staircase(grid.delays)
    axes.plot(x, y, color=colour, linewidth=2.0, clip_on=False, solid_joinstyle="miter")
    axes.plot(
        [delay - 0.5 for delay in grid.delays], [row + 0.5 for row in range(len(grid.delays))],
        linestyle="", marker="o", markersize=4.0, color=colour,
    )  # fmt: skip


def _draw_square(axes: Axes, column: int, row: int, side: float, strength: float) -> None:
    """Draw a square of ink in a cell; without any strength, its outline around white."""
    axes.barh(
        row + 0.5, side, left=column + (1 - side) / 2, height=side, zorder=2,
        color=INK if strength else "white", alpha=min(1.0, strength) or None,
        edgecolor=INK, linewidth=0 if strength else 1.3,
    )  # fmt: skip


def staircase(delays: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the corners of a path: right along what is read, down past what is written."""
    x, y = [0.0], [0.0]
    for row, delay in enumerate(delays):
        x += [float(delay), float(delay)]
        y += [float(row), float(row + 1)]
    return x, y


def _label(unit: str) -> str:
    return shortened(unit, _LONGEST)
