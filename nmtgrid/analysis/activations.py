"""Activations along trained networks: their mean and deviation at each point (appendix A).

`profile` measures a model; `activations_section` shows the models side by side, for `nmtgrid
analyze activations` and the report.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from nmtgrid.analysis.plotting.figure import (
    AXIS,
    COLOURS,
    Axes,
    Patch,
    add_legend,
    colour,
    new_diagrams,
    shortened,
)
from nmtgrid.analysis.plotting.lines import Line, Panel, draw_panels
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.data.batches import Pairs
from nmtgrid.layers.probes import ProbePoint, hooked
from nmtgrid.models.api import PredictionSites, TranslationModel


@dataclasses.dataclass(frozen=True)
class Activations:
    """Statistics at one point: `values` numbers, in vectors of `size` features."""

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
        """The number of the layer in or after which the point is, if any; 0 is before the first."""
        number = self.point.split(".")[1:2]
        return int(number[0]) if number and number[0].isdigit() else None


def select_points(
    model: TranslationModel, patterns: Sequence[str], name: str
) -> Mapping[str, ProbePoint]:
    """Return the model's points, or only the points and parts that `patterns` match."""
    points = model.points()
    if not patterns:
        if not points:
            raise ConfigError(
                f"The architecture `{model.architecture}` of `{name}` does not define probe "
                "points.",
                "Give names of its modules with `--point`.",
            )
        return points
    # Points come first; a part that is one of them is measured as such.
    known = dict(points)
    for part, module in model.named_modules():
        if part:
            known.setdefault(part, ProbePoint(module, "inside"))
    unknown = [
        pattern for pattern in patterns if not any(fnmatchcase(point, pattern) for point in known)
    ]
    if unknown:
        raise ConfigError(
            [f"`{name}` (`{model.architecture}`) has no point `{pattern}`." for pattern in unknown],
            nearest(unknown[0], list(known)),
        )
    return {
        point: known[point]
        for point in known
        if any(fnmatchcase(point, pattern) for pattern in patterns)
    }


@dataclasses.dataclass
class _Sums:
    """Count, sum, sum of squares and extremes of all numbers at a point, in fp64."""

    values: int = 0
    size: int = 0
    sum: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, tensor: Tensor) -> None:
        numbers = tensor.detach().double()
        # One transfer from the device for all four.
        sums = [numbers.sum(), numbers.square().sum(), numbers.min(), numbers.max()]
        total, squares, least, most = torch.stack(sums).tolist()
        self.values += numbers.numel()
        self.size = numbers.shape[-1]
        self.sum += total
        self.squares += squares
        self.least, self.most = min(self.least, least), max(self.most, most)

    def activations(self, point: str, kind: str) -> Activations:
        mean = self.sum / self.values
        # Rounding may make the variance of equal numbers slightly negative.
        deviation = max(0.0, self.squares / self.values - mean**2) ** 0.5
        return Activations(
            point, kind, self.size, self.values, mean, deviation, self.least, self.most
        )


@dataclasses.dataclass(frozen=True)
class Profile:
    """One model's activations, in the order of its points."""

    system: str
    architecture: str
    sentences: int
    source_tokens: int
    target_tokens: int
    points: Sequence[Activations]

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(point.part for point in self.points))

    def along(self, part: str, kind: str = "state") -> list[tuple[float, Activations]]:
        """Return the points of a part with their positions, in layers.

        Several changes of one layer are spaced evenly between it and the layer before.
        """
        layers: dict[int, list[Activations]] = {}
        for point in self.points:
            if point.part == part and point.kind == kind and point.layer is not None:
                layers.setdefault(point.layer, []).append(point)
        return [
            (layer - 1 + number / len(points), point)
            for layer, points in layers.items()
            for number, point in enumerate(points, 1)
        ]


def profile(
    name: str,
    model: TranslationModel,
    pairs: Pairs,
    sentences: int = 64,
    patterns: Sequence[str] = (),
    device: torch.device | str = "cpu",
) -> Profile:
    """Return the activations of the first `sentences` pairs that have text on both sides.

    `patterns` name points, or parts of the model as torch names them ("network.layers.*.map"); none
    means all points. Raises ConfigError for a pattern without a point, and for pairs without text.
    """
    points = select_points(model, patterns, name)
    # An empty side has no activations of its own.
    filled = numpy.flatnonzero((pairs.source_lengths > 0) & (pairs.target_lengths > 0))
    indices = [int(index) for index in filled[:sentences]]
    if not indices:
        raise ConfigError("No pair of the split has text on both sides.", "Give another split.")
    # Hooks, so that architectures need no code for this.
    sums = {point: _Sums() for point in points}

    def add(point: str, values: Any) -> None:
        parts = values if isinstance(values, tuple) else (values,)
        tensor = next((part for part in parts if isinstance(part, Tensor)), None)
        if tensor is not None and tensor.numel() and tensor.is_floating_point():
            sums[point].add(tensor)

    source_tokens = target_tokens = 0
    model = model.to(device).eval()
    with torch.no_grad():
        # One at a time: padding would count among the activations.
        for index in indices:
            batch = pairs.batch([index]).to(torch.device(device))
            with hooked(points, add):
                model.features(batch, PredictionSites.offline(batch))
            source_tokens += int(batch.source_lengths.sum())
            target_tokens += int(batch.target_lengths.sum())
    measured = [s.activations(point, points[point].kind) for point, s in sums.items() if s.values]
    if patterns and not measured:
        raise ConfigError(f"`{name}` has no activations at the requested points.")
    return Profile(name, model.architecture, len(indices), source_tokens, target_tokens, measured)


# Models have separate scales if their activations differ in size by more than this factor.
_UNLIKE = 6.0


def draw_profiles(profiles: Sequence[Profile], path: Path) -> None:
    """Draw means and deviations of all models, three in a row, on one scale, into `path`."""
    spans = [high - low for low, high in map(_span, profiles)]
    # One scale makes models comparable, but would hide activations that are much smaller.
    is_shared = max(spans) <= _UNLIKE * min(spans)
    names = [profile.system for profile in profiles]
    with new_diagrams(
        path, names, (3.2, 3.1), "activation (mean ± deviation)", sharey=is_shared
    ) as (figure, panels):
        for index, (axes, profile) in enumerate(zip(panels, profiles, strict=True)):
            _draw_profile(axes, profile, colour(index))
            if not is_shared:
                axes.set_ylim(_span(profile))
        legend = [Patch(facecolor=COLOURS[0], alpha=0.5, label="in colour: what layers pass on")]
        if any(point.kind == "change" for profile in profiles for point in profile.points):
            label = "in grey: changes before the skip connection"
            legend.append(Patch(facecolor=AXIS, alpha=0.5, label=label))
        if not is_shared:
            legend.append(Patch(facecolor="none", label="the scales differ"))
        add_legend(figure, legend, "Activations")


_Singles = list[tuple[float, Activations]]


def _axis(profile: Profile) -> tuple[dict[str, tuple[float, int]], _Singles, dict[float, str]]:
    """Return positions along a network, in layers from the left.

    They are the starts of parts with several layers, and the numbers of these; the points of the
    other parts; and the labels.
    """
    lines: dict[str, tuple[float, int]] = {}
    singles: _Singles = []
    ticks: dict[float, str] = {}
    by_part = {
        part: [point for point in profile.points if point.part == part] for part in profile.parts
    }
    depths = {part: max(p.layer or 0 for p in points) for part, points in by_part.items()}
    # Single points and parts are as far apart as their names need.
    step = max(1.0, sum(depths.values()) / 10)
    end = 0.0
    for part, points in by_part.items():
        if len(profile.along(part)) + len(profile.along(part, "change")) > 1:
            depth = depths[part]
            every = next((n for n in (1, 2, 4, 5, 10, 20, 50) if depth / n <= 7), depth)
            lines[part] = end, depth
            ticks |= {end + layer: str(layer) for layer in range(0, depth + 1, every)}
            end += depth + step
            continue
        for point in points:
            singles.append((end, point))
            known = part in ("embedding", "output")
            ticks[end] = point.point.partition(".")[2] if known else point.point
            end += step
    return lines, singles, ticks


def _span(profile: Profile) -> tuple[float, float]:
    """Return the ends of the scale: all bands and whiskers, and a small margin."""
    shown = [point for point in profile.points if point.kind != "inside"]
    shown += [point for _, point in _axis(profile)[1]]
    low = min(point.mean - point.deviation for point in shown)
    high = max(point.mean + point.deviation for point in shown)
    air = 0.05 * max(high - low, 1e-6)
    return low - air, high + air


def _draw_profile(axes: Axes, profile: Profile, colour: str) -> None:
    lines, singles, ticks = _axis(profile)
    for part, (start, depth) in lines.items():
        _draw_band(axes, profile.along(part, "change"), start, AXIS, (0, (3, 1.5)))
        _draw_band(axes, profile.along(part), start, colour, "-")
        axes.annotate(
            f"{shortened(part, 26)} layer", (start + depth / 2, 0.0), xytext=(0, -18),
            xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha="center", va="top",
        )  # fmt: skip
    for x, point in singles:
        axes.errorbar(
            [x], [point.mean], yerr=[point.deviation], fmt="o", markersize=3, capsize=2.5,
            color=colour if point.kind == "state" else AXIS, linewidth=1.0,
        )  # fmt: skip
    axes.axhline(0.0, color=AXIS, linewidth=0.5, zorder=1)
    axes.grid(axis="y")
    axes.set_xlim(-0.6, max(ticks) + 0.6)
    axes.set_xticks([*ticks], [shortened(text, 26) for text in ticks.values()])
    for label in axes.get_xticklabels():
        if not label.get_text().isdigit():
            label.set(rotation=55, ha="right", rotation_mode="anchor")


def _draw_band(
    axes: Axes, points: Sequence[tuple[float, Activations]], start: float, colour: str, dash: Any
) -> None:
    """Draw means as a line, and one standard deviation to either side as a band."""
    x = [start + depth for depth, _ in points]
    means = [point.mean for _, point in points]
    low = [point.mean - point.deviation for _, point in points]
    high = [point.mean + point.deviation for _, point in points]
    axes.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(
        x, means, color=colour, linewidth=1.4, linestyle=dash, markersize=2.5,
        marker="o" if len(points) < 3 else "",
    )  # fmt: skip


def draw_depths(profiles: Sequence[Profile], path: Path) -> None:
    """Draw means and deviations of the states against depth, one line per model, into `path`."""
    panels = []
    for part in dict.fromkeys(part for profile in profiles for part in profile.parts):
        for field, title in (("mean", "mean"), ("deviation", "standard deviation")):
            lines = [
                Line(
                    profile.system,
                    [depth for depth, _ in points],
                    [float(getattr(point, field)) for _, point in points],
                    style,
                    mark=True,
                )
                for style, profile in enumerate(profiles)
                if len(points := profile.along(part)) > 1
            ]
            panel = Panel(
                f"{part}: {title}",
                "layer (0: input of the first)",
                f"{title} of the activations",
                lines,
                least=0.0 if field == "deviation" else None,
                level=0.0,
                whole=True,
            )
            panels += [panel] if lines else []
    draw_panels(panels, path)


_TEXT = (
    "Trained models read {sentences} pairs of the split {split}, one at a time, with teacher "
    "forcing and without dropout. At each point of a network the mean and the standard deviation "
    "(population) are computed over all its features at all positions of all sentences (cells of "
    "the grid, if there is one), in double precision. A state is what a layer passes on, a change "
    "what a layer computes before its skip connection: a state is h_n and a change H_n "
    "= F_n(h_n-1); with dense connections a state is all features that the next layer reads. "
    "Batches do not matter here, whereas appendix A averages the means and deviations of batches."
)


def activations_section(profiles: Sequence[Profile], split: str) -> Section:
    """Return the activations of all models: figures, a table of their states, all points."""
    pictures = [
        Picture(
            "activations",
            "Activations at each point of the networks: means (lines, dots) and one standard "
            "deviation to either side (bands, whiskers) of what layers pass on, in colour, and of "
            "what they compute before the skip connection, in grey. Layer 0 is the input of the "
            "first layer. For a grid, target and source are the embeddings, network is the output "
            "of the network (accumulated, if the skip connection does so), pooled its aggregate "
            "over the source, and mapped the input of the classifier.",
            lambda path: draw_profiles(profiles, path),
        )
    ]
    if any(len(profile.along(part)) > 1 for profile in profiles for part in profile.parts):
        pictures.append(
            Picture(
                "activations-depth",
                "Mean and standard deviation of what each layer passes on, against depth.",
                lambda path: draw_depths(profiles, path),
            )
        )
    systems = [
        {
            **{name: value for name, value in vars(profile).items() if name != "points"},
            "points": [
                {**dataclasses.asdict(point), "part": point.part, "layer": point.layer}
                for point in profile.points
            ],
        }
        for profile in profiles
    ]
    return Section(
        "activations",
        "Activations along the networks",
        _TEXT.format(sentences=f"{profiles[0].sentences:,}", split=split),
        _tables(profiles),
        pictures,
        {"split": split, "systems": systems},
    )


def _tables(profiles: Sequence[Profile]) -> list[Table]:
    """Return tables of states and of changes for each architecture, one column per model.

    If only other points were requested, one table has all of them.
    """
    kinds = {
        "state": "what layers pass on",
        "change": "what they compute before the skip connections",
    }
    if all(point.kind == "inside" for profile in profiles for point in profile.points):
        kinds = {"inside": "at the requested points"}
    tables = []
    for architecture in dict.fromkeys(profile.architecture for profile in profiles):
        alike = [profile for profile in profiles if profile.architecture == architecture]
        for kind, title in kinds.items():
            title = f"Activations of `{architecture}`, mean ± deviation: {title}"
            tables.append(Table(title, ["point", *(p.system for p in alike)], _rows(alike, kind)))
    return [table for table in tables if table.rows]


def _rows(profiles: Sequence[Profile], kind: str) -> list[list[str | None]]:
    columns = [{p.point: p for p in profile.points if p.kind == kind} for profile in profiles]
    points = {name: point for column in columns for name, point in column.items()}
    order = list(dict.fromkeys(part for profile in profiles for part in profile.parts))
    # Sorting is stable: points without a layer number keep their order.
    names = sorted(
        points, key=lambda name: (order.index(points[name].part), points[name].layer or 0)
    )
    rows = []
    for name in names:
        cells = [
            f"{column[name].mean:.2f}±{column[name].deviation:.2f}" if name in column else None
            for column in columns
        ]
        rows.append([name.removesuffix(".state").removesuffix(".change"), *cells])
    return rows
