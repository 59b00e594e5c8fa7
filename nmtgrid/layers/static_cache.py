"""What decoding keeps, in tensors that stay where they are: the form that a recorded step needs.

Every cache has the size that it will need, is written in place, and is told by a `StaticPosition`
where. `take` (base/rows.py) makes a new state of some rows, `write` puts its values where the old
ones are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.static_position import RingIndex, StaticPosition
from nmtgrid.layers.transformer.kv_cache import KVCache

_LEAST_ROOM = 32
"""Tokens that a cache has room for at first."""

Form = TypeVar("Form")


class HasStaticForm(Protocol):
    """A decoding state with a fixed form."""

    def to_static(self, place: StaticPosition, rows: Tensor, width: int) -> Self | None:
        """Return the fixed form of `rows` [R], in new tensors; None where there is none (yet).

        Rows stand in groups of `width`, each of one sentence; a row may come more than once.
        `place` is moved to where the state stands.
        """
        ...

    def with_room(self, position: int) -> Self:
        """Return this fixed state, or, where `position` has no room in it, a larger copy."""
        ...


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a fixed state, always in the same order."""
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


def write(state: Form, values: Form) -> None:
    """Copy what the fixed state `values` holds into `state`, which has the same shapes."""
    for here, new in zip(tensors(state), tensors(values), strict=True):
        here.copy_(new)


class RowSource(Protocol):
    """A cache of rows that is not fixed."""

    buffer: Tensor
    filled: int
    span: int


class RingCache:
    """The last rows that one convolution has seen, in a ring [R, span, S, D].

    Rows stay where they were written: it is the taps that are turned.
    """

    def __init__(self, buffer: Tensor, ring: RingIndex) -> None:
        self.buffer, self.ring = buffer, ring

    @classmethod
    def of(cls, cache: RowSource, place: StaticPosition) -> RingCache:
        """Return the rows of `cache`, the next of which is that of `place`."""
        keep = cache.span - 1
        live = cache.buffer[:, cache.filled - keep : cache.filled]
        rows = pad(live, (0, 0, 0, 0, 0, 1))
        return cls(rows.roll((place.position - keep) % cache.span, 1), place.ring(cache.span))

    def push(self, row: Tensor) -> Tensor:
        """Write `row` [R, S, D] over the oldest and return all [R, span, S, D], as they lie."""
        self.buffer.index_copy_(1, self.ring.slot, row[:, None])
        return self.buffer

    def turned(self, taps: Tensor) -> Tensor:
        """Return `taps` [D, 1 or D', span, k] in the order of the rows."""
        return taps.index_select(2, self.ring.taps)

    def take_rows(self, rows: Tensor) -> RingCache:
        """Return the cache of `rows`."""
        return RingCache(self.buffer.index_select(0, rows), self.ring)

    def static_tensors(self) -> tuple[Tensor, ...]:
        """Return what stays where it is."""
        return (self.buffer,)


class StaticKVCache(KVCache):
    """Keys and values of the tokens so far, in a buffer with room for more.

    hidden [1, 1, 1, capacity] is the additive mask over those that are not written yet.
    """

    def __init__(self, blocks: int, buffer: Tensor, hidden: Tensor, place: StaticPosition) -> None:
        super().__init__(blocks, buffer.shape[3])
        self.buffer: Tensor = buffer
        self._hidden, self._place = hidden, place

    @classmethod
    def of(cls, cache: KVCache, place: StaticPosition, rows: Tensor) -> StaticKVCache:
        """Return the keys and values of `rows` [R] that `cache` holds."""
        assert cache.buffer is not None, "nothing has been pushed"
        live = cache.buffer[..., : cache.filled, :].index_select(0, rows)
        hidden = live.new_zeros(1, 1, 1, cache.filled)
        return cls(cache.blocks, live, hidden, place).with_room(cache.filled)

    def with_room(self, position: int) -> StaticKVCache:
        """Return this cache, or, where `position` has no room in it, a larger copy."""
        missing = max(_LEAST_ROOM, 1 << position.bit_length()) - self.capacity
        if position < self.capacity:
            return self
        return StaticKVCache(
            self.blocks,
            pad(self.buffer, (0, 0, 0, missing)),
            pad(self._hidden, (0, missing), value=-math.inf),
            self._place,
        )

    @property
    def position(self) -> StaticPosition:
        """Where the newest token stands."""
        return self._place

    @property
    def hidden(self) -> Tensor:
        """The additive mask over the tokens that are not written yet."""
        return self._hidden

    def push_pair(self, place: int, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest keys and values [R, 2, H, d] in block `place`.

        Returns the whole buffer's, [R, H, capacity, d] each.
        """
        if not place:
            self._hidden.index_fill_(3, self._place.at, 0.0)
        live, size = self.buffer[:, :, place], pair.shape[3]
        newest = pair.transpose(1, 2).flatten(2)[:, :, None]
        live.index_copy_(2, self._place.at, newest.to(live.dtype))
        return live[..., :size], live[..., size:]

    def advance(self) -> None:
        """Do nothing: the place is moved from outside."""

    def take_rows(self, rows: Tensor) -> StaticKVCache:
        """Return the cache of `rows` [R']."""
        buffer = self.buffer.index_select(0, rows)
        return StaticKVCache(self.blocks, buffer, self._hidden.clone(), self._place)

    def static_tensors(self) -> tuple[Tensor, ...]:
        """Return what stays where it is."""
        return self.buffer, self._hidden


@dataclasses.dataclass(frozen=True)
class StaticSourceCache(SourceCache):
    """A source memory whose sentences keep `width` rows each, so that nothing has to be asked."""

    @classmethod
    def of(cls, memory: SourceCache, rows: Tensor, width: int) -> StaticSourceCache:
        """Return the memory of `rows` [R], each `width` of which are of one sentence."""
        kept = torch.div(rows[::width], memory.width, rounding_mode="floor")
        mask = memory.mask
        return cls(
            tuple(tensor.index_select(0, kept) for tensor in memory.keys),
            tuple(tensor.index_select(0, kept) for tensor in memory.values),
            None if mask is None else mask.index_select(0, kept),
            width,
            memory.lead,
        )

    def take_rows(self, rows: Tensor) -> StaticSourceCache:
        """Return the memory of `rows` [R'], which stand in groups as before."""
        return StaticSourceCache.of(self, rows, self.width)
