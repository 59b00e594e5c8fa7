"""Exits of several systems side by side: shares at both ends of hypotheses, joint histograms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy

from nmtgrid.analysis.exits import ExitTraces, Histogram
from nmtgrid.analysis.labels import drawable, shortened
from nmtgrid.analysis.plots import Axes, Figure, check_suffix, new_figure, save, text_width
from nmtgrid.analysis.plots_lines import COLOURS, INK, PALE

_FONT, _SMALL = 8.5, 7.0
_GREY = "#888888"
_ACROSS = 3
_LEFT, _GAP, _RIGHT, _TOP, _BOTTOM, _KEY = 0.62, 0.35, 0.15, 0.5, 0.55, 0.3
"""Inches around the insides of the diagrams, and of the line above all."""
_CELL = (0.36, 0.26)
_DARK, _LIGHT = "#08306b", "#fefefe"
"""Letters in cells; they stay as they are whatever the paper's colour."""


def draw_places(systems: Sequence[ExitTraces], path: Path) -> None:
    """Draw the exits at the beginning and near the end of hypotheses, a diagram a system."""
    check_suffix(path)
    most = max(one.num_exits for one in systems)
    width, height = max(1.9, 0.42 * most), 1.8
    figure, axes = _grid(len(systems), (width, height))
    highest = 0.0
    for place, (axis, one) in enumerate(zip(axes, systems, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        _frame(axis, f"{one.system}", f"average exit {one.average_exit:.2f}", width)
        for side, chosen in ((-0.2, one.at_beginning), (0.2, one.near_end)):
            shares = one.distribution(chosen) or [0.0] * one.num_exits
            heights = [100 * share for share in shares]
            highest = max(highest, *heights)
            face = colour if side < 0 else "none"
            axis.bar(
                [exit + side for exit in range(1, one.num_exits + 1)], heights, 0.36,
                facecolor=face, edgecolor=colour, linewidth=1.0,
            )  # fmt: skip
        axis.set_xticks(range(1, most + 1))
        axis.set_xlim(0.4, most + 0.6)
        axis.grid(axis="y", color=PALE, linewidth=0.5)
        axis.set_xlabel("exit (block)", fontsize=_FONT, color=INK)
        if place % _ACROSS == 0:
            axis.set_ylabel("tokens there (percent)", fontsize=_FONT, color=INK)
        else:
            axis.tick_params(labelleft=False)
    for axis in axes:
        axis.set_ylim(0.0, min(100.0, 1.08 * highest))
    _write_key(
        figure,
        "filled: beginning (relative position < 0.1)      outlined: near the end (> 0.9, end "
        "symbol counted)",
    )
    save(figure, path)


def draw_histograms(
    rows: Sequence[tuple[Sequence[Histogram], str, str]], unit: str, path: Path
) -> None:
    """Draw rows of joint histograms (a system each, axis labels) in percent of all `unit`."""
    check_suffix(path)
    count = len(rows[0][0])
    across = min(_ACROSS, count)
    sizes = [
        (_CELL[0] * (len(found[0].edges) - 1), _CELL[1] * max(len(one.rows) for one in found))
        for found, _, _ in rows
    ]
    width = max(size[0] for size in sizes)
    down = -(-count // across)
    heights = [size[1] for size in sizes for _ in range(down)]
    page = (
        _LEFT + across * (width + _GAP) - _GAP + _RIGHT,
        _KEY + sum(heights) + len(heights) * (_TOP + _BOTTOM),
    )
    figure = new_figure(*page)
    reached = page[1] - _KEY
    for (found, x_label, y_label), size in zip(rows, sizes, strict=True):
        greatest = max(float(one.counts.max() / max(one.counts.sum(), 1)) for one in found)
        for place, one in enumerate(found):
            if place % across == 0:
                reached -= _TOP + size[1]
            inner = (size[0], _CELL[1] * len(one.rows))
            start = _LEFT + place % across * (width + _GAP)
            axis = figure.add_axes(_part((start, reached, *inner), page))
            _frame(axis, one.system, "", inner[0])
            _draw_cells(axis, one, greatest)
            axis.set_xlabel(x_label, fontsize=_FONT, color=INK)
            if place % across == 0:
                axis.set_ylabel(y_label, fontsize=_FONT, color=INK)
            if place % across == across - 1 or place == count - 1:
                reached -= _BOTTOM if place % across == across - 1 else 0.0
        if count % across:
            reached -= _BOTTOM
    _write_key(figure, f"percent of all {unit}; an empty cell has none")
    save(figure, path)


def _draw_cells(axis: Axes, one: Histogram, greatest: float) -> None:
    shares = one.counts / max(int(one.counts.sum()), 1)
    shown = numpy.ma.masked_where(one.counts == 0, numpy.sqrt(shares / max(greatest, 1e-9)))
    axis.imshow(shown, cmap="Blues", vmin=0.0, vmax=1.15, origin="lower", aspect="auto")
    for row, column in zip(*numpy.nonzero(one.counts), strict=True):
        percent = 100 * float(shares[row, column])
        axis.text(
            column, row, _told(percent), ha="center", va="center", fontsize=_SMALL - 0.5,
            color=_LIGHT if float(shown[row, column]) > 0.65 else _DARK,
        )  # fmt: skip
    axis.set_yticks(range(len(one.rows)), [f"{row:g}" for row in one.rows])
    edges = [f"{edge:g}" for edge in one.edges]
    axis.set_xticks([place - 0.5 for place in range(len(edges))], edges)
    axis.tick_params(axis="x", labelsize=_SMALL)
    axis.set_xticks([place + 0.5 for place in range(-1, len(edges) - 1)], minor=True)
    axis.set_yticks([place + 0.5 for place in range(-1, len(one.rows))], minor=True)
    axis.grid(which="minor", color=PALE, linewidth=0.4)
    axis.tick_params(which="minor", length=0)


def _told(percent: float) -> str:
    """Return a percentage for a small cell."""
    if percent >= 9.95:
        return f"{percent:.0f}"
    return f"{percent:.1f}" if percent >= 0.05 else "<.1"


def _grid(count: int, inside: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return a page of diagrams as large as each other, so many abreast as fit."""
    across = min(_ACROSS, count)
    down = -(-count // across)
    page = (
        _LEFT + across * (inside[0] + _GAP) - _GAP + _RIGHT,
        _KEY + down * (inside[1] + _TOP + _BOTTOM),
    )
    figure = new_figure(max(page[0], 6.2), page[1])
    size = (max(page[0], 6.2), page[1])
    axes = []
    for place in range(count):
        start = _LEFT + place % across * (inside[0] + _GAP)
        low = page[1] - _KEY - (place // across + 1) * (inside[1] + _TOP + _BOTTOM) + _BOTTOM
        axes.append(figure.add_axes(_part((start, low, *inside), size)))
    return figure, axes


def _part(
    box: tuple[float, float, float, float], page: tuple[float, float]
) -> tuple[float, float, float, float]:
    return box[0] / page[0], box[1] / page[1], box[2] / page[0], box[3] / page[1]


def _frame(axis: Axes, title: str, below: str, width: float) -> None:
    shown = whole = drawable(title)
    while text_width(shown, 10.8) > width and len(shown) > 9:
        shown = shortened(whole, len(shown) - 2)
    axis.set_title(
        shown, loc="left", fontsize=9.5, fontweight="bold", color=INK, parse_math=False,
        pad=17 if below else 5,
    )  # fmt: skip
    if below:
        axis.text(0.0, 1.03, below, transform=axis.transAxes, fontsize=_FONT, color=INK)
    axis.tick_params(labelsize=_FONT, colors=INK, length=2.5, width=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set(color=_GREY, linewidth=0.6)
    axis.set_axisbelow(True)


def _write_key(figure: Figure, text: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        _LEFT / width if text_width(text, _FONT) < width - _LEFT else 0.1 / width,
        1 - 0.18 / height, text, fontsize=_FONT, color=INK, va="center",
    )  # fmt: skip
