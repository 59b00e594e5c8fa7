"""Line plots: curves and maps over time, and quality against cost, one curve per system."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    AXIS,
    COLOURS,
    FONT,
    INK,
    Axes,
    Figure,
    Line2D,
    colour,
    darker,
    dash,
    full_title,
    label_points,
    legend_label,
    line_handles,
    log_label,
    log_ticks,
    new_picture,
    set_title,
    shortened,
    wrapped,
)
from nmtgrid.base.spans import plural

# Inches of a diagram, including its labels.
_WIDTH, _HEIGHT = 5.0, 3.5
# Maximum number of names that may have several lines each.
_FEW = 7
# Maximum number of published curves that have a label at each point.
_FEW_REFERENCES = 4
_SMALL = 7.0
# Minimum number of points among which outliers are identified.
_MANY_POINTS = 12
# Margin around the points of a scale that is cut, as a share of their span, and how much farther
# off (a marker's size) the points left out are.
_AIR, _MARKER = 0.07, 0.03
# The exponential of a larger number overflows a double.
_MOST_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve: `mark` shows its points, `faint` puts it behind the others."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: int
    faint: bool = False
    mark: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """A diagram of lines; a second scale shows exp(y) if `exponential` names it."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    logarithmic: bool = False
    least: float | None = None
    most: float | None = None
    exponential: str = ""
    level: float | None = None
    """The y at which to draw a thin horizontal line."""
    whole: bool = False
    """Whether only whole numbers are labelled on the x axis."""
    places: Sequence[str] = ()
    """Names of x = 0, 1, 2, ..., if these are not numbers on a scale."""
    logarithmic_x: bool = False


@dataclasses.dataclass(frozen=True)
class HeatPanel:
    """A diagram of positive numbers [rows, points] on a log scale; the first row is the lowest.

    `limits` are the scale's ends, so that maps next to each other are comparable.
    """

    title: str
    x_label: str
    label: str
    x: Sequence[float]
    rows: Sequence[str]
    values: NDArray[numpy.float64]
    limits: tuple[float, float]


def draw_panels(panels: Sequence[Panel | HeatPanel], path: Path) -> None:
    """Draw the panels on one page into `path`. Raises ConfigError for another kind of file."""
    columns = min(2, len(panels))
    heights = [
        max(
            max(1.0, 0.165 * len(panel.rows)) + 1.0 if isinstance(panel, HeatPanel) else _HEIGHT
            for panel in panels[start : start + columns]
        )
        for start in range(0, len(panels), columns)
    ]
    lines = [line for panel in panels if isinstance(panel, Panel) for line in panel.lines]
    # A system has one look in all diagrams, and is in the legend once.
    styles = {line.name: line.style for line in lines}
    # If one look is used for different lines in two diagrams, each diagram has a legend.
    is_shared = len({*styles.values()}) == len(styles) > 0
    size = columns * _WIDTH + (2.4 if is_shared else 0.0), max(sum(heights), 0.18 * len(styles))
    with new_picture(path, *size) as figure:
        if full_title(""):
            set_title(figure, "")
        cells = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
        for axes, panel in zip(cells.flatten(), panels, strict=False):
            axes.set_title(wrapped(panel.title, 52))
            axes.set_xlabel(panel.x_label)
            axes.xaxis.set_major_formatter("{x:,.10g}")
            if isinstance(panel, HeatPanel):
                _draw_heat(figure, axes, panel)
            else:
                _draw_lines(axes, panel)
                if not is_shared:
                    own = {line.name: line.style for line in panel.lines}
                    axes.legend(handles=line_handles(own, 26, 3))
        for axes in cells.flatten()[len(panels) :]:
            axes.set_axis_off()
        if is_shared:
            # Many names have one line each, so that the legend is not taller than the page.
            letters, most = (26, 3) if len(styles) <= _FEW else (30, 1)
            handles = line_handles(styles, letters, most)
            figure.legend(handles=handles, loc="outside right upper")


def _draw_lines(axes: Axes, panel: Panel) -> None:
    axes.set_ylabel(panel.y_label)
    for line in panel.lines:
        axes.plot(
            line.x, line.y, color=colour(line.style), linestyle=dash(line.style),
            linewidth=0.8 if line.faint else 1.6, alpha=0.45 if line.faint else 1.0,
            zorder=2 if line.faint else 3, marker="o" if line.mark or len(line.x) < 4 else "",
            markersize=2.6, solid_capstyle="round",
        )  # fmt: skip
    _scale_x(axes, panel)
    least, most = _limits(panel)
    if panel.logarithmic:
        axes.set_yscale("log")
    axes.set_ylim(least, most)
    if panel.logarithmic:
        axes.set_yticks(log_ticks(least, most))
        axes.set_yticks([], minor=True)
        axes.yaxis.set_major_formatter(log_label)
    axes.grid(axis="y")
    if panel.level is not None and least < panel.level < most:
        axes.axhline(panel.level, color=AXIS, linewidth=0.8, zorder=1)
    # Beyond that there is no perplexity to show, but no real loss is that high.
    if panel.exponential and -_MOST_EXPONENT < least < most < _MOST_EXPONENT:

        def logarithm(values: Any) -> Any:
            # Before its limits are set, a scale evaluates the logarithm at zero.
            return numpy.log(numpy.maximum(values, 1e-300))

        second = axes.secondary_yaxis("right", functions=(numpy.exp, logarithm))
        second.set_yticks(log_ticks(math.exp(least), math.exp(most), 7))
        second.set_yticks([], minor=True)
        second.yaxis.set_major_formatter(log_label)
        second.set_ylabel(panel.exponential)


def _scale_x(axes: Axes, panel: Panel) -> None:
    x = [x for line in panel.lines for x in line.x]
    if panel.places:
        axes.set_xticks(range(len(panel.places)), [wrapped(name, 14) for name in panel.places])
        axes.set_xlim(-0.4, len(panel.places) - 0.6)
    elif panel.logarithmic_x:
        least = min((value for value in x if value > 0), default=0.1)
        most = max([least, *x])
        axes.set_xscale("log")
        axes.set_xlim(least / 1.1, most * 1.1)
        axes.set_xticks(log_ticks(least, most, 7))
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(log_label)
    else:
        axes.set_xlim(0.0, 1.008 * max([1e-9, *x]))
        if panel.whole:
            axes.locator_params(axis="x", integer=True)


def _limits(panel: Panel) -> tuple[float, float]:
    """Return the ends of the y scale: all points with a small margin, or those of the panel."""
    values = [y for line in panel.lines for y in line.y if math.isfinite(y)]
    if panel.logarithmic:
        values = [math.log(y) for y in values if y > 0] or [0.0]
    least, most = min(values, default=0.0), max(values, default=1.0)
    # Values that hardly change are not magnified.
    air = max(0.05 * (most - least), 0.2 if panel.logarithmic else 0.02 * abs(most)) or 0.5
    least, most = least - air, most + air
    if panel.logarithmic:
        least, most = math.exp(least), math.exp(most)
    least = least if panel.least is None else panel.least
    most = most if panel.most is None else min(most, panel.most)
    return least, max(most, least + 1e-9)


def _draw_heat(figure: Figure, axes: Axes, panel: HeatPanel) -> None:
    x = numpy.asarray(panel.x, dtype=numpy.float64)
    # A measurement represents the time since the previous one.
    edges = numpy.concatenate([[min(0.0, float(x[0]))], x])
    image = axes.pcolormesh(
        edges, numpy.arange(len(panel.rows) + 1), numpy.ma.masked_invalid(panel.values),
        cmap="viridis", norm="log", vmin=panel.limits[0], vmax=panel.limits[1], rasterized=True,
    )  # fmt: skip
    axes.set_facecolor("#d9d9d9")
    axes.set_yticks(numpy.arange(len(panel.rows)) + 0.5, panel.rows, fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    parts = [name.partition(".")[0] for name in panel.rows]
    for row in range(1, len(parts)):
        if parts[row] != parts[row - 1]:
            axes.axhline(row, color="white", linewidth=2.5)
    bar = figure.colorbar(
        image, ax=axes, label=panel.label, format=log_label, pad=0.02, fraction=0.06
    )
    bar.set_ticks(log_ticks(*panel.limits))
    bar.minorticks_off()


# Markers by how READs or exits are decided; other kinds get the remaining markers in order.
_MARKERS = {
    "wait-k": "o", "threshold": "s", "dynamic": "s", "oracle": "^", "fixed": "o", "baseline": "s",
    "uniform": "x", "verified": "D",
}  # fmt: skip
_CYCLE = ("o", "^", "s", "D", "v", "P", "X", "<", "p", "*", ">", "d", "h")
_OURS = (*(colour for colour in COLOURS if colour != "#555555"), "#8c564b")
# Greys are for references.
_GREYS = ("#444444", "#8a8a8a", "#777777", "#a3a3a3", "#b0b0b0")
_GREY_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.4)), (0, (1.4, 1.2)), (0, (5, 1.2, 1.2, 1.2)))


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """A point: its cost in each diagram (NaN: none), BLEU in percent, and a label."""

    costs: tuple[float, ...]
    bleu: float
    label: str = ""


@dataclasses.dataclass(frozen=True)
class TradeoffCurve:
    """The points of one system, in order; `is_reference` marks baselines and published curves.

    `short` is written next to the curve, its whole name in the legend. `swept` is what varies along
    it: the first label that is written says `k = 3`, the others only their values.
    """

    name: str
    points: Sequence[CurvePoint]
    kind: str
    is_reference: bool = False
    short: str = ""
    swept: str = ""


@dataclasses.dataclass(frozen=True)
class Level:
    """Offline BLEU of the systems whose curves' names begin with `name`: a dashed line."""

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

    A diagram in which no point has a cost is left out, and so are points with NaN. A few points far
    below all others (`_ends`) would flatten the curves: the scales begin above them, and a note
    counts them. No curve loses all its points. Raises ConfigError for another kind of file.
    """
    curves = [
        dataclasses.replace(curve, points=points)
        for curve in curves
        if (points := [point for point in curve.points if _is_number(point)])
    ]
    shown = [index for index in range(len(x_labels)) if any(_points(c, index) for c in curves)]
    ends = _ends(curves, shown, levels)
    references = [curve for curve in curves if curve.is_reference]
    # Many curves are close to each other, and their legend is long.
    is_crowded = len(references) > _FEW_REFERENCES
    width = 5.3 if len(shown) < 2 else 3.9 * len(shown)
    size = (width + 4.4, 6.6) if is_crowded else (width + 2.7, 4.7)
    with new_picture(path, *size) as figure:
        set_title(figure, title)
        panels = figure.subplots(1, max(1, len(shown)), sharey=True, squeeze=False)[0]
        panels[0].set_ylabel(y_label)
        looks = _looks(curves)
        lines: list[Line2D] = []
        for axes, index in zip(panels, shown, strict=False):
            axes.set_xlabel(x_labels[index])
            # A margin for the labels of points at the edges.
            axes.margins(0.07)
            lines = []
            for curve, look in zip(curves, looks, strict=True):
                own = _points(curve, index)
                x, y = [point.costs[index] for point in own], [point.bleu for point in own]
                letters = 40 if curve.is_reference else 30
                lines += axes.plot(x, y, label=legend_label(curve.name, letters, 3), **look)
            lines += [_draw_level(axes, level, curves, looks) for level in levels]
            _begin_at(axes, [p for curve in curves for p in _points(curve, index)], index, ends)
        for axes in panels:
            axes.grid()
        if lines:
            legend = figure.legend(handles=lines, loc="outside right upper", labelspacing=0.6)
            for text, curve in zip(legend.get_texts(), curves, strict=False):
                text.set_fontsize(_SMALL if curve.is_reference else FONT)
        # The legend takes room, so where labels fit is known only after it is drawn.
        for axes, index in zip(panels, shown, strict=False):
            visible = [
                dataclasses.replace(curve, points=[p for p in curve.points if p.bleu >= ends[0]])
                for curve in curves
            ]
            _label_curves(axes, index, visible, looks, names_alone=is_crowded)


def _ends(
    curves: Sequence[TradeoffCurve], shown: Sequence[int], levels: Sequence[Level]
) -> tuple[float, float]:
    """Return the least BLEU to show (of many values, without low outliers) and the greatest.

    A low outlier is more than 1.5 interquartile ranges below the first quartile (Tukey, 1977). The
    best point of each curve in each diagram is never one, and neither is a level. Outliers are
    shown unless they span more than the other values.
    """
    values = [point.bleu for curve in curves for point in curve.points]
    kept = [max(p.bleu for p in own) for c in curves for i in shown if (own := _points(c, i))]
    kept += [level.bleu for level in levels]
    lowest, top = min(values, default=0.0), max(kept, default=0.0)
    if len(values) < _MANY_POINTS:
        return lowest, top
    first, _, third = statistics.quantiles(values, method="inclusive")
    fence, least = min(first - 1.5 * (third - first), *kept), top
    for value in sorted([*values, *kept], reverse=True):
        # Points left out must be outside the scale, which begins a little below the least.
        if value >= min(fence, least - (_AIR + _MARKER) * (top - least)):
            least = value
    return least if least - lowest > top - least else lowest, top


def _begin_at(
    axes: Axes, points: Sequence[CurvePoint], index: int, ends: tuple[float, float]
) -> None:
    """Begin the scales of a diagram at the lower end, and add a note counting the points below."""
    bottom, top = ends
    left_out = sum(point.bleu < bottom for point in points)
    if not left_out:
        return
    air = _AIR * (top - bottom)
    axes.set_ylim(bottom - air, top + air)
    costs = [point.costs[index] for point in points if point.bleu >= bottom]
    air = _AIR * (max(costs) - min(costs)) or 0.5
    axes.set_xlim(min(costs) - air, max(costs) + air)
    note = f"{plural(left_out, 'point')} below this scale"
    axes.annotate(note, (0.98, 0.02), xycoords="axes fraction", ha="right", fontsize=_SMALL)


def _label_curves(
    axes: Axes,
    index: int,
    curves: Sequence[TradeoffCurve],
    looks: Sequence[dict[str, Any]],
    *,
    names_alone: bool,
) -> None:
    """Write labels next to the curves of diagram `index`; for references `names_alone`, or all.

    If there is no room, it is references whose points have no labels.
    """
    names = [
        ([(point.costs[index], point.bleu) for point in _points(curve, index)], curve.short, INK)
        for curve in curves
        if curve.short
    ]
    labels, leads = [], []
    for curve, look in sorted(
        zip(curves, looks, strict=True), key=lambda pair: pair[0].is_reference
    ):
        if not (curve.is_reference and names_alone):
            for point in _points(curve, index):
                labels.append((point.costs[index], point.bleu, point.label, darker(look["color"])))
                leads.append((curve.name, f"{curve.swept} = " if curve.swept else ""))
    label_points(axes, labels, names=names, leads=leads)


def _looks(curves: Sequence[TradeoffCurve]) -> list[dict[str, Any]]:
    """Return the colour, dashes and marker of each curve: references grey, others in colour."""
    looks = []
    counts = {True: 0, False: 0}
    for curve in curves:
        index = counts[curve.is_reference]
        counts[curve.is_reference] += 1
        tones = _GREYS if curve.is_reference else _OURS
        width = 1.1 if curve.is_reference else 1.7
        # Published curves of one kind must be distinguishable without colours.
        marker = None if curve.short else _MARKERS.get(curve.kind)
        dashes = _GREY_DASHES[index % len(_GREY_DASHES)] if curve.is_reference else dash(index)
        looks.append({
            "color": tones[index % len(tones)],
            "linewidth": width,
            # Random exits are not one method with a parameter that varies, so no line joins them.
            "linestyle": "none" if curve.kind == "uniform" else dashes,
            "marker": marker or _CYCLE[index % len(_CYCLE)],
            "markersize": 3.4 if curve.is_reference else 4.4,
            # When colours repeat, lines are dashed and markers filled.
            "markerfacecolor": "white" if index < len(tones) else tones[index % len(tones)],
            "markeredgewidth": 0.75 * width,
            "zorder": 2.0 if curve.is_reference else 3.0,
        })  # fmt: skip
    return looks


def _is_number(point: CurvePoint) -> bool:
    return math.isfinite(point.bleu) and any(map(math.isfinite, point.costs))


def _points(curve: TradeoffCurve, index: int) -> list[CurvePoint]:
    return [point for point in curve.points if math.isfinite(point.costs[index])]


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


def draw_points(
    points: Sequence[tuple[str, float, float]],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> None:
    """Draw systems as points (name, x, y) into `path` (.png or .svg).

    Raises ConfigError for another kind of file.
    """
    with new_picture(path, 5.7, 4.0) as figure:
        set_title(figure, title)
        axes = figure.subplots()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.margins(0.15)
        axes.grid()
        labels = []
        for index, (name, x, y) in enumerate(points):
            marker = "osD"[index // len(COLOURS) % 3]
            axes.plot([x], [y], marker=marker, markersize=5, color=colour(index))
            labels.append((x, y, shortened(name, 30), darker(colour(index))))
        label_points(axes, labels, everywhere=True)
