"""Heat maps side by side: the alignments of one sentence by several models."""

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
from nmtgrid.analysis.plotting.lines import INK, PALE

_CELL, _FONT, _LEAST_FONT = 0.24, 8.5, 3.0
"""Inches: side of a cell; points."""
_LARGEST = 60.0
"""Inches: beyond this side the cells shrink."""
_PAGE = 15.0
"""Inches that maps side by side may take before they go on below."""
_EDGE, _BETWEEN, _BAR, _SCALE = 0.2, 0.28, 0.14, 0.62
"""Inches: around the page, between maps, width of a colour bar, and of its numbers."""
_HEAD, _NOTE = 9.5, 7.5
_LONGEST = 40
"""Characters of a label."""


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A table [target, source] of shares in [0, 1] or, if `diverging`, of numbers around zero.

    `note` stands under the title, `label` along the scale.
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
    check_suffix(path)
    longest = max(max(one.values.shape) for one in maps)
    cell = min(_CELL, _LARGEST / longest)
    rows = _rows([_Place.of(one, cell) for one in maps])
    heights = [max(place.height for place in row) for row in rows]
    title = drawable(title)
    wide = max(sum(place.width for place in row) + _BETWEEN * (len(row) - 1) for row in rows)
    size = (
        2 * _EDGE + max(wide, text_width(title, 11.2) if title else 0.0),
        _EDGE + (0.36 if title else 0.0) + sum(heights) + _BETWEEN * (len(rows) - 1),
    )
    figure = new_figure(*size)
    top = size[1] - 0.14
    if title:
        _text(figure, _EDGE, top, title, 10.5, bold=True)
        top -= 0.36
    shares = [float(one.values.max(initial=0.0)) for one in maps if not one.diverging]
    most = max([1e-6, *shares])
    for row, height in zip(rows, heights, strict=True):
        left = _EDGE
        for place in row:
            _draw(figure, place, left, top, most)
            left += place.width + _BETWEEN
        top -= height + _BETWEEN
    save(figure, path)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Sizes in inches: of a map's cells together, and of what stands left of and above them."""

    heat: HeatMap
    font: float
    left: float
    labels: float
    inner: tuple[float, float]
    scale: bool = True

    @classmethod
    def of(cls, heat: HeatMap, cell: float) -> _Place:
        font = max(_LEAST_FONT, _FONT * cell / _CELL)
        left, labels = (
            0.1 + max((text_width(_label(one), font) for one in units), default=0.2)
            for units in (heat.target, heat.source)
        )
        height, width = heat.values.shape
        return cls(heat, font, left, labels, (max(width * cell, 0.6), max(height * cell, 0.9)))

    @property
    def head(self) -> float:
        """Inches of title and note."""
        return (0.2 if self.heat.title else 0.0) + (0.17 if self.heat.note else 0.0)

    @property
    def width(self) -> float:
        """Inches of everything."""
        scale = 0.1 + _BAR + _SCALE if self.scale else 0.0
        names = max(
            text_width(drawable(self.heat.title), 1.12 * _HEAD) if self.heat.title else 0.0,
            text_width(drawable(self.heat.note), _NOTE) if self.heat.note else 0.0,
        )
        return max(self.left + self.inner[0] + scale, names)

    @property
    def height(self) -> float:
        """Inches of everything."""
        return self.head + self.labels + self.inner[1]


def _rows(places: Sequence[_Place]) -> list[list[_Place]]:
    """Return the maps in rows that fit the page; one scale for the shares of a row, its last's."""
    rows: list[list[_Place]] = [[]]
    for place in places:
        used = sum(one.width + _BETWEEN for one in rows[-1])
        if rows[-1] and used + place.width > _PAGE:
            rows.append([])
        if rows[-1] and not place.heat.diverging and not rows[-1][-1].heat.diverging:
            rows[-1][-1] = dataclasses.replace(rows[-1][-1], scale=False)
        rows[-1].append(place)
    return rows


def _draw(figure: Figure, place: _Place, left: float, top: float, most: float) -> None:
    """Draw one map whose upper left corner is (left, top)."""
    heat, size = place.heat, figure.get_size_inches()
    if heat.title:
        _text(figure, left, top, drawable(heat.title), _HEAD, bold=True)
    if heat.note:
        _text(figure, left, top - (0.2 if heat.title else 0.0), drawable(heat.note), _NOTE)
    low = top - place.height
    box = (left + place.left, low, *place.inner)
    axes = figure.add_axes(_part(box, size))
    _frame(axes, heat, place.font)
    if heat.diverging:
        most = max(1e-6, float(numpy.abs(heat.values).max(initial=0.0)))
    # One light hue that darkens evenly, or orange against purple around white: read alike with any
    # colour vision, the first in grey too.
    image = axes.imshow(
        heat.values,
        cmap="PuOr_r" if heat.diverging else "Blues",
        vmin=-most if heat.diverging else 0.0,
        vmax=most,
        aspect="auto",
    )
    if place.scale:
        height = min(place.inner[1], 2.2)
        bar = (box[0] + box[2] + 0.1, low + place.inner[1] - height, _BAR, height)
        scale = figure.add_axes(_part(bar, size))
        figure.colorbar(image, cax=scale).set_label(heat.label, fontsize=_NOTE, color=INK)
        scale.tick_params(labelsize=_NOTE, colors=INK, length=2, width=0.6)
        scale.locator_params(nbins=5)
        for spine in scale.spines.values():
            spine.set(color="#888888", linewidth=0.6)


def _frame(axes: Axes, heat: HeatMap, font: float) -> None:
    height, width = heat.values.shape
    marks: dict[str, Any] = {"fontsize": font, "color": INK, "parse_math": False}
    axes.set_xticks(range(width), [*map(_label, heat.source)], rotation=90, **marks)
    axes.set_yticks(range(height), [*map(_label, heat.target)], **marks)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks([edge - 0.5 for edge in range(width + 1)], minor=True)
    axes.set_yticks([edge - 0.5 for edge in range(height + 1)], minor=True)
    axes.grid(which="minor", color=PALE, linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set(color="#888888", linewidth=0.6)


def _part(box: Sequence[float], size: Any) -> tuple[float, float, float, float]:
    return box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1]


def _label(unit: str) -> str:
    return shortened(drawable(unit), _LONGEST)


def _text(figure: Figure, x: float, y: float, text: str, size: float, bold: bool = False) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        x / width, y / height, text, fontsize=size, color=INK, va="top", parse_math=False,
        fontweight="bold" if bold else "normal",
    )  # fmt: skip
