"""Keys and values of the target tokens written so far, for all blocks of a decoder."""

from __future__ import annotations

import weakref

from torch import Tensor


class TokenCache:
    """Keys and values of `filled` tokens in each of N blocks; written in place, grown by doubling.

    The buffer is [N, R, capacity, 2D]. `push` writes one token in one block, `advance` makes it
    count in all of them. Taking rows copies what is filled, into the buffer of the cache before
    the last where nobody holds that cache any more: fresh memory costs more than the copy.
    """

    def __init__(self, blocks: int, capacity: int = 32) -> None:
        self.blocks, self.capacity = blocks, capacity
        self.filled = 0
        self.buffer: Tensor | None = None
        self._before: weakref.ref[TokenCache] | None = None
        self._spare: Tensor | None = None

    def push(self, place: int, newest: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values `newest` [R, 2D] in block `place`; return all, [R, t, D] each."""
        if self.buffer is None:
            shape = (self.blocks, len(newest), self.capacity, newest.shape[1])
            self.buffer = newest.new_empty(shape)
        elif self.filled == self.buffer.shape[2]:
            self._grow()
        held = self.buffer[place]
        held[:, self.filled] = newest
        keys, values = held[:, : self.filled + 1].chunk(2, -1)
        return keys, values

    def advance(self) -> None:
        """Count the token that was pushed in every block."""
        self.filled += 1

    def take_rows(self, rows: Tensor) -> TokenCache:
        """Return the cache of `rows` [R']."""
        taken = TokenCache(self.blocks, self.capacity)
        taken.filled = self.filled
        if self.buffer is None or not self.filled:
            return taken
        shape = (self.blocks, len(rows), *self.buffer.shape[2:])
        target = self._reusable(shape)
        for place in range(self.blocks):
            live = self.buffer[place, :, : self.filled]
            target[place, :, : self.filled] = live.index_select(0, rows)
        taken.buffer = target
        taken._spare, taken._before = self.buffer, weakref.ref(self)
        return taken

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
        blocks, rows, capacity, size = self.buffer.shape
        grown = self.buffer.new_empty(blocks, rows, 2 * capacity, size)
        grown[:, :, :capacity] = self.buffer
        self.buffer = grown
