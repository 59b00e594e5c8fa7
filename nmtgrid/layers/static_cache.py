"""Decoding states in tensors with fixed addresses, as CUDA graphs need them.

A recorded step contains addresses, not values, so one recording serves every position only if the
position itself is read from memory. Every cache has the size that it will need and is written in
place, at the index in a `StaticPosition`. The static forms of caches are `StaticKVCache`
(transformer/kv_cache.py), `SourceCache.to_static` (source_cache.py) and `RingCache`
(grid/convolution.py); search/cuda_graphs.py records the steps and advances the position. A decoding
state has a static form if it has the methods `to_static` and `with_room` (see `GridState`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


class RingIndex:
    """The slot of the newest row in a ring of `span` rows, and the tap of each row.

    slot [1] is the row written at the current position, taps [span] the tap of each row, the last
    tap being that of the newest row.
    """

    def __init__(self, span: int, device: torch.device) -> None:
        self.span = span
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        self.taps = torch.zeros(span, dtype=torch.long, device=device)
        slots = torch.arange(span, device=device)
        self._taps_of_slot = span - 1 - (slots[:, None] - slots[None, :]) % span

    def move(self, position: int) -> None:
        """Point to the row of `position`."""
        slot = position % self.span
        self.slot.fill_(slot)
        self.taps.copy_(self._taps_of_slot[slot])


class StaticPosition:
    """The position of the current token, the same in all rows: a tensor `index` [1]."""

    def __init__(self, device: torch.device) -> None:
        self.index = torch.zeros(1, dtype=torch.long, device=device)
        self.position = 0
        self._rings: dict[int, RingIndex] = {}

    def move(self, position: int) -> None:
        """Move to `position` without synchronising with the device."""
        self.position = position
        # `fill_` passes the number to a kernel; assigning an element would synchronise.
        self.index.fill_(position)
        for ring in self._rings.values():
            ring.move(position)

    def ring(self, span: int) -> RingIndex:
        """Return the ring of `span` rows, which moves with the position."""
        if span not in self._rings:
            self._rings[span] = RingIndex(span, self.index.device)
            self._rings[span].move(self.position)
        return self._rings[span]


Position = int | StaticPosition


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a static state, always in the same order."""
    if isinstance(value, Tensor):
        yield value
    elif hasattr(value, "static_tensors"):
        yield from value.static_tensors()
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def write(state: State, values: State) -> None:
    """Copy the tensors of the static state `values` into `state`, which has the same shapes."""
    for target, source in zip(tensors(state), tensors(values), strict=True):
        target.copy_(source)
