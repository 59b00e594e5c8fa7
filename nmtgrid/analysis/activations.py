"""Activations along a network (appendix A): their mean and deviation at each of its points.

A trained model is given sentences and their references, one pair at a time, so that nothing is
padded: all that passes a point counts, cells and features alike, in the precision of evaluation.

Departs: mean and deviation are those of all values of all sentences together; the print averages
the means and the deviations of batches, which depends on what stands in a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy
import torch
from numpy.typing import NDArray

from nmtgrid.analysis.activation_watch import Activations, Watch, chosen_points
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import Sites, TranslationModel


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
    points = chosen_points(model, patterns, name)
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
            model.features(batch, Sites.offline(batch))
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
