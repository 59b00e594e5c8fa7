"""Distributions of whole numbers around zero: a line of steps for each system."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeGuard

import numpy

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

_NAME_FONT, _ROW = 8.5, 0.18
"""Points: letters; inches: a row of names."""
_SWATCH, _AFTER, _NAME_GAP = 0.12, 0.05, 0.17
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
        width = _SWATCH + _AFTER + text_width(short, _NAME_FONT) + _NAME_GAP
        if used + width > room + _NAME_GAP:
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
                x / width, y / height, name, fontsize=_NAME_FONT, va="center_baseline",
                color=darker(colour(place)), parse_math=False,
            )  # fmt: skip
            x += text_width(name, _NAME_FONT) + _NAME_GAP


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


_FONT, _SMALL, _LINE = 8.5, 7.0, 0.15
"""Points: letters and small letters; inches: a line of them."""
_LEFT, _RIGHT, _HEIGHT = 0.72, 0.2, 2.5
"""Inches: around the inside, and its height."""
_AXIS = 0.36
"""Inches left of the numbers of the axis, for what they are."""
_NARROWEST, _WIDEST = 4.1, 9.5
_BAR, _LEAST_BAR, _BETWEEN = 0.27, 0.09, 0.16
"""Inches: a bar that has room for its number, the thinnest, and half of what lies between groups"""
_LONGEST_LABEL = 24
"""Letters."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A place on the axis, such as a bucket of sentences, with how much is in it."""

    label: str
    size: int | None = None


@dataclasses.dataclass(frozen=True)
class Series:
    """What one system has in each group (None: no number); `low` to `high` are its intervals."""

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
) -> None:
    """Draw the bars into `path` (.png or .svg), the systems named above in the order of bars."""
    check_suffix(path)
    page = _Page.of(groups, series, size_label)
    figure = new_figure(page.width, page.height)
    axes = figure.add_axes(page.place)
    _frame(axes, y_label)
    for place, one in enumerate(series):
        _draw_series(axes, page, one, place)
    _limits(axes, series, len(groups))
    page = page.beside(axes)
    figure.set_size_inches(page.width, page.height)
    axes.set_position(page.place)
    for place, one in enumerate(series):
        _write_values(axes, page, one, place)
    _write_groups(axes, page, size_label, x_label)
    write_head(figure, title, page.names, "bar")
    save(figure, path)


@dataclasses.dataclass(frozen=True)
class _Page:
    """Sizes in inches: of the page, of what stands on it, and the names above in their rows."""

    groups: Sequence[Group]
    bar: float
    """Width of a bar."""
    group: float
    """From the middle of a group to that of the next."""
    count: int
    left: float
    inside: float
    bottom: float
    labels: float
    """Height of the groups' labels; they stand upright where they are wider than their group."""
    is_upright: bool
    names: Rows

    @classmethod
    def of(cls, groups: Sequence[Group], series: Sequence[Series], size_label: str) -> _Page:
        count, number = max(1, len(series)), max(1, len(groups))
        held = [dataclasses.replace(g, label=_short(g.label, _LONGEST_LABEL)) for g in groups]
        room = (_WIDEST - number * 2 * _BETWEEN) / (number * count)
        bar = max(_LEAST_BAR, min(_BAR, room))
        widest = max((text_width(one.label, _FONT) for one in held), default=0.0)
        sizes = [text_width(f"{one.size:,}", _SMALL) for one in held if one.size is not None]
        group = max(bar * count + 2 * _BETWEEN, max(sizes, default=0.0) + 0.08)
        group = max(group, _NARROWEST / number)
        # Labels a little wider than the bars move the groups apart; long ones stand upright.
        if group < widest + 0.1 and (widest + 0.1) * number <= 1.6 * max(7.0, group * number):
            group = widest + 0.1
        is_upright = widest + 0.06 > group
        labels = widest + 0.06 if is_upright else _LINE
        bottom = 0.1 + labels + (_LINE if sizes else 0.0) + 0.26
        left = max(_LEFT, 0.16 + text_width(size_label, _SMALL) if sizes else 0.0)
        inside = group * number
        names = name_rows([one.name for one in series], left + inside)
        return cls(held, bar, group, count, left, inside, bottom, labels, is_upright, names)

    def beside(self, axes: Axes) -> _Page:
        """Return the page with room at its left for the numbers of the axis."""
        low, high = axes.get_ylim()
        told = [_number(value) for value in axes.get_yticks() if low <= value <= high]
        room = _AXIS + max((text_width(text, _FONT) for text in told), default=0.0)
        return dataclasses.replace(self, left=max(self.left, room))

    @property
    def place(self) -> tuple[float, float, float, float]:
        """Return where the inside lies: left, bottom, width and height as shares of the page."""
        return (
            self.left / self.width, self.bottom / self.height,
            self.inside / self.width, _HEIGHT / self.height,
        )  # fmt: skip

    @property
    def width(self) -> float:
        """Inches of the page."""
        return self.left + self.inside + _RIGHT

    @property
    def head(self) -> float:
        """Inches above the inside."""
        return head_height(self.names)

    @property
    def height(self) -> float:
        """Inches of the page."""
        return self.head + _HEIGHT + self.bottom

    def middle(self, group: int, series: int) -> float:
        """Return where a bar stands, in groups."""
        return group + (series - (self.count - 1) / 2) * self.bar / self.group


def _short(text: str, most: int) -> str:
    return shortened(drawable(text), most)


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _frame(axes: Axes, y_label: str) -> None:
    axes.set_ylabel(y_label, fontsize=_FONT, color=INK)
    axes.tick_params(labelsize=_FONT, colors=INK, length=3, width=0.6)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set(color="#888888", linewidth=0.6)
    axes.yaxis.set_major_formatter(lambda value, _: _number(value))
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.axhline(0.0, color="#888888", linewidth=0.8, zorder=4)


def _draw_series(axes: Axes, page: _Page, one: Series, place: int) -> None:
    held = [(group, value) for group, value in enumerate(one.values) if _is_number(value)]
    middles = [page.middle(group, place) for group, _ in held]
    # A thin white edge tells bars apart where colours are lost.
    axes.bar(
        middles, [value for _, value in held], width=page.bar / page.group,
        color=colour(place), edgecolor="white", linewidth=0.6, zorder=3,
        hatch=hatch(place),
    )  # fmt: skip
    for (group, value), middle in zip(held, middles, strict=True):
        low, high = _interval(one, group, value)
        if low < high:
            axes.plot([middle, middle], [low, high], color=INK, linewidth=0.9, zorder=5)


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _interval(one: Series, group: int, value: float) -> tuple[float, float]:
    """Return the ends of an interval, both `value` where there is none."""
    low = value if one.low is None else one.low[group]
    high = value if one.high is None else one.high[group]
    return value if low is None else low, value if high is None else high


def _limits(axes: Axes, series: Sequence[Series], groups: int) -> None:
    """Show all bars and intervals from zero, with room for numbers above."""
    ends = [0.0]
    for one in series:
        for group, value in enumerate(one.values):
            if _is_number(value):
                ends += _interval(one, group, value)
    span = (max(ends) - min(ends)) or 1.0
    least = min(ends) - (0.09 * span if min(ends) < 0 else 0.0)
    axes.set_ylim(least, max(ends) + (0.09 * span if max(ends) > 0 or least == 0 else 0.0))
    axes.set_xlim(-0.5, max(1, groups) - 0.5)
    axes.set_xticks([])


def _write_values(axes: Axes, page: _Page, one: Series, place: int) -> None:
    """Write numbers above their bars where they fit, a dash for what has none."""
    most = max((abs(v) for v in one.values if _is_number(v)), default=0.0)
    digits = 0 if most >= 1000 else 1 if most >= 10 else 2
    # Percents fit: 100, not 100.0.
    told = [
        f"{v:z.{0 if abs(v) >= 99.95 else digits}f}" if _is_number(v) else "–" for v in one.values
    ]
    fits = max((text_width(text, _SMALL - 0.5) for text in told), default=0.0) < page.bar
    for group, (text, value) in enumerate(zip(told, one.values, strict=True)):
        if not fits and _is_number(value):
            continue
        low, high = _interval(one, group, value) if _is_number(value) else (0.0, 0.0)
        below = _is_number(value) and value < 0
        axes.annotate(
            text, (page.middle(group, place), low if below else high),
            xytext=(0, -1.5 if below else 1.5), textcoords="offset points", ha="center",
            va="top" if below else "bottom", fontsize=_SMALL - 0.5, color=INK, zorder=6,
        )  # fmt: skip


def _write_groups(axes: Axes, page: _Page, size_label: str, x_label: str) -> None:
    def place(inches: float) -> float:
        return -inches / _HEIGHT

    at = axes.get_xaxis_transform()
    sizes = 0.06 + page.labels + 0.02
    for number, group in enumerate(page.groups):
        axes.text(
            number, place(0.06), group.label, transform=at, ha="center", va="top",
            fontsize=_FONT, color=INK, rotation=90 if page.is_upright else 0, parse_math=False,
        )  # fmt: skip
        if group.size is not None:
            axes.text(
                number, place(sizes), f"{group.size:,}", transform=at, ha="center", va="top",
                fontsize=_SMALL, color=INK,
            )  # fmt: skip
    if any(group.size is not None for group in page.groups):
        axes.text(
            -0.06 / page.inside, place(sizes), size_label, transform=axes.transAxes, ha="right",
            va="top", fontsize=_SMALL, color=INK, style="italic", parse_math=False,
        )  # fmt: skip
    axes.text(
        0.5, place(page.bottom - 0.08), x_label, transform=axes.transAxes, ha="center",
        va="bottom", fontsize=_FONT, color=INK, parse_math=False,
    )  # fmt: skip


_STEPS_FONT = 8.5
_STEPS_LEFT, _STEPS_RIGHT, _STEPS_BOTTOM = 0.72, 0.2, 0.58
"""Inches around the inside."""
_STEPS_INSIDE, _STEPS_HEIGHT = 6.2, 2.7


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
    rows = name_rows(names, _STEPS_LEFT + _STEPS_INSIDE)
    width, height = (
        _STEPS_LEFT + _STEPS_INSIDE + _STEPS_RIGHT,
        head_height(rows) + _STEPS_HEIGHT + _STEPS_BOTTOM,
    )
    figure = new_figure(width, height)
    box = (
        _STEPS_LEFT / width,
        _STEPS_BOTTOM / height,
        _STEPS_INSIDE / width,
        _STEPS_HEIGHT / height,
    )
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
    axes.tick_params(labelsize=_STEPS_FONT, colors=INK, length=3, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="#888888", linewidth=0.6)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_ylabel(y_label, fontsize=_STEPS_FONT, color=INK)
    axes.set_xlabel(x_label, fontsize=_STEPS_FONT, color=INK)
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
