"""What stands above a picture: its title, and the systems' names, each behind its colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from nmtgrid.analysis.plotting.figure import Figure, text_width
from nmtgrid.analysis.plotting.labels import drawable, shortened
from nmtgrid.analysis.plotting.lines import COLOURS, INK, darker

_FONT, _ROW = 8.5, 0.18
"""Points: letters; inches: a row of names."""
_SWATCH, _AFTER, _BETWEEN = 0.12, 0.05, 0.17
_LONGEST = 48
"""Letters of a name."""
_HATCHES = ("", "////", "....")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))

Rows = Sequence[Sequence[tuple[int, str]]]
"""Names in rows, each with its place among the systems."""


def name_rows(names: Sequence[str], room: float) -> list[list[tuple[int, str]]]:
    """Return the names in rows that fit into so many inches."""
    rows: list[list[tuple[int, str]]] = []
    used = math.inf
    for place, name in enumerate(names):
        short = shortened(drawable(name), _LONGEST)
        width = _SWATCH + _AFTER + text_width(short, _FONT) + _BETWEEN
        if used + width > room + _BETWEEN:
            rows.append([])
            used = 0.0
        rows[-1].append((place, short))
        used += width
    return rows


def head_height(rows: Rows) -> float:
    """Return the inches that title and names take."""
    return 0.42 + _ROW * len(rows)


def write_head(figure: Figure, title: str, rows: Rows, mark: Literal["bar", "line"]) -> None:
    """Write title and names at the top of the page."""
    width, height = (float(side) for side in figure.get_size_inches())
    whole = title = drawable(title)
    while text_width(title, 11.6) > width - 0.2 and len(title) > 9:
        title = shortened(whole, len(title) - 2)
    top = height - 0.1
    figure.text(
        0.1 / width, top / height, title, fontsize=10, fontweight="bold", color=INK,
        va="top", parse_math=False,
    )  # fmt: skip
    for row, names in enumerate(rows):
        x, y = 0.1, top - 0.3 - row * _ROW
        for place, name in names:
            box = (x / width, (y - 0.045) / height, _SWATCH / width, 0.09 / height)
            _draw_swatch(figure, box, place, mark)
            x += _SWATCH + _AFTER
            figure.text(
                x / width, y / height, name, fontsize=_FONT, va="center_baseline",
                color=darker(colour(place)), parse_math=False,
            )  # fmt: skip
            x += text_width(name, _FONT) + _BETWEEN


def _draw_swatch(
    figure: Figure,
    box: tuple[float, float, float, float],
    place: int,
    mark: Literal["bar", "line"],
) -> None:
    axes = figure.add_axes(box)
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    if mark == "line":
        axes.plot([0, 1], [0.5, 0.5], color=colour(place), linestyle=dash(place), linewidth=1.8)
        return
    axes.bar(
        [0.5], [1.0], width=1.0, color=colour(place), edgecolor="white", linewidth=0,
        hatch=hatch(place),
    )  # fmt: skip


def colour(place: int) -> str:
    """Return the colour of the system at a place."""
    return COLOURS[place % len(COLOURS)]


def hatch(place: int) -> str:
    """Return what tells a bar from the one of the same colour."""
    return _HATCHES[place // len(COLOURS) % len(_HATCHES)]


def dash(place: int) -> str | tuple[int, tuple[float, float]]:
    """Return what tells a line from the one of the same colour."""
    return _DASHES[place // len(COLOURS) % len(_DASHES)]
