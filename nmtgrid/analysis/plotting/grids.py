"""Source-target grids: heat maps of alignments and READ/WRITE paths, several side by side."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    COLOURS,
    INK,
    PALE,
    Artist,
    Axes,
    Line2D,
    Patch,
    add_legend,
    darker,
    full_title,
    new_picture,
    set_title,
    shortened,
    text_width,
    wrapped,
)

# Side of a cell in inches; font sizes in points.
_CELL, _FONT, _LEAST_FONT = 0.24, 8.5, 3.0
# Inches: above this side the cells shrink.
_LARGEST = 60.0
# Inches that maps side by side may take before the next row.
_PAGE = 15.0
# Inches: a colour bar with its numbers; title and note of a map.
_SCALE, _ABOVE = 0.9, 0.95


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A table [target, source] of shares in [0, 1] or, if `diverging`, of numbers around zero.

    `note` is written under the map, `label` along the scale.
    """

    title: str
    source: Sequence[str]
    target: Sequence[str]
    values: NDArray[Any]
    label: str
    note: str = ""
    diverging: bool = False


def draw_maps(maps: Sequence[HeatMap], path: Path, *, title: str = "") -> None:
    """Draw the maps into `path` (.png or .svg), shares on one scale; darker is more.

    Source units run along the top, target units down the side. Raises ConfigError for another
    kind of file.
    """
    longest = max(max(heat.values.shape) for heat in maps)
    cell = min(_CELL, _LARGEST / longest)
    font = max(_LEAST_FONT, _FONT * cell / _CELL)
    sizes = [_size(heat, cell, font) for heat in maps]
    width, height = max(w for w, _ in sizes), max(h for _, h in sizes)
    across = min(len(maps), max(1, int(_PAGE / width)))
    down = math.ceil(len(maps) / across)
    has_title = bool(full_title(title))
    page = across * width + 0.3, down * height + 0.2 + 0.35 * has_title
    with new_picture(path, page[0] + _SCALE, page[1]) as figure:
        if has_title:
            set_title(figure, title)
        shrink = min(0.8, 3.0 / page[1])
        cells = figure.subplots(down, across, squeeze=False).flatten()
        shares = [
            (axes, heat) for axes, heat in zip(cells, maps, strict=False) if not heat.diverging
        ]
        # Shares have one scale on the page, so that the maps are comparable.
        most = max([1e-6, *(float(heat.values.max(initial=0.0)) for _, heat in shares)])
        for axes, heat in zip(cells, maps, strict=False):
            # Numbers around zero have their own scale, symmetric around zero.
            limit = max(1e-6, float(numpy.abs(heat.values).max(initial=0.0)))
            # One light hue that darkens evenly, or orange against purple around white: legible with
            # any colour vision, the first in grey too.
            scale = ("PuOr_r", -limit, limit) if heat.diverging else ("Blues", 0.0, most)
            extent = (0, heat.values.shape[1], heat.values.shape[0], 0)
            image = axes.imshow(
                heat.values, cmap=scale[0], vmin=scale[1], vmax=scale[2], extent=extent
            )
            source, target = (
                [shortened(unit, 40) for unit in units] for units in (heat.source, heat.target)
            )
            _frame_cells(axes, source, target, len(heat.values), font)
            axes.set_title(wrapped(heat.title, int(width * 72 / 6.2)))
            axes.set_xlabel(heat.note, fontsize=7)
            if heat.diverging or axes is shares[-1][0]:
                beside = [axes] if heat.diverging else [a for a, _ in shares]
                # `panchor=False`, or a colour bar would move its map from the corner to the middle.
                figure.colorbar(image, ax=beside, shrink=shrink, label=heat.label, panchor=False)
        for axes in cells[len(maps) :]:
            axes.set_axis_off()


def _size(heat: HeatMap, cell: float, font: float) -> tuple[float, float]:
    """Return the size in inches of a map with its units next to it."""
    beside, above = (
        0.15 + max((text_width(shortened(unit, 40), font) for unit in units), default=0.2)
        for units in (heat.target, heat.source)
    )
    rows, columns = heat.values.shape
    scale = _SCALE if heat.diverging else 0.0
    return max(beside + columns * cell, 1.2) + scale + 0.2, above + rows * cell + _ABOVE


def _frame_cells(
    axes: Axes, x_labels: Sequence[str], y_labels: Sequence[str], rows: int, font: float
) -> None:
    """Draw a pale grid, and labels at top and left, for a table of cells of side 1 from (0, 0)."""
    columns = len(x_labels)
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", anchor="NW")
    axes.set_xticks([column + 0.5 for column in range(columns)], x_labels, rotation=90)
    axes.set_yticks([row + 0.5 for row in range(len(y_labels))], y_labels)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=3, labelsize=font)
    # Labels are in the middle of cells, lines between them: no minor ticks, which are slower.
    line: dict[str, Any] = {"colors": PALE, "linewidth": 0.5, "zorder": 0.5}
    axes.vlines(range(columns + 1), 0, rows, **line)
    axes.hlines(range(rows + 1), 0, columns, **line)
    axes.spines[:].set(visible=True, color="#bbbbbb")


# Side of a step in inches; font size of a token in points.
_STEP, _TOKEN = 0.235, 8.0
# Maximum characters of a label.
_LETTERS = 18
# Opacity of the colour of source that had been read, and of the ink of a link.
_READ, _STRONG = 0.16, 0.5
# Side of a link's square in cells.
_LINK = 0.62


@dataclasses.dataclass(frozen=True)
class PathGrid:
    """One translation: units or words of both sides, and the delay of each target one.

    `links` (source, target) or `shares` [T, S] are drawn under the path; `style` is the index of
    the colour, that of the grid in its row unless given.
    """

    title: str
    source: Sequence[str]
    target: Sequence[str]
    delays: Sequence[int]
    links: Sequence[tuple[int, int]] = ()
    shares: NDArray[Any] | None = None
    style: int | None = None

    def size(self) -> tuple[float, float]:
        """Return width and height in inches, of the cells and the units next to and above them."""
        beside, above = (
            0.3 + max((text_width(_label(unit), _TOKEN) for unit in units), default=0.3)
            for units in (self.target, self.source)
        )
        # A narrow grid is as wide as its title on two lines.
        cells = max(len(self.source) * _STEP, 0.55 * text_width(self.title, 9.5))
        return beside + cells, above + max(len(self.target), 1) * _STEP


@dataclasses.dataclass(frozen=True)
class GridRow:
    """The grids of one sentence and their title."""

    caption: str
    grids: Sequence[PathGrid]


def draw_paths(rows: Sequence[GridRow], path: Path, *, title: str) -> None:
    """Draw paths as staircases into `path` (.png or .svg).

    Source runs along the top, target down the side. The line runs right for a READ and down for a
    WRITE; the source read when a unit was written is tinted. Raises ConfigError for another kind of
    file.
    """
    columns = max(len(row.grids) for row in rows)
    widths = [
        max(row.grids[column].size()[0] for row in rows if column < len(row.grids))
        for column in range(columns)
    ]
    heights = [0.75 + max(grid.size()[1] for grid in row.grids) for row in rows]
    width = max(sum(widths) + 0.3 * columns, 5.0)
    with new_picture(path, width, sum(heights) + 0.6) as figure:
        # One subfigure per sentence, so that captions are above their own grids.
        pages = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
        for page, row in zip(pages, rows, strict=True):
            caption = wrapped(row.caption, int(width * 72 / (0.6 * _TOKEN)))
            page.suptitle(caption, x=0.01, ha="left", fontsize=_TOKEN, fontweight="normal")
            cells = page.subplots(1, columns, squeeze=False, width_ratios=widths)[0]
            for index, (axes, grid) in enumerate(zip(cells, row.grids, strict=False)):
                _draw_grid(axes, grid, index if grid.style is None else grid.style)
            for axes in cells[len(row.grids) :]:
                axes.set_axis_off()
        # In the first colour, though each system has its own.
        handles: list[Artist] = [
            Line2D(
                [], [], color=COLOURS[0], linewidth=2.0, marker="o", markersize=4.0,
                label="READ right, WRITE down",
            ),
            Patch(facecolor=COLOURS[0], alpha=_READ, label="read by then"),
        ]  # fmt: skip
        if any(grid.links for row in rows for grid in row.grids):
            handles += [
                Patch(facecolor=INK, alpha=_STRONG, label="aligned, and read by then"),
                Patch(facecolor="white", edgecolor=INK, label="aligned, but not read yet"),
            ]
        if any(grid.shares is not None for row in rows for grid in row.grids):
            handles.append(Patch(facecolor=INK, alpha=0.4, label="attention"))
        add_legend(figure, handles, title)


def _draw_grid(axes: Axes, grid: PathGrid, index: int) -> None:
    colour = COLOURS[index % len(COLOURS)]
    letters = int((grid.size()[0] + 0.2) * 72 / (0.68 * 9.5))
    axes.set_title(wrapped(grid.title, letters), color=darker(colour))
    x_labels, y_labels = ([*map(_label, units)] for units in (grid.source, grid.target))
    _frame_cells(axes, x_labels, y_labels, max(len(y_labels), 1), _TOKEN)
    middles = [row + 0.5 for row in range(len(grid.delays))]
    axes.barh(middles, grid.delays, height=1.0, color=colour, alpha=_READ, linewidth=0)
    if grid.shares is not None:
        for row, column in numpy.argwhere(grid.shares >= 0.02).tolist():
            _draw_square(axes, column, row, 1.0, 0.65 * float(grid.shares[row, column]))
    for source, target in grid.links:
        # Filled if it had been read, hollow if not yet.
        strength = _STRONG if source < grid.delays[target] else 0.0
        _draw_square(axes, source, target, _LINK, strength)
    # Drawn above the squares, which are in the tinted cells.
    x, y = staircase(grid.delays)
    axes.plot(x, y, color=colour, linewidth=2.0, clip_on=False, solid_joinstyle="miter")
    axes.plot(
        [delay - 0.5 for delay in grid.delays], middles,
        linestyle="", marker="o", markersize=4.0, color=colour,
    )  # fmt: skip


def _draw_square(axes: Axes, column: int, row: int, side: float, strength: float) -> None:
    """Draw a square of ink in a cell; for strength 0, an outline around white."""
    axes.barh(
        row + 0.5, side, left=column + (1 - side) / 2, height=side, zorder=2,
        color=INK if strength else "white", alpha=min(1.0, strength) or None,
        edgecolor=INK, linewidth=0 if strength else 1.3,
    )  # fmt: skip


def staircase(delays: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the corners of a path: to the right for a READ, down for a WRITE."""
    x, y = [0.0], [0.0]
    for row, delay in enumerate(delays):
        x += [float(delay), float(delay)]
        y += [float(row), float(row + 1)]
    return x, y


def _label(unit: str) -> str:
    return shortened(unit, _LETTERS)
