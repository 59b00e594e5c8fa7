"""What passes the points of a network while it runs: counts, means, deviations, ends."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.models.api import Point, TranslationModel


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


def chosen_points(
    model: TranslationModel, patterns: Sequence[str], name: str
) -> Mapping[str, Point]:
    """Return the model's points, or those and the parts that `patterns` name. See `profile`."""
    points = model.points()
    if not patterns:
        if not points:
            raise ConfigError(
                f"The architecture `{model.architecture}` of `{name}` names no points.",
                "Name parts of it with `--point`.",
            )
        return points
    parts = {part: Point(held, "inside") for part, held in model.named_modules() if part}
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


def _names(pattern: str, known: Mapping[str, Point]) -> bool:
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

    def __init__(self, points: Mapping[str, Point]) -> None:
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
