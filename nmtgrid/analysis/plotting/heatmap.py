"""Heat maps side by side: the alignments of one sentence by several models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    frame_cells,
    new_picture,
    set_title,
    shortened,
    text_width,
    wrapped,
)

# Inches: side of a cell; points.
_CELL, _FONT, _LEAST_FONT = 0.24, 8.5, 3.0
# Inches: beyond this side the cells shrink.
_LARGEST = 60.0
# Inches that maps side by side may take before they go on below.
_PAGE = 15.0
# Inches: a colour bar with its numbers; title and note of a map.
_SCALE, _ABOVE = 0.9, 0.95


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A table [target, source] of shares in [0, 1] or, if `diverging`, of numbers around zero.

    `note` stands under the map, `label` along the scale.
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
    page = across * width + 0.3, down * height + 0.2 + 0.35 * bool(title)
    with new_picture(path, page[0] + _SCALE, page[1]) as figure:
        if title:
            set_title(figure, title)
        shrink = min(0.8, 3.0 / page[1])
        cells = figure.subplots(down, across, squeeze=False).flatten()
        shares = [
            (axes, heat) for axes, heat in zip(cells, maps, strict=False) if not heat.diverging
        ]
        # Shares have one scale on the page, so that the maps compare.
        most = max([1e-6, *(float(heat.values.max(initial=0.0)) for _, heat in shares)])
        for axes, heat in zip(cells, maps, strict=False):
            # Numbers around zero have a scale of their own, even on both sides.
            limit = max(1e-6, float(numpy.abs(heat.values).max(initial=0.0)))
            # One light hue that darkens evenly, or orange against purple around white: read alike
            # with any colour vision, the first in grey too.
            image = axes.imshow(
                heat.values,
                cmap="PuOr_r" if heat.diverging else "Blues",
                vmin=-limit if heat.diverging else 0.0,
                vmax=limit if heat.diverging else most,
                extent=(0, heat.values.shape[1], heat.values.shape[0], 0),
            )
            source, target = (
                [shortened(unit, 40) for unit in units] for units in (heat.source, heat.target)
            )
            frame_cells(axes, source, target, len(heat.values), font)
            axes.set_title(wrapped(heat.title, int(width * 72 / 6.2)))
            axes.set_xlabel(heat.note, fontsize=7)
            if heat.diverging:
                # `panchor=False`: a colour bar would move its map from the corner to the middle.
                figure.colorbar(image, ax=axes, shrink=shrink, label=heat.label, panchor=False)
            elif axes is shares[-1][0]:
                figure.colorbar(
                    image, ax=[a for a, _ in shares], shrink=shrink, label=heat.label, panchor=False
                )
        for axes in cells[len(maps) :]:
            axes.set_axis_off()


def _size(heat: HeatMap, cell: float, font: float) -> tuple[float, float]:
    """Return the inches of a map with its units beside it."""
    beside, above = (
        0.15 + max((text_width(shortened(unit, 40), font) for unit in units), default=0.2)
        for units in (heat.target, heat.source)
    )
    rows, columns = heat.values.shape
    scale = _SCALE if heat.diverging else 0.0
    return max(beside + columns * cell, 1.2) + scale + 0.2, above + rows * cell + _ABOVE
