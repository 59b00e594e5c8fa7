"""Distributions of whole numbers around zero: a line of steps for each system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy

from nmtgrid.analysis.plotting.figure import check_suffix, new_figure, save
from nmtgrid.analysis.plotting.lines import INK, PALE
from nmtgrid.analysis.plotting.plots_heads import colour, dash, head_height, name_rows, write_head

_FONT = 8.5
_LEFT, _RIGHT, _BOTTOM = 0.72, 0.2, 0.58
"""Inches around the inside."""
_INSIDE, _HEIGHT = 6.2, 2.7


def draw_steps(
    names: Sequence[str],
    shares: Sequence[Sequence[float]],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> None:
    """Draw the shares of -n, ..., 0, ..., n of each system into `path` (.png or .svg).

    The first and the last stand for all that is as far from zero or farther.
    """
    check_suffix(path)
    rows = name_rows(names, _LEFT + _INSIDE)
    width, height = _LEFT + _INSIDE + _RIGHT, head_height(rows) + _HEIGHT + _BOTTOM
    figure = new_figure(width, height)
    box = (_LEFT / width, _BOTTOM / height, _INSIDE / width, _HEIGHT / height)
    axes = figure.add_axes(box)
    most = len(shares[0]) // 2
    edges = numpy.arange(-most, most + 2) - 0.5
    axes.axvline(0.0, color="#888888", linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    for place, held in enumerate(shares):
        axes.stairs(
            held, edges, color=colour(place), linestyle=dash(place), linewidth=1.5, zorder=3,
            baseline=None,
        )  # fmt: skip
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0.0, 1.06 * max(max(map(max, shares)), 1e-9))
    ticks = _ticks(most)
    axes.set_xticks(ticks, [_label(tick, most) for tick in ticks])
    axes.tick_params(labelsize=_FONT, colors=INK, length=3, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="#888888", linewidth=0.6)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_ylabel(y_label, fontsize=_FONT, color=INK)
    axes.set_xlabel(x_label, fontsize=_FONT, color=INK)
    write_head(figure, title, rows, "line")
    save(figure, path)


def _ticks(most: int) -> list[int]:
    """Return zero, both ends, and round numbers that do not touch them."""
    step = next(one for one in (1, 2, 5, 10, 20, 50, 10**9) if most <= 10 * one)
    inner = [place for place in range(step, most, step) if most - place >= 0.8 * step]
    return sorted({0, -most, most, *inner, *(-place for place in inner)})


def _label(tick: int, most: int) -> str:
    told = f"{tick:+d}".replace("-", "−") if tick else "0"
    return f"≤ {told}" if tick == -most else f"≥ {told}" if tick == most else told
