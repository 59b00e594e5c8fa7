"""The section on activations: its tables, pictures and numbers; `activations` measures."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmtgrid.analysis.plotting.figure import (
    Axes,
    check_suffix,
    drawable,
    new_figure,
    save,
    shortened,
    text_width,
)
from nmtgrid.analysis.plotting.lines import COLOURS, INK, PALE, Line, Panel, darker, draw_panels
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, ProbePoint, TranslationModel


@dataclasses.dataclass(frozen=True)
class Activations:
    """What passed one point: `values` numbers, of vectors of `size` features."""

    point: str
    kind: str
    size: int
    values: int
    mean: float
    deviation: float
    least: float
    most: float

    @property
    def part(self) -> str:
        """The part of the network: "encoder", "network", "output"."""
        return self.point.partition(".")[0]

    @property
    def layer(self) -> int | None:
        """The layer that the point lies in or behind, if it has a number; 0 is before the first."""
        number = self.point.split(".")[1:2]
        return int(number[0]) if number and number[0].isdigit() else None


def select_points(
    model: TranslationModel, patterns: Sequence[str], name: str
) -> Mapping[str, ProbePoint]:
    """Return the model's points, or those and the parts that `patterns` name. See `profile`."""
    points = model.points()
    if not patterns:
        if not points:
            raise ConfigError(
                f"The architecture `{model.architecture}` of `{name}` names no points.",
                "Name parts of it with `--point`.",
            )
        return points
    parts = {part: ProbePoint(held, "inside") for part, held in model.named_modules() if part}
    known = {**parts, **points}
    faults = [
        f"`{name}` (`{model.architecture}`) has no point `{pattern}`."
        for pattern in patterns
        if not any(fnmatchcase(one, pattern) for one in known)
    ]
    if faults:
        told = nearest(next(p for p in patterns if not _names(p, known)), list(known))
        raise ConfigError(faults, told)
    in_order = [*points, *(part for part in parts if part not in points)]
    return {one: known[one] for one in in_order if any(fnmatchcase(one, p) for p in patterns)}


def _names(pattern: str, known: Mapping[str, ProbePoint]) -> bool:
    return any(fnmatchcase(one, pattern) for one in known)


class _Sums:
    """Count, sum, sum of squares and ends of all numbers that passed a point, in fp64."""

    def __init__(self) -> None:
        self.values = self.size = 0
        self.sums = (0.0, 0.0)
        self.ends = (math.inf, -math.inf)

    def add(self, tensor: Tensor) -> None:
        held = tensor.detach().double()
        sums = torch.stack([held.sum(), held.square().sum(), held.min(), held.max()]).tolist()
        self.values += held.numel()
        self.size = held.shape[-1]
        self.sums = (self.sums[0] + sums[0], self.sums[1] + sums[1])
        self.ends = (min(self.ends[0], sums[2]), max(self.ends[1], sums[3]))

    def told(self, name: str, kind: str) -> Activations:
        mean = self.sums[0] / self.values
        variance = max(0.0, self.sums[1] / self.values - mean**2)
        return Activations(name, kind, self.size, self.values, mean, variance**0.5, *self.ends)


class Watch:
    """Adds up what passes the points while it is entered."""

    def __init__(self, points: Mapping[str, ProbePoint]) -> None:
        self._points = points
        self._sums = {name: _Sums() for name in points}
        # A part that both sides share (tied embeddings) has a name for each call in turn.
        self._names: dict[tuple[nn.Module, str], list[str]] = {}
        for name, point in points.items():
            self._names.setdefault((point.part, point.side), []).append(name)
        self._calls: Counter[tuple[nn.Module, str]] = Counter()
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Forget which parts were called: another forward pass begins."""
        self._calls.clear()

    def __enter__(self) -> None:
        for module, side in self._names:
            if side == "input":
                self._handles.append(module.register_forward_pre_hook(self._given))
            else:
                self._handles.append(module.register_forward_hook(self._yielded))

    def __exit__(self, *fault: object) -> None:
        for handle in self._handles:
            handle.remove()

    def found(self) -> list[Activations]:
        """Return what passed, for the points that anything passed."""
        return [
            sums.told(name, self._points[name].kind)
            for name, sums in self._sums.items()
            if sums.values
        ]

    def _given(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._add(module, "input", inputs)

    def _yielded(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._add(module, "output", output)

    def _add(self, module: nn.Module, side: str, held: Any) -> None:
        names = self._names[module, side]
        name = names[min(self._calls[module, side], len(names) - 1)]
        self._calls[module, side] += 1
        parts = [held] if isinstance(held, Tensor) else held if isinstance(held, tuple) else []
        tensor = next((part for part in parts if isinstance(part, Tensor)), None)
        if tensor is not None and tensor.numel() and tensor.is_floating_point():
            self._sums[name].add(tensor)


class Pairs(Protocol):
    """A dataset's split, or what can be read as one."""

    @property
    def source_lengths(self) -> NDArray[Any]:
        """Return the tokens of each source."""
        ...

    @property
    def target_lengths(self) -> NDArray[Any]:
        """Return the tokens of each target."""
        ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the pairs at these places."""
        ...


@dataclasses.dataclass(frozen=True)
class Profile:
    """One model's activations, in the order of its points."""

    system: str
    architecture: str
    sentences: int
    source_tokens: int
    target_tokens: int
    points: Sequence[Activations]


def profile(
    name: str,
    model: TranslationModel,
    pairs: Pairs,
    *,
    sentences: int = 64,
    patterns: Sequence[str] = (),
    device: torch.device | str = "cpu",
    advance: Callable[[int], None] = lambda done: None,
) -> Profile:
    """Return the activations of the first `sentences` pairs that have text on both sides.

    `patterns` name points, or parts of the model as torch names them ("network.layers.*.map"); none
    means all points. Raises ConfigError for a pattern without a point, and for pairs without text.
    """
    points = select_points(model, patterns, name)
    filled = numpy.flatnonzero((pairs.source_lengths > 0) & (pairs.target_lengths > 0))
    places = [int(place) for place in filled[:sentences]]
    if not places:
        raise ConfigError("No pair of the split has text on both sides.", "Give another split.")
    watch = Watch(points)
    lengths = [0, 0]
    model = model.to(device).eval()
    with torch.no_grad(), watch:
        for place in places:
            batch = pairs.batch([place]).to(torch.device(device))
            watch.begin()
            model.features(batch, PredictionSites.offline(batch))
            lengths[0] += int(batch.source_lengths.sum())
            lengths[1] += int(batch.target_lengths.sum())
            advance(1)
    found = watch.found()
    if patterns and not found:
        raise ConfigError(f"Nothing passes the points that are asked for in `{name}`.")
    return Profile(name, model.architecture, len(places), lengths[0], lengths[1], found)


def parts(one: Profile) -> list[str]:
    """Return the parts of a network, in order."""
    return list(dict.fromkeys(point.part for point in one.points))


def along(one: Profile, part: str, kind: str = "state") -> list[tuple[float, Activations]]:
    """Return the points of a part and where they lie, in layers.

    Several changes of one layer lie evenly between it and the layer before.
    """
    held: dict[int, list[Activations]] = {}
    for point in one.points:
        if point.part == part and point.kind == kind and point.layer is not None:
            held.setdefault(point.layer, []).append(point)
    return [
        (layer - 1 + place / len(points), point)
        for layer, points in held.items()
        for place, point in enumerate(points, 1)
    ]


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
    draw_panels(panels, path)


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


TEXT = (
    "Trained models are given {sentences} pairs of the split {split}, one at a time and teacher "
    "forced, without dropout. At each point of a network the mean and the standard deviation "
    "(population) are taken over all its features at all positions of all sentences (cells of the "
    "grid, where there is one), in double precision. A state is what a layer passes on, a change "
    "what a layer computes before its skip connection takes it in: a state is h_n and a change H_n "
    "= F_n(h_n-1); with dense connections a state is all features that the next layer reads. "
    "Batches do not matter here: appendix A averages the means and deviations of batches."
)


def activations_section(profiles: Sequence[Profile], split: str) -> Section:
    """Return the activations of all models: pictures, a table of their states, all points."""
    return Section(
        "activations",
        "Activations along the networks",
        TEXT.format(sentences=f"{profiles[0].sentences:,}", split=split),
        _tables(profiles),
        _pictures(profiles),
        {
            "split": split,
            "systems": [
                {
                    **{k: v for k, v in vars(one).items() if k != "points"},
                    "points": [
                        {**dataclasses.asdict(p), "part": p.part, "layer": p.layer}
                        for p in one.points
                    ],
                }
                for one in profiles
            ],
        },
    )


def _tables(profiles: Sequence[Profile]) -> list[Table]:
    """Return tables of states and of changes for models of each architecture, a column a model.

    Where only such points were asked for as are neither, a table has all points.
    """
    kinds: dict[str, tuple[str, ...]] = {
        "what layers pass on": ("state",),
        "what they compute before the skip connections": ("change",),
    }
    if not any(point.kind != "inside" for one in profiles for point in one.points):
        kinds = {"at the points asked for": ("inside",)}
    found = []
    for architecture in dict.fromkeys(one.architecture for one in profiles):
        held = [one for one in profiles if one.architecture == architecture]
        for title, wanted in kinds.items():
            table = _table(f"Activations of `{architecture}`, mean ± deviation: {title}",
                           held, wanted)  # fmt: skip
            found += [table] if table.rows else []
    return found


def _table(title: str, profiles: Sequence[Profile], kinds: Sequence[str]) -> Table:
    columns = [{p.point: p for p in one.points if p.kind in kinds} for one in profiles]
    points = {name: point for column in columns for name, point in column.items()}
    order = list(dict.fromkeys(part for one in profiles for part in parts(one)))
    # Sorting is stable: what has no number of a layer stays as it was.
    names = sorted(points, key=lambda name: (order.index(points[name].part),
                                             points[name].layer or 0))  # fmt: skip
    rows = [[_short_name(name), *(_told(column.get(name)) for column in columns)] for name in names]
    return Table(title, ["point", *(one.system for one in profiles)], rows)


def _short_name(name: str) -> str:
    return name.removesuffix(".state").removesuffix(".change")


def _told(point: Activations | None) -> str | None:
    return None if point is None else f"{point.mean:.2f}±{point.deviation:.2f}"


def _pictures(profiles: Sequence[Profile]) -> list[Picture]:
    def draw(path: Path) -> None:

        draw_profiles(profiles, path)

    def compare(path: Path) -> None:

        draw_depths(profiles, path)

    found = [
        Picture(
            "activations",
            "Activations at each point of the networks: means (lines, dots) and one standard "
            "deviation to either side (bands, whiskers) of what layers pass on, in colour, and of "
            "what they compute before the skip connection takes it in, in grey. Layer 0 is what "
            "enters the first layer. Of a grid, target and source are the embeddings, network is "
            "what the network yields (accumulated, where the skip connection does so), pooled its "
            "aggregate over the source, and mapped what the classifier reads.",
            draw,
        )
    ]
    if any(len(along(one, part)) > 1 for one in profiles for part in parts(one)):
        found.append(
            Picture(
                "activations-depth",
                "Mean and standard deviation of what each layer passes on, against depth.",
                compare,
            )
        )
    return found
