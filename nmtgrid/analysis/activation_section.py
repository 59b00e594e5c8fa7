"""The section on activations: its tables, pictures and numbers; `activations` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.activation_watch import Activations
from nmtgrid.analysis.activations import Profile, along, parts
from nmtgrid.analysis.section import Picture, Section, Table

TEXT = (
    "Trained models are given {sentences} pairs of the split {split}, one at a time and teacher "
    "forced, without dropout. At each point of a network the mean and the standard deviation "
    "(population) are taken over all its features at all positions of all sentences (cells of the "
    "grid, where there is one), in double precision. A state is what a layer passes on, a change "
    "what a layer computes before its skip connection takes it in: a state is h_n and a change H_n "
    "= F_n(h_n-1); with dense connections a state is all features that the next layer reads. "
    "Batches do not matter here: appendix A averages the means and deviations of batches."
)


def section(profiles: Sequence[Profile], split: str) -> Section:
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
    rows = [[_short(name), *(_told(column.get(name)) for column in columns)] for name in names]
    return Table(title, ["point", *(one.system for one in profiles)], rows)


def _short(name: str) -> str:
    return name.removesuffix(".state").removesuffix(".change")


def _told(point: Activations | None) -> str | None:
    return None if point is None else f"{point.mean:.2f}±{point.deviation:.2f}"


def _pictures(profiles: Sequence[Profile]) -> list[Picture]:
    def draw(path: Path) -> None:
        from nmtgrid.analysis.plots_activations import draw_profiles

        draw_profiles(profiles, path)

    def compare(path: Path) -> None:
        from nmtgrid.analysis.plots_activations import draw_depths

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
