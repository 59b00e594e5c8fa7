"""Keys and values of the target tokens written so far, for all blocks of a decoder."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from nmtgrid.layers.static_position import Position


class KVCache:
    """Keys and values of `filled` tokens in each of N blocks; written in place, grown by doubling.

    The buffer is [R, H, N, capacity, 2d]: what a row owns lies together, and what a block reads
    is a plain view for batched products. `push` writes one token in one block, `advance` makes it
    count in all of them. Taking rows copies what is filled, into the buffer of the cache before
    the last where nobody holds that cache any more: fresh memory costs more than the copy.
    """

    def __init__(self, blocks: int, capacity: int = 16) -> None:
        self.blocks, self.capacity = blocks, capacity
        self.filled = 0
        self.buffer: Tensor | None = None
        self._before: weakref.ref[KVCache] | None = None
        self._spare: Tensor | None = None
        self._is_promised = False
        """Whether a cache that was taken from this one may have its buffer when it is gone."""

    @property
    def position(self) -> Position:
        """Where the newest token stands."""
        return self.filled

    @property
    def hidden(self) -> Tensor | None:
        """The additive mask over what `push_pair` returns: None, all of it is to be seen."""
        return None

    def push(self, place: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest keys and values [R, H, d] in block `place`.

        Returns those of all tokens, [R, H, t, d] each.
        """
        size = keys.shape[2]
        live = self._room(keys)[:, :, place, : self.filled + 1]
        newest = live[:, :, self.filled]
        newest[..., :size], newest[..., size:] = keys, values
        return live[..., :size], live[..., size:]

    def push_pair(self, place: int, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Do what `push` does for keys and values that lie together, [R, 2, H, d]."""
        live = self._room(pair[:, 0])[:, :, place, : self.filled + 1]
        rows, _, heads, size = pair.shape
        live[:, :, self.filled].view(rows, heads, 2, size).copy_(pair.transpose(1, 2))
        return live[..., :size], live[..., size:]

    def push_rest(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Write the newest keys and values [R, H, n, d] in the last n blocks, `first` and after."""
        size = keys.shape[3]
        newest = self._room(keys)[:, :, first:, self.filled]
        newest[..., :size], newest[..., size:] = keys, values

    def read(self, place: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all tokens in block `place`, [R, H, t, d] each."""
        assert self.buffer is not None, "nothing has been pushed"
        size = self.buffer.shape[-1] // 2
        live = self.buffer[:, :, place, : self.filled]
        return live[..., :size], live[..., size:]

    def of_rows(self, place: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return what block `place` holds of `rows` [R'], the newest token included.

        [R', H, t, d] each.
        """
        assert self.buffer is not None, "nothing has been pushed"
        size = self.buffer.shape[-1] // 2
        live = self.buffer[:, :, place, : self.filled + 1].index_select(0, rows)
        return live[..., :size], live[..., size:]

    def advance(self) -> None:
        """Count the token that was pushed in every block."""
        self.filled += 1

    def take_rows(self, rows: Tensor) -> KVCache:
        """Return the cache of `rows` [R']."""
        taken = KVCache(self.blocks, self.capacity)
        taken.filled = self.filled
        if self.buffer is None or not self.filled:
            return taken
        if self.buffer.requires_grad:
            taken.buffer = self.buffer.index_select(0, rows)
            return taken
        taken.buffer = self._reusable((len(rows), *self.buffer.shape[1:]))
        live = self.buffer[..., : self.filled, :]
        torch.index_select(live, 0, rows, out=taken.buffer[..., : self.filled, :])
        if not self._is_promised:  # to one alone: two would write into the same memory
            self._is_promised = True
            taken._spare, taken._before = self.buffer, weakref.ref(self)
        return taken

    def _room(self, like: Tensor) -> Tensor:
        """Return the buffer, with room for one more token of shape [R, H, ..., d]."""
        if self.buffer is None:
            shape = (*like.shape[:2], self.blocks, self.capacity, 2 * like.shape[-1])
            self.buffer = like.new_empty(shape)
        elif self.filled == self.buffer.shape[3]:
            self._grow()
        return self.buffer

    def _reusable(self, shape: tuple[int, ...]) -> Tensor:
        """Return a buffer that nobody reads, the one before the last where that is so."""
        assert self.buffer is not None
        spare, before = self._spare, self._before
        self._spare = self._before = None
        if spare is not None and before is not None and before() is None and spare.shape == shape:
            return spare
        return self.buffer.new_empty(shape)

    def _grow(self) -> None:
        assert self.buffer is not None
        grown = self.buffer.new_empty(
            (*self.buffer.shape[:3], 2 * self.filled, self.buffer.shape[4])
        )
        grown[..., : self.filled, :] = self.buffer
        self.buffer = grown
