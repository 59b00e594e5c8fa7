"""Online evaluations as a section: BLEU against latency, one curve for each system and policy."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.plotting.figure import (
    Axes,
    Box,
    Obstacles,
    check_suffix,
    drawable,
    new_figure,
    save,
    scale_ends,
    shortened,
    spread,
    text_width,
)
from nmtgrid.analysis.plotting.lines import COLOURS, INK, darker, frame
from nmtgrid.analysis.section import Picture, Section, Table, read_result_file
from nmtgrid.base.errors import InputError
from nmtgrid.metrics.latency import METRICS, Convention, Unit
from nmtgrid.online.published import curves as published_curves
from nmtgrid.online.settings import Setting

_Dash = str | tuple[int, tuple[float, ...]]

_WIDTH, _HEIGHT = 5.4, 3.9
"""Inches of the diagram's inside."""
_LEFT, _TOP, _BOTTOM, _GAP, _SAMPLE = 0.7, 0.55, 0.6, 0.16, 0.34
_FONT, _SMALL, _LINE = 8.5, 7.0, 10.6
"""Points: letters, those beside markers, and a line of names."""
_LETTERS, _LONGEST = 30, 84
_GREYS = ("#8a8a8a", "#a3a3a3", "#777777", "#b0b0b0")
_GREY_DASHES: tuple[_Dash, ...] = (
    (0, (4, 1.4)), (0, (1.4, 1.2)), (0, (5, 1.2, 1.2, 1.2)), "-",
)  # fmt: skip
_LEVEL: _Dash = (0, (6, 3))
_MARKERS = {"wait-k": "o", "threshold": "s", "dynamic": "s", "oracle": "^"}


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point: latency, BLEU in percent, and what stands beside it."""

    x: float
    y: float
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Points of one system and policy (wait-k, threshold, oracle, dynamic), in order."""

    name: str
    marks: Sequence[Mark]
    policy: str
    published: bool = False


@dataclasses.dataclass(frozen=True)
class Level:
    """A system's BLEU offline: a dashed line in the colour of its first curve."""

    name: str
    y: float


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A curve or level with its looks, and how high its name belongs, in parts of the panel."""

    name: str
    colour: str
    dash: _Dash
    marker: str
    y: float


def draw_curves(
    curves: Sequence[Curve],
    levels: Sequence[Level],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> None:
    """Draw the curves into `path` (.png or .svg), a level's colour by its place in the curves.

    A level is named like the curve it belongs to, or stands alone. Points that are no numbers are
    left out. Raises ConfigError for another kind of file.
    """
    check_suffix(path)
    texts = [_broken(name) for name in [*(one.name for one in curves), *map(_level_name, levels)]]
    right = _GAP + _SAMPLE + 0.2 + max((text_width(text, _FONT) for text in texts), default=0.0)
    size = (_LEFT + _WIDTH + right, _TOP + _HEIGHT + _BOTTOM)
    figure = new_figure(*size)
    place = (_LEFT / size[0], _BOTTOM / size[1], _WIDTH / size[0], _HEIGHT / size[1])
    axes = figure.add_axes(place)
    frame(axes, x_label, y_label, _FONT)
    figure.text(
        _LEFT / size[0], 1 - 0.16 / size[1], shortened(drawable(title), 96), fontsize=10,
        fontweight="bold", color=INK, va="top", parse_math=False,
    )  # fmt: skip
    kept = [dataclasses.replace(one, marks=_finite(one.marks)) for one in curves]
    limits = _limits(kept, levels)
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    drawn = _draw(axes, kept, limits)
    drawn += _draw_levels(axes, levels, kept, limits)
    _label_marks(axes, kept, levels, limits)
    _write_names(axes, drawn)
    save(figure, path)


_Limits = tuple[tuple[float, float], tuple[float, float]]


def _limits(curves: Sequence[Curve], levels: Sequence[Level]) -> _Limits:
    """Return the ends of both scales: all points, with a little air."""
    marks = [mark for one in curves for mark in one.marks]
    y = [mark.y for mark in marks] + [one.y for one in levels]
    return scale_ends([mark.x for mark in marks], 0.06, 0.04), scale_ends(y, 0.07, 0.07)


def _part(mark: Mark, limits: _Limits) -> tuple[float, float]:
    """Return a point in parts of the panel."""
    (left, right), (low, high) = limits
    return (mark.x - left) / (right - left), (mark.y - low) / (high - low)


def _draw(axes: Axes, curves: Sequence[Curve], limits: _Limits) -> list[_Drawn]:
    ours = [one for one in curves if not one.published and one.marks]
    theirs = [one for one in curves if one.published and one.marks]
    found: list[_Drawn] = []
    for number, one in enumerate(theirs):
        colour = _GREYS[number % len(_GREYS)]
        dash = _GREY_DASHES[number % len(_GREY_DASHES)]
        found.append(_line(axes, one, colour, dash, limits))
    for number, one in enumerate(ours):
        found.append(_line(axes, one, COLOURS[number % len(COLOURS)], "-", limits))
    return found


def _line(axes: Axes, one: Curve, colour: str, dash: _Dash, limits: _Limits) -> _Drawn:
    drawn = _Drawn(
        one.name, colour, dash, _MARKERS.get(one.policy, "o"), _part(one.marks[-1], limits)[1]
    )
    x, y = [mark.x for mark in one.marks], [mark.y for mark in one.marks]
    axes.plot(x, y, zorder=2.0 if one.published else 3.0, **_looks(drawn, one.published))
    return drawn


def _looks(drawn: _Drawn, published: bool) -> dict[str, Any]:
    width = 1.0 if published else 1.7
    return {
        "color": drawn.colour,
        "linewidth": width,
        "linestyle": drawn.dash,
        "marker": drawn.marker,
        "markersize": 3.0 if published else 4.4,
        "markerfacecolor": "white",
        "markeredgecolor": drawn.colour,
        "markeredgewidth": 0.75 * width,
        "solid_capstyle": "round",
    }


def _draw_levels(
    axes: Axes, levels: Sequence[Level], curves: Sequence[Curve], limits: _Limits
) -> list[_Drawn]:
    """Draw each level in the colour of the first of our curves whose name begins like its own."""
    ours = [one.name for one in curves if not one.published and one.marks]
    found = []
    for number, level in enumerate(levels):
        like = [place for place, name in enumerate(ours) if name.startswith(level.name)]
        colour = COLOURS[(like[0] if like else len(ours) + number) % len(COLOURS)]
        axes.axhline(level.y, color=colour, linewidth=1.1, linestyle=_LEVEL, zorder=1.5)
        height = _part(Mark(0.0, level.y), limits)[1]
        found.append(_Drawn(_level_name(level), colour, _LEVEL, "", height))
    return found


def _label_marks(
    axes: Axes, curves: Sequence[Curve], levels: Sequence[Level], limits: _Limits
) -> None:
    """Write what each point is beside it, where there is room; ours before the published."""
    curves = sorted((one for one in curves if one.marks), key=lambda one: one.published)
    obstacles = Obstacles(_WIDTH * 72, _HEIGHT * 72)
    scale = _WIDTH * 72, _HEIGHT * 72
    points = [
        [(x * scale[0], y * scale[1]) for x, y in (_part(mark, limits) for mark in one.marks)]
        for one in curves
    ]
    for line in points:
        obstacles.add_line(line)
    for level in levels:
        height = _part(Mark(0.0, level.y), limits)[1] * scale[1]
        obstacles.add_line([(0.0, height), (scale[0], height)])
    for number, (one, line) in enumerate(zip(curves, points, strict=True)):
        # Ours come first: their place is their colour's.
        colour = "#888888" if one.published else darker(COLOURS[number % len(COLOURS)])
        for mark, (x, y) in zip(one.marks, line, strict=True):
            if not mark.label:
                continue
            size = text_width(mark.label, _SMALL) * 72, _SMALL * 0.95
            box = obstacles.place(x, y, *size, insist=not one.published)
            if box is not None:
                _write(axes, box, mark.label, colour)


def _write(axes: Axes, box: Box, text: str, colour: str) -> None:
    axes.text(
        (box.left + box.right) / 2 / (_WIDTH * 72), (box.low + box.high) / 2 / (_HEIGHT * 72), text,
        transform=axes.transAxes, ha="center", va="center_baseline", fontsize=_SMALL, color=colour,
        parse_math=False, zorder=4,
    )  # fmt: skip


def _write_names(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    """Write each name behind a piece of its line, as high as the line ends if there is room."""
    texts = [_broken(one.name) for one in drawn]
    heights = [((text.count("\n") + 1) * _LINE + 3.5) / 72 / _HEIGHT for text in texts]
    places = spread([one.y for one in drawn], heights, -0.12, 1.08)
    start = 1.0 + _GAP / _WIDTH
    for one, text, place in zip(drawn, texts, places, strict=True):
        ends = [start, start + _SAMPLE / 2 / _WIDTH, start + _SAMPLE / _WIDTH]
        axes.plot(
            ends, [place] * 3, transform=axes.transAxes, clip_on=False, markevery=[1],
            **_looks(one, one.colour in _GREYS),
        )  # fmt: skip
        axes.text(
            ends[2] + 0.08 / _WIDTH, place, text, transform=axes.transAxes, va="center",
            fontsize=_FONT, color=darker(one.colour), parse_math=False, linespacing=1.1,
        )  # fmt: skip


def _finite(marks: Sequence[Mark]) -> list[Mark]:
    return [mark for mark in marks if math.isfinite(mark.x) and math.isfinite(mark.y)]


def _broken(name: str) -> str:
    text = shortened(drawable(name), _LONGEST)
    return "\n".join(textwrap.wrap(text, _LETTERS, break_on_hyphens=False)) or text


def _level_name(level: Level) -> str:
    return f"{level.name}offline: {level.y:.2f}"


POLICIES = {"wait-k": "wait-k", "threshold": "agent", "oracle": "oracle"}
"""What a policy is called beside its curve."""

_VALUES = {"wait-k": "k", "threshold": "threshold", "oracle": "lambda"}
_ADVICE = "Name the file, or the folder, that `nmtgrid online-eval --out DIR` wrote."


@dataclasses.dataclass(frozen=True)
class OnlineResult:
    """One system along one setting: tokenised BLEU (percent), latency by unit and convention."""

    system: str
    setting: Setting
    bleu: float
    latencies: Mapping[tuple[Unit, Convention], Mapping[str, float]]

    def latency(self, metric: str, unit: Unit, convention: Convention) -> float:
        """Return one of `metrics.latency.METRICS`, or `length_ratio`; NaN where it has none."""
        value = self.latencies.get((unit, convention), {}).get(metric)
        return math.nan if value is None else float(value)


def read_online_results(path: Path, name: str | None = None) -> list[OnlineResult]:
    """Return the results in a file or folder; `name` renames its only system.

    Raises InputError for what is no result of an online evaluation, StorageError for no file.
    """
    found = read_result_file(
        path, lambda values: [_result(row) for row in values["settings"]],
        content="results of an online evaluation", advice=_ADVICE,
    )  # fmt: skip
    systems = {one.system for one in found}
    if name is not None and len(systems) > 1:
        raise InputError(
            f"it has {len(systems)} systems, which cannot all be called `{name}`.",
            "Leave the name out.",
            path=path,
        )
    return found if name is None else [dataclasses.replace(one, system=name) for one in found]


def _result(row: Mapping[str, Any]) -> OnlineResult:
    policy = row["policy"]
    value = row[_VALUES[policy]]
    latencies = {
        (one["unit"], one["convention"]): {
            metric: one[metric] for metric in (*METRICS, "length_ratio")
        }
        for one in row["latencies"]
    }
    setting = Setting(policy, math.inf if value is None else float(value))
    return OnlineResult(str(row["system"]), setting, float(row["bleu_tokenized"]), latencies)


def latency_curves(
    results: Sequence[OnlineResult], metric: str, unit: Unit, convention: Convention
) -> tuple[list[Curve], list[Level]]:
    """Return a curve for each system and policy, by rising latency, and levels for what is offline.

    With one system its name is left out.
    """
    found: list[Curve] = []
    levels: list[Level] = []
    systems = list(dict.fromkeys(one.system for one in results))
    for system in systems:
        prefix = "" if len(systems) == 1 else f"{system}, "
        own = [one for one in results if one.system == system]
        for policy, name in POLICIES.items():
            held = [
                (one.latency(metric, unit, convention), one)
                for one in own
                if one.setting.policy == policy and not one.setting.is_offline
            ]
            held.sort(key=lambda pair: pair[0])
            marks = [
                Mark(value, one.bleu, one.setting.number if place else one.setting.title)
                for place, (value, one) in enumerate(held)
            ]
            if marks:
                found.append(Curve(f"{prefix}{name}", marks, policy))
        levels += [Level(prefix, one.bleu) for one in own if one.setting.is_offline]
    return found, levels


def published_points(name: str) -> list[Curve]:
    """Return the published curves called `name`. Raises ConfigError for another one."""
    return [
        Curve(
            f"{one.label}, {'thesis ' if one.source.startswith('table') else ''}{one.source}",
            [
                Mark(point.al, point.bleu, "" if point.setting is None else f"{point.setting:g}")
                for point in one.points
            ],
            one.policy,
            published=True,
        )
        for one in published_curves(name)
    ]


TITLES = {
    "al": "average lagging AL", "ap": "average proportion AP",
    "dal": "differentiable average lagging DAL", "laal": "length-adaptive average lagging LAAL",
    "yaal": "YAAL", "cw": "consecutive wait CW", "max_cw": "longest consecutive wait",
}  # fmt: skip
_SHOWN = ("ap", "al", "dal", "cw", "laal")
_TEXT = """Quality against delay of online (simultaneous) decoding: tokenised BLEU in percent; \
latency in source {unit}s (AP: the share of the source), in the convention of {convention}. The \
ratio of lengths is hypothesis over reference, in {unit}s."""
_CONVENTIONS = {"thesis": "the thesis (|y| is the hypothesis')", "simuleval": "SimulEval"}


def latency_section(
    results: Sequence[OnlineResult],
    metric: str = "al",
    unit: Unit = "token",
    convention: Convention = "thesis",
    published_as: str | None = None,
    title: str | None = None,
) -> Section:
    """Return the table of all settings, and the curves against `metric`.

    `published_as` names curves of the literature to lay beneath. Raises ConfigError for another.
    """
    theirs = [] if published_as is None else published_points(published_as)
    ours, levels = latency_curves(results, metric, unit, convention)
    what = "" if metric == "ap" else f"source {unit}s, "

    def draw(path: Path) -> None:
        draw_curves(
            [*ours, *theirs],
            levels,
            path,
            title=title or "quality against latency",
            x_label=f"{TITLES[metric]} ({what}{convention} convention)",
            y_label="BLEU, tokenised (percent)",
        )

    rows = [_row(one, unit, convention) for one in results]
    shown = (*_SHOWN, "length_ratio")
    table = Table(
        f"BLEU tokenised (percent); latency in source {unit}s (AP: share), {convention} "
        f"convention;\nratio: {unit}s of hypothesis / reference",
        ["system", "", "BLEU", *(name.upper() for name in _SHOWN), "ratio"],
        [
            [one.system, one.setting.title, one.bleu, *(row[name] for name in shown)]
            for one, row in zip(results, rows, strict=True)
        ],
    )
    caption = f"BLEU against {TITLES[metric]}, a curve for each system and policy."
    return Section(
        "latency",
        "Online decoding: quality against latency",
        _TEXT.format(unit=unit, convention=_CONVENTIONS[convention]),
        [table],
        [Picture("latency", caption, draw)],
        {"unit": unit, "convention": convention, "metric": metric, "settings": rows},
    )


def _row(one: OnlineResult, unit: Unit, convention: Convention) -> dict[str, Any]:
    """Return a setting's figures, None for what there is not."""
    values = {name: one.latency(name, unit, convention) for name in (*METRICS, "length_ratio")}
    return {
        "system": one.system,
        **one.setting.values(),
        "bleu_tokenized": one.bleu,
        **{name: None if math.isnan(value) else value for name, value in values.items()},
    }
