"""Quality against cost: a curve for each system, in one diagram for each kind of cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nmtgrid.analysis.plotting.figure import (
    COLOURS,
    INK,
    Axes,
    Line2D,
    colour,
    darker,
    label_points,
    legend_label,
    new_picture,
    set_title,
    shortened,
)

Kind = Literal[
    "wait-k", "threshold", "dynamic", "oracle", "adaptive", "fixed", "baseline", "uniform"
]
"""How it is decided when to read, or when to exit."""
_MARKERS: dict[Kind, str] = {
    "wait-k": "o", "threshold": "s", "dynamic": "s", "oracle": "^", "fixed": "o", "baseline": "s",
    "uniform": "x",
}  # fmt: skip
# Markers of adaptive decoders, which are of one kind.
_CYCLE = ("o", "^", "s", "D", "v", "P", "X")
_OURS = (*(colour for colour in COLOURS if colour != "#555555"), "#8c564b")
# Greys are for what is only compared with.
_GREYS = ("#444444", "#8a8a8a", "#777777", "#a3a3a3", "#b0b0b0")
_GREY_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.4)), (0, (1.4, 1.2)), (0, (5, 1.2, 1.2, 1.2)))


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """Its cost in each diagram (NaN: it has none there), BLEU in percent, and a label."""

    costs: tuple[float, ...]
    bleu: float
    label: str = ""


@dataclasses.dataclass(frozen=True)
class TradeoffCurve:
    """Points of one system, in order; `is_reference` is what the others are compared with."""

    name: str
    points: Sequence[CurvePoint]
    kind: Kind
    is_reference: bool = False


@dataclasses.dataclass(frozen=True)
class Level:
    """BLEU offline of the systems whose curves' names begin with `name`: a dashed line."""

    name: str
    bleu: float


def draw_tradeoff(
    curves: Sequence[TradeoffCurve],
    path: Path,
    *,
    title: str,
    x_labels: Sequence[str],
    y_label: str,
    levels: Sequence[Level] = (),
) -> None:
    """Draw the curves into `path` (.png or .svg), a diagram for each of `x_labels`.

    A diagram in which no point has a cost is left out, and so are points that are no numbers.
    Raises ConfigError for another kind of file.
    """
    drawn = []
    for curve in curves:
        points = [
            point
            for point in curve.points
            if math.isfinite(point.bleu) and any(map(math.isfinite, point.costs))
        ]
        drawn += [dataclasses.replace(curve, points=points)] if points else []
    curves = drawn
    shown = [
        index
        for index in range(len(x_labels))
        if any(math.isfinite(point.costs[index]) for curve in curves for point in curve.points)
    ]
    width = 5.3 if len(shown) < 2 else 3.9 * len(shown)
    with new_picture(path, width + 2.7, 4.7) as figure:
        set_title(figure, title)
        panels = figure.subplots(1, max(1, len(shown)), sharey=True, squeeze=False)[0]
        panels[0].set_ylabel(y_label)
        looks = _looks(curves)
        lines: list[Line2D] = []
        for axes, index in zip(panels, shown, strict=False):
            axes.set_xlabel(x_labels[index])
            # Air for the labels of points at the edges.
            axes.margins(0.07)
            lines = [
                _draw_curve(axes, curve, index, look)
                for curve, look in zip(curves, looks, strict=True)
            ]
            lines += [_draw_level(axes, level, curves, looks) for level in levels]
        for axes in panels:
            axes.grid()
        if lines:
            figure.legend(handles=lines, loc="outside right upper", labelspacing=0.6)
        # The legend takes room: where labels fit is known with it alone.
        for axes, index in zip(panels, shown, strict=False):
            # References come last: where there is no room, it is they that go without a label.
            ordered = sorted(zip(curves, looks, strict=True), key=lambda pair: pair[0].is_reference)
            labels = [
                (point.costs[index], point.bleu, point.label, darker(look["color"]))
                for curve, look in ordered
                for point in curve.points
                if math.isfinite(point.costs[index])
            ]
            label_points(axes, labels)


def _looks(curves: Sequence[TradeoffCurve]) -> list[dict[str, Any]]:
    """Return the colour, dashes and marker of each curve: references grey, others in colour."""
    looks = []
    counts = {True: 0, False: 0}
    for curve in curves:
        index = counts[curve.is_reference]
        counts[curve.is_reference] += 1
        tones = _GREYS if curve.is_reference else _OURS
        width = 1.1 if curve.is_reference else 1.7
        dashes = _GREY_DASHES[index % len(_GREY_DASHES)] if curve.is_reference else "-"
        looks.append({
            "color": tones[index % len(tones)],
            "linewidth": width,
            # Random exits are not one way to decode that is varied.
            "linestyle": "none" if curve.kind == "uniform" else dashes,
            "marker": _MARKERS.get(curve.kind) or _CYCLE[index % len(_CYCLE)],
            "markersize": 3.4 if curve.is_reference else 4.4,
            "markerfacecolor": "white",
            "markeredgewidth": 0.75 * width,
            "zorder": 2.0 if curve.is_reference else 3.0,
        })  # fmt: skip
    return looks


def _draw_curve(axes: Axes, curve: TradeoffCurve, index: int, look: dict[str, Any]) -> Line2D:
    points = [point for point in curve.points if math.isfinite(point.costs[index])]
    x, y = [point.costs[index] for point in points], [point.bleu for point in points]
    (line,) = axes.plot(x, y, label=legend_label(curve.name, 30, 3), **look)
    return line


def _draw_level(
    axes: Axes, level: Level, curves: Sequence[TradeoffCurve], looks: Sequence[dict[str, Any]]
) -> Line2D:
    """Draw a level in the colour of the first of our curves whose name begins like its own."""
    tones = [
        look["color"]
        for curve, look in zip(curves, looks, strict=True)
        if not curve.is_reference and curve.name.startswith(level.name)
    ]
    return axes.axhline(
        level.bleu, color=tones[0] if tones else INK, linewidth=1.1, linestyle=(0, (6, 3)),
        zorder=1.5, label=legend_label(f"{level.name}offline: {level.bleu:.2f}", 30, 3),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NamedPoint:
    """A system's place on both scales."""

    name: str
    x: float
    y: float


def draw_points(
    points: Sequence[NamedPoint], path: Path, *, title: str, x_label: str, y_label: str
) -> None:
    """Draw systems as points with their names into `path` (.png or .svg).

    Raises ConfigError for another kind of file.
    """
    with new_picture(path, 5.7, 4.0) as figure:
        set_title(figure, title)
        axes = figure.subplots()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.margins(0.15)
        axes.grid()
        for index, point in enumerate(points):
            axes.plot([point.x], [point.y], marker="osD"[index // len(COLOURS) % 3], markersize=5,
                      color=colour(index))  # fmt: skip
        labels = [
            (point.x, point.y, shortened(point.name, 30), darker(colour(index)))
            for index, point in enumerate(points)
        ]
        label_points(axes, labels, everywhere=True)
