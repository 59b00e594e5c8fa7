"""Profiles of activations side by side: a small diagram for each model, bands along its depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.activation_watch import Activations
from nmtgrid.analysis.activations import Profile, along, parts
from nmtgrid.analysis.plotting.figure import Axes, check_suffix, new_figure, save, text_width
from nmtgrid.analysis.plotting.labels import drawable, shortened
from nmtgrid.analysis.plotting.lines import COLOURS, INK, PALE, Line, Panel, darker, draw

_FONT = 8.0
_WIDTH, _HEIGHT = 2.9, 2.1
"""Inches of a diagram's inside."""
_LEFT, _GAP, _RIGHT, _TITLE, _BOTTOM = 0.72, 0.3, 0.3, 0.36, 0.62
_ACROSS = 3
_UNLIKE = 6.0
"""Models whose activations differ more than so in size have scales of their own."""
_GREY = _CHANGE = "#888888"
_KEY_LINE = 0.18


def draw_profiles(profiles: Sequence[Profile], path: Path) -> None:
    """Draw means and deviations of all models, three abreast, on one scale, into `path`."""
    check_suffix(path)
    across = min(_ACROSS, len(profiles))
    down = math.ceil(len(profiles) / across)
    bottom = max(_BOTTOM, 0.2 + max(_label_height(one) for one in profiles))
    limits = [_limits([one]) for one in profiles]
    spans = [high - low for low, high in limits]
    is_shared = max(spans) <= _UNLIKE * min(spans)
    if is_shared:
        limits = [_limits(profiles)] * len(profiles)
    gap = _GAP if is_shared else _GAP + 0.35
    pitch = (_WIDTH + gap, _HEIGHT + _TITLE + bottom)
    width = _LEFT + across * pitch[0] - gap + _RIGHT
    written = _key(width, profiles, is_shared)
    key = 0.12 + _KEY_LINE * len(written)
    size = (width, down * pitch[1] + key)
    figure = new_figure(*size)
    for place, one in enumerate(profiles):
        start = _LEFT + place % across * pitch[0]
        low = size[1] - key - (place // across + 1) * pitch[1] + bottom
        box = (start / size[0], low / size[1], _WIDTH / size[0], _HEIGHT / size[1])
        axes = figure.add_axes(box)
        _draw_one(axes, one, COLOURS[place % len(COLOURS)], limits[place])
        if place % across == 0:
            axes.set_ylabel("activation (mean ± deviation)", fontsize=_FONT, color=INK)
        elif is_shared:
            axes.tick_params(labelleft=False)
    top = figure.add_axes((0.0, 1 - key / size[1], 1.0, key / size[1]))
    top.set_axis_off()
    top.set(xlim=(0.0, width), ylim=(key, 0.0))
    for line, texts in enumerate(written):
        for start, text, colour in texts:
            height = 0.12 + _KEY_LINE * (line + 0.5)
            top.text(start, height, text, fontsize=_FONT, color=colour, va="center")
    save(figure, path)


def draw_depths(profiles: Sequence[Profile], path: Path) -> None:
    """Draw means and deviations of the states against depth, a line a model, into `path`."""
    names = list(dict.fromkeys(part for one in profiles for part in parts(one)))
    panels = []
    for part in names:
        held = [(style, one, along(one, part)) for style, one in enumerate(profiles)]
        held = [(style, one, points) for style, one, points in held if len(points) > 1]
        for what in ("mean", "deviation") if held else ():
            lines = [
                Line(
                    one.system,
                    [depth for depth, _ in points],
                    [float(getattr(point, what)) for _, point in points],
                    style,
                    mark=True,
                )
                for style, one, points in held
            ]
            titled = "mean" if what == "mean" else "standard deviation"
            panels.append(
                Panel(
                    f"{part}: {titled}",
                    "layer (0: what enters the first)",
                    f"{titled} of the activations",
                    lines,
                    least=0.0 if what == "deviation" else None,
                    level=0.0,
                    whole=True,
                )
            )
    draw(panels, path)


def _draw_one(axes: Axes, one: Profile, colour: str, limits: tuple[float, float]) -> None:
    places, ticks = _places(one)
    _frame(axes, one)
    for part in parts(one):
        changes, states = along(one, part, "change"), along(one, part)
        start = places[part]
        if states or changes:
            _band(axes, changes, start, _CHANGE, 0.22, (0, (3, 1.5)))
            _band(axes, states, start, colour, 0.30, "-")
    for place, point in _singles(one, places):
        tone = colour if point.kind == "state" else _GREY
        axes.errorbar(
            [place], [point.mean], yerr=[point.deviation], color=tone, fmt="o", markersize=3,
            capsize=2.5, linewidth=1.0,
        )  # fmt: skip
    axes.axhline(0.0, color=_GREY, linewidth=0.5, zorder=1)
    axes.set_xlim(-0.6, max(place for place, _ in ticks) + 0.6)
    axes.set_ylim(*limits)
    _write_ticks(axes, ticks)
    for part in (part for part in parts(one) if _is_line(one, part)):
        layers = [point.layer or 0 for point in one.points if point.part == part]
        axes.text(
            places[part] + max(layers) / 2, -0.15, f"{_short(part)} layer",
            transform=axes.get_xaxis_transform(), fontsize=_FONT, color=INK, va="top",
            ha="center", parse_math=False,
        )  # fmt: skip


def _band(
    axes: Axes,
    points: Sequence[tuple[float, Activations]],
    start: float,
    colour: str,
    alpha: float,
    dashes: str | tuple[int, tuple[float, float]],
) -> None:
    x = [start + depth for depth, _ in points]
    low = [point.mean - point.deviation for _, point in points]
    high = [point.mean + point.deviation for _, point in points]
    axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)
    axes.plot(
        x, [point.mean for _, point in points], color=colour, linewidth=1.4, linestyle=dashes,
        marker="o" if len(points) < 3 else "", markersize=2.5,
    )  # fmt: skip


def _frame(axes: Axes, one: Profile) -> None:
    title = whole = drawable(one.system)
    while text_width(title, 10.8) > _WIDTH + 0.15 and len(title) > 9:
        title = shortened(whole, len(title) - 2)
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=INK, parse_math=False)
    axes.tick_params(labelsize=_FONT, colors=INK, length=2.5, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=_GREY, linewidth=0.6)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)


def _is_line(one: Profile, part: str) -> bool:
    return len(along(one, part)) + len(along(one, part, "change")) > 1


def _places(one: Profile) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """Return where the parts begin, in layers from the left, and the labels under them."""
    places: dict[str, float] = {}
    ticks: list[tuple[float, str]] = []
    reached = 0.0
    for part in parts(one):
        places[part] = reached
        if _is_line(one, part):
            layers = [p.layer for p in one.points if p.part == part and p.layer is not None]
            most = max(layers)
            step = next((s for s in (1, 2, 4, 5, 10, 20, 50) if most / s <= 7), most)
            ticks += [(reached + n, str(n)) for n in range(0, most + 1, step)]
            reached += most
        else:
            names = _named(one, part)
            ticks += [(reached + n * _step(one), name) for n, name in enumerate(names)]
            reached += max(0, len(names) - 1) * _step(one)
        reached += _step(one)
    return places, ticks


def _step(one: Profile) -> float:
    """Return how far single points and parts stand apart, in layers: as far as names need."""
    deepest = sum(
        max((p.layer or 0 for p in one.points if p.part == part), default=0) for part in parts(one)
    )
    return max(1.0, deepest / 10)


def _named(one: Profile, part: str) -> list[str]:
    """Return what points of a part without a line are called under the axis."""
    held = [p.point for p in one.points if p.part == part]
    return [name.partition(".")[2] if part in ("embedding", "output") else name for name in held]


def _singles(one: Profile, places: dict[str, float]) -> list[tuple[float, Activations]]:
    found = []
    for part in parts(one):
        if not _is_line(one, part):
            held = [point for point in one.points if point.part == part]
            found += [(places[part] + n * _step(one), point) for n, point in enumerate(held)]
    return found


def _write_ticks(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    axes.set_xticks([place for place, _ in ticks], [_short(text) for _, text in ticks])
    for label, (_, text) in zip(axes.get_xticklabels(), ticks, strict=True):
        label.set_parse_math(False)
        if not text.isdigit():
            label.set(rotation=55, ha="right", rotation_mode="anchor")


def _short(text: str) -> str:
    return shortened(drawable(text), 26)


def _label_height(one: Profile) -> float:
    """Return the inches that the labels under the axis take, those written aslant."""
    _, ticks = _places(one)
    return max(0.83 * text_width(_short(text), _FONT) + 0.2 for _, text in ticks)


def _limits(profiles: Sequence[Profile]) -> tuple[float, float]:
    """Return the ends of the scale: all bands, and a little air."""
    shown = [p for one in profiles for p in one.points if p.kind != "inside"]
    shown += [p for one in profiles for _, p in _singles(one, _places(one)[0])]
    low = min(point.mean - point.deviation for point in shown)
    high = max(point.mean + point.deviation for point in shown)
    air = 0.05 * max(high - low, 1e-6)
    return low - air, high + air


def _key(
    width: float, profiles: Sequence[Profile], is_shared: bool
) -> list[list[tuple[float, str, str]]]:
    """Return lines of (place, text, colour) that tell what is drawn and whether scales differ."""
    has_changes = any(p.kind == "change" for one in profiles for p in one.points)
    samples = [("in colour: what layers pass on", darker(COLOURS[0]))]
    samples += [("in grey: changes before the skip connection", _CHANGE)] if has_changes else []
    samples += [] if is_shared else [("the scales differ", INK)]
    lines: list[list[tuple[float, str, str]]] = [[]]
    start = _LEFT
    for text, colour in samples:
        if lines[-1] and start + text_width(text, _FONT) > width:
            lines.append([])
            start = _LEFT
        lines[-1].append((start, text, colour))
        start += text_width(text, _FONT) + 0.3
    return lines
