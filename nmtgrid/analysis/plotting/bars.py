"""Grouped bars and histograms of integers around zero: one colour per system."""

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
    INK,
    Axes,
    MaxNLocator,
    Patch,
    Rectangle,
    add_legend,
    colour,
    dash,
    hatch,
    legend_label,
    line_handles,
    new_picture,
    shortened,
    text_width,
)

# Inches: the width of a page, and the margin next to its bars.
_NARROWEST, _WIDEST, _MARGIN = 5.0, 10.5, 1.0
# Inches: a bar with room for its number, and a letter under the axis.
_BAR, _LETTER = 0.27, 0.07
# Font size of the numbers at bars, in points.
_NUMBER = 6.5
# Opacity of bars of groups that are too small to be reliable.
_PALE = 0.35


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of bars, such as a bucket of sentences, and its size.

    Its bars are pale if that is too small to be reliable (`is_few`).
    """

    label: str
    size: int | None = None
    is_few: bool = False


@dataclasses.dataclass(frozen=True)
class Series:
    """The values of one system, one per group (None: no bar), with intervals `low` to `high`."""

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


def draw_bars(
    groups: Sequence[Group],
    series: Sequence[Series],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    size_label: str = "sentences",
    note: str = "",
) -> None:
    """Draw the bars into `path` (.png or .svg), the systems named above in the order of bars.

    Under each group is its size, if it has one, which is the number of `size_label`; `note` is
    below. Raises ConfigError for another kind of file.
    """
    labels = [shortened(group.label, 24) for group in groups]
    count, number = max(1, len(series)), max(1, len(groups))
    longest = max(map(len, labels), default=0) * _LETTER
    group_width = max(_BAR * count + 0.32, min(longest, 1.6))
    page = min(_WIDEST, max(_NARROWEST, group_width * number + _MARGIN))
    # The actual width of a group on a page of this width.
    group_width = (page - _MARGIN) / number
    bar = min(0.88 / count, _BAR / group_width)
    with new_picture(path, page, 3.7) as figure:
        axes = figure.subplots()
        for index, system in enumerate(series):
            x = numpy.arange(len(groups)) + (index - (count - 1) / 2) * bar
            bars = _draw_series(axes, system, index, x, bar, bar * group_width)
            _draw_pale(axes, [b for b, group in zip(bars, groups, strict=True) if group.is_few])
        # Long labels are slanted, with the size after them instead of below.
        aslant: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        fits = longest <= group_width
        has_sizes = any(group.size is not None for group in groups)
        sized, look = ("{}\n{:,}", {}) if fits else ("{} ({:,})", aslant)
        unsized = "{}\n" if fits and has_sizes else "{}"
        texts = [
            (unsized if group.size is None else sized).format(label, group.size)
            for label, group in zip(labels, groups, strict=True)
        ]
        axes.set_xticks(range(len(groups)), texts, **look)
        axes.set_xlim(-0.5, number - 0.5)
        axes.margins(y=0.09)
        axes.axhline(0.0, color=AXIS, linewidth=0.8, zorder=4)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="x", length=0)
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.grid(axis="y")
        axes.set_ylabel(y_label)
        under = f"\nwith the number of {size_label} in each" if has_sizes else ""
        axes.set_xlabel(f"{x_label}{under}" + (f"\n{note}" if note else ""))
        handles = [
            Patch(
                facecolor=colour(index), edgecolor="white", hatch=hatch(index),
                label=legend_label(system.name, 48),
            )
            for index, system in enumerate(series)
        ]  # fmt: skip
        add_legend(figure, handles, title)


def _draw_series(
    axes: Axes, system: Series, index: int, x: NDArray[Any], bar: float, inches: float
) -> Any:
    """Draw a system's bars at `x`, with their numbers if they fit into `inches`."""
    values = _numbers(system.values)
    # A thin white edge separates bars if colours are lost.
    bars = axes.bar(
        x, values, bar, color=colour(index), edgecolor="white", linewidth=0.6, zorder=3,
        hatch=hatch(index),
    )  # fmt: skip
    if system.low or system.high:
        low, high = (_numbers(ends or system.values) for ends in (system.low, system.high))
        # By their middles: the interval of resampled scores may not contain the score.
        bars.errorbar = axes.errorbar(
            x, (low + high) / 2, (high - low) / 2, fmt="none", ecolor=INK, elinewidth=0.9, zorder=5
        )
    largest = numpy.nanmax(numpy.abs(values), initial=0.0)
    digits = 0 if largest >= 1000 else 1 if largest >= 10 else 2
    # Percents fit: 100, not 100.0.
    texts = [f"{value:z.{0 if abs(value) >= 99.95 else digits}f}" for value in values]
    if max((text_width(text, _NUMBER) for text in texts), default=0.0) < inches:
        axes.bar_label(bars, texts, fontsize=_NUMBER, padding=1.5, zorder=6)
    for position in x[numpy.isnan(values)]:
        axes.annotate("–", (position, 0.0), ha="center", va="bottom", fontsize=_NUMBER)
    return bars


def _draw_pale(axes: Axes, bars: Sequence[Any]) -> None:
    for bar in bars:
        # White behind it, so that no line of the grid shines through.
        size = bar.get_width(), bar.get_height()
        axes.add_patch(Rectangle(bar.get_xy(), *size, color="white", zorder=2))
        bar.set_alpha(_PALE)


def _numbers(values: Sequence[float | None]) -> NDArray[numpy.float64]:
    """Return the values as an array, NaN for None and infinity."""
    numbers = numpy.array([math.nan if value is None else value for value in values], float)
    return numpy.where(numpy.isfinite(numbers), numbers, math.nan)


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

    The first and the last include all values farther from zero.
    """
    most = len(shares[0]) // 2
    edges = numpy.arange(-most, most + 2) - 0.5
    with new_picture(path, 7.1, 3.9) as figure:
        axes = figure.subplots()
        axes.axvline(0.0, color=AXIS, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        for index, values in enumerate(shares):
            axes.stairs(values, edges, color=colour(index), linestyle=dash(index), linewidth=1.5,
                        zorder=3, baseline=None)  # fmt: skip
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0.0, 1.06 * max(max(map(max, shares)), 1e-9))
        inner = MaxNLocator(12, integer=True, steps=[1, 2, 5, 10]).tick_values(-most, most)
        gap = inner[1] - inner[0]
        # Numbers that would touch those at the ends are left out.
        ticks = [-most, *(int(tick) for tick in inner if most - abs(tick) >= 0.8 * gap), most]
        inner_texts = [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks[1:-1]]
        axes.set_xticks(ticks, [f"≤ −{most}", *inner_texts, f"≥ +{most}"])
        axes.grid(axis="y")
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        add_legend(
            figure, line_handles({name: index for index, name in enumerate(names)}, 48), title
        )
