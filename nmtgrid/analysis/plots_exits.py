"""Exits of several systems side by side: shares at both ends of hypotheses, joint histograms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy

from nmtgrid.analysis.exits import ExitTraces, Histogram
from nmtgrid.analysis.plotting.figure import (
    Axes,
    Figure,
    check_suffix,
    new_figure,
    save,
    text_width,
)
from nmtgrid.analysis.plotting.labels import drawable, shortened
from nmtgrid.analysis.plotting.lines import COLOURS, INK, PALE

_FONT, _SMALL = 8.5, 7.0
_GREY = "#888888"
_ACROSS, _NARROWEST = 3, 3.6
_LEFT, _GAP, _RIGHT, _TOP, _BOTTOM, _KEY = 0.62, 0.35, 0.15, 0.5, 0.55, 0.28
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
            shown = [exit for exit in range(1, one.num_exits + 1) if shares[exit - 1]]
            axis.bar(
                [exit + side for exit in shown], [heights[exit - 1] for exit in shown], 0.36,
                facecolor=face, edgecolor=colour, linewidth=1.0,
            )  # fmt: skip
        axis.set_xticks(range(1, most + 1))
        axis.set_xlim(0.4, most + 0.6)
        axis.grid(axis="y", color=PALE, linewidth=0.5)
        axis.set_xlabel("exit (block)", fontsize=_FONT, color=INK)
        if place % _across(len(systems)) == 0:
            axis.set_ylabel("tokens there (percent)", fontsize=_FONT, color=INK)
        else:
            axis.tick_params(labelleft=False)
    for axis in axes:
        axis.set_ylim(0.0, min(100.0, 1.08 * highest))
    _write_key(
        figure,
        "filled: beginning (relative position < 0.1)",
        "outlined: near the end (> 0.9, end symbol counted)",
    )
    save(figure, path)


def draw_histograms(
    found: Sequence[Histogram], path: Path, *, x_label: str, y_label: str, unit: str
) -> None:
    """Draw joint histograms, a system each, in percent of all its `unit`."""
    check_suffix(path)
    rows = max(_used(one) for one in found)
    inside = (_CELL[0] * (len(found[0].edges) - 1), _CELL[1] * rows)
    figure, axes = _grid(len(found), inside)
    greatest = max(float(one.counts.max() / max(one.counts.sum(), 1)) for one in found)
    across = _across(len(found))
    for place, (axis, one) in enumerate(zip(axes, found, strict=True)):
        _frame(axis, one.system, "", inside[0])
        _draw_cells(axis, one, greatest)
        axis.set_ylim(-0.5, rows - 0.5)
        axis.set_xlabel(x_label, fontsize=_FONT, color=INK)
        if place % across == 0:
            axis.set_ylabel(y_label, fontsize=_FONT, color=INK)
    _write_key(figure, f"percent of all {unit}; an empty cell has none")
    save(figure, path)


def _used(one: Histogram) -> int:
    """Return how many rows to show: all whole exits, of finer rows those up to the last used."""
    if len(one.rows) < 2 or one.rows[1] - one.rows[0] >= 1:
        return len(one.rows)
    return max(4, 1 + max(int(row) for row in numpy.nonzero(one.counts.sum(1))[0]))


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
    across = _across(count)
    down = -(-count // across)
    width = _LEFT + across * (inside[0] + _GAP) - _GAP + _RIGHT
    size = (max(width, _NARROWEST), _KEY + down * (inside[1] + _TOP + _BOTTOM))
    figure = new_figure(*size)
    axes = []
    for place in range(count):
        start = _LEFT + place % across * (inside[0] + _GAP)
        low = size[1] - _KEY - (place // across + 1) * (inside[1] + _TOP + _BOTTOM) + _BOTTOM
        axes.append(figure.add_axes(_part((start, low, *inside), size)))
    return figure, axes


def _across(count: int) -> int:
    """Return how many diagrams stand abreast."""
    return 2 if count == 4 else min(_ACROSS, count)


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


def _write_key(figure: Figure, *texts: str) -> None:
    """Write above the diagrams, on one line if there is room, else on two."""
    width, height = figure.get_size_inches()
    one_line = "      ".join(texts)
    lines = [one_line] if text_width(one_line, _FONT) < width - _LEFT else texts
    for place, text in enumerate(lines):
        figure.text(
            min(_LEFT, max(0.1, width - 0.1 - text_width(text, _FONT))) / width,
            1 - (0.16 + 0.16 * place) / height, text, fontsize=_FONT, color=INK, va="center",
        )  # fmt: skip
