"""Key-value caches: keys and values of the target tokens so far, for all blocks of a decoder.

`KVCache` grows; `StaticKVCache` has a fixed address in memory (layers/static_cache.py); the rows of
a `DraftKVCache` keep different numbers of the tokens that were written. Used by the steps of
Transformer blocks, and for the source in streams (models/transformer/source.py).
"""

from __future__ import annotations

import math
import weakref

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.layers.attention import VECTOR
from nmtgrid.layers.static_cache import Position, StaticPosition

COLUMNS = 2 * VECTOR
"""On a CPU softmax over fewer columns, or the remainder of a multiple, is several times slower."""
_LEAST_ROOM = 32
"""Initial capacity of a static cache in tokens."""


class KVCache:
    """Keys and values of `filled` tokens in each of N blocks; written in place, grown by doubling.

    The buffer is [N, 2, capacity, R, H, d]: what a step writes is adjacent, and what a block reads
    is contiguous in memory and a plain view for batched products. `push` writes one token in one
    block, `advance` counts it in all of them. Taking rows copies the filled part, into the buffer
    of the cache before the last if that cache is no longer in use: new memory costs more than the
    copy.
    """

    hidden: Tensor | None = None
    """The additive mask over the keys that `push_pair` returns; None: all are visible."""

    def __init__(self, blocks: int, capacity: int = 16) -> None:
        self.blocks, self.capacity = blocks, capacity
        self.filled = 0
        self.buffer: Tensor | None = None
        # A beam takes rows at every step (decoding at beam 5 in benchmarks/results/
        # cpu-1-thread.md). The buffer of the cache before the last is reused, but only if the weak
        # reference shows that this cache no longer exists.
        self._before: weakref.ref[KVCache] | None = None
        self._spare: Tensor | None = None
        self._is_promised = False

    @property
    def position(self) -> Position:
        """The position of the newest token."""
        return self.filled

    def push(self, block: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest keys and values [R, H, d] in `block`.

        Returns those of all tokens, [R, H, t, d] each.
        """
        return self.push_pair(block, torch.stack([keys, values], 1))

    def push_pair(self, block: int, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same as `push` for adjacent keys and values [R, 2, H, d]."""
        live = self._with_room(pair[:, 0])[block, :, : self.filled + 1]
        live[:, self.filled].copy_(pair.transpose(0, 1))
        return _in_rows(live)

    def push_rest(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Write the newest keys and values [R, H, n, d] in the last n blocks, `first` and after."""
        newest = self._with_room(keys)[first:, :, self.filled]
        newest.copy_(torch.stack([keys, values]).permute(3, 0, 1, 2, 4))

    def put_newest(self, rows: Tensor, other: KVCache) -> None:
        """Copy the newest keys and values of `rows` [R'] from `other`, a cache of these rows."""
        assert self.buffer is not None and other.buffer is not None, "nothing has been pushed"
        self.buffer[:, :, self.filled].index_copy_(2, rows, other.buffer[:, :, self.filled])

    def read(self, block: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all tokens in `block`, [R, H, t, d] each.

        With `rows` [R'] only theirs, including the newest token, which is not counted yet.
        """
        assert self.buffer is not None, "nothing has been pushed"
        if rows is None:
            return _in_rows(self.buffer[block, :, : self.filled])
        return _in_rows(self.buffer[block, :, : self.filled + 1].index_select(2, rows))

    def advance(self) -> None:
        """Count the token that was pushed in every block."""
        self.filled += 1

    def take_rows(self, rows: Tensor) -> KVCache:
        taken = KVCache(self.blocks, self.capacity)
        taken.filled = self.filled
        if self.buffer is None or not self.filled:
            return taken
        # Under autograd an older step may still have saved the memory that would be overwritten.
        if self.buffer.requires_grad:
            taken.buffer = self.buffer.index_select(3, rows)
            return taken
        shape = (*self.buffer.shape[:3], len(rows), *self.buffer.shape[4:])
        spare, before = self._spare, self._before
        self._spare = self._before = None
        is_free = spare is not None and before is not None and before() is None
        if spare is None or not is_free or spare.shape != shape:
            spare = self.buffer.new_empty(shape)
        taken.buffer = spare
        live = self.buffer[:, :, : self.filled]
        torch.index_select(live, 3, rows, out=taken.buffer[:, :, : self.filled])
        # Promised to only one cache: two would write into the same memory.
        if not self._is_promised:
            self._is_promised = True
            taken._spare, taken._before = self.buffer, weakref.ref(self)
        return taken

    def _with_room(self, like: Tensor) -> Tensor:
        """Return the buffer, with room for one more token of shape [R, H, ..., d]."""
        if self.buffer is None:
            rows, heads, *_, size = like.shape
            self.buffer = like.new_empty(self.blocks, 2, self.capacity, rows, heads, size)
        elif self.filled == self.buffer.shape[2]:
            grown = self.buffer.new_empty(self.blocks, 2, 2 * self.filled, *self.buffer.shape[3:])
            grown[:, :, : self.filled] = self.buffer
            self.buffer = grown
        return self.buffer


def _in_rows(live: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values [R, H, t, d] of a block's part [2, t, R, H, d] of a buffer."""
    keys, values = live.permute(0, 2, 3, 1, 4).unbind(0)
    return keys, values


class DraftKVCache(KVCache):
    """Keys and values of drafts: rows keep different numbers of the newest tokens.

    All rows write into the same columns. `keep` hides the columns of tokens that a row does not
    keep, and columns that no row keeps are overwritten. Several tokens at once read a multiple of
    COLUMNS columns, of which `mask_of` hides those not written yet.
    """

    _holes: Tensor | None = None
    """The additive mask [R, 1, 1, capacity] over columns of tokens that were not kept."""

    def advance(self) -> None:
        super().advance()
        self._show()

    def push_several(self, block: int, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest Q keys and values [R, Q, 2, H, d] of `block`, which are counted.

        Returns those of t columns, [R, H, t, d] each.
        """
        assert self.buffer is not None, "the first block has not been run"
        count = pairs.shape[1]
        live = self.buffer[block, :, : self._columns]
        live[:, self.filled - count : self.filled].copy_(pairs.permute(2, 1, 0, 3, 4))
        return _in_rows(live)

    def mask_of(self, count: int) -> Tensor:
        """Return the additive mask [R or 1, 1, Q, t] of the newest Q tokens."""
        assert self.buffer is not None
        shape = count, self._columns
        later = self.buffer.new_full(shape, -math.inf).triu_(self.filled - count + 1)
        return later[None, None] if self._holes is None else later + self._holes[..., : shape[1]]

    @property
    def _columns(self) -> int:
        assert self.buffer is not None
        return min(-(-self.filled // COLUMNS) * COLUMNS, self.buffer.shape[2])

    def _with_room(self, like: Tensor) -> Tensor:
        before, buffer = self.buffer, super()._with_room(like)
        if buffer is not before:
            # Hidden columns are multiplied by 0, so they must not contain NaN.
            buffer[:, :, self.filled :] = 0.0
        return buffer

    def keep(self, kept: Tensor, count: int) -> None:
        """Keep the first `kept` [R] of each row's newest `count` tokens, at least 1."""
        assert self.buffer is not None
        most = int(kept.max())
        self.filled -= count - most
        if bool((kept < most).any()):
            if self._holes is None:
                self._holes = self.buffer.new_zeros(len(kept), 1, 1, self.buffer.shape[2])
            columns = torch.arange(most, device=kept.device)
            hidden = self._holes[:, 0, 0, self.filled - most : self.filled]
            hidden.masked_fill_(columns >= kept[:, None], -math.inf)
        self._show()

    def take_rows(self, rows: Tensor) -> DraftKVCache:
        taken = DraftKVCache(self.blocks, self.capacity)
        taken.filled = self.filled
        if self.buffer is not None:
            taken.buffer = self.buffer[:, :, : self._columns].index_select(3, rows)
        taken._holes = None if self._holes is None else self._holes.index_select(0, rows)
        taken._show()
        return taken

    def _show(self) -> None:
        """Set the mask of the next token."""
        if self._holes is None:
            return
        missing = self.filled + 1 - self._holes.shape[3]
        if missing > 0:
            self._holes = pad(self._holes, (0, max(missing, self.filled)))
        self.hidden = self._holes[..., : self.filled + 1]


class StaticKVCache(KVCache):
    """Keys and values of the tokens so far, in a buffer with room for more.

    hidden [1, 1, 1, capacity] is the additive mask that hides tokens not written yet.
    """

    buffer: Tensor
    hidden: Tensor

    def __init__(
        self, blocks: int, buffer: Tensor, hidden: Tensor, position: StaticPosition
    ) -> None:
        super().__init__(blocks, buffer.shape[2])
        self.buffer, self.hidden, self._position = buffer, hidden, position

    @classmethod
    def of(cls, cache: KVCache, position: StaticPosition, rows: Tensor) -> StaticKVCache:
        """Return a static cache of the keys and values of `rows` [R] in `cache`."""
        assert cache.buffer is not None, "nothing has been pushed"
        live = cache.buffer[:, :, : cache.filled].index_select(3, rows)
        hidden = live.new_zeros(1, 1, 1, cache.filled)
        return cls(cache.blocks, live, hidden, position).with_room(cache.filled)

    def with_room(self, position: int) -> StaticKVCache:
        if position < self.capacity:
            return self
        # Powers of two, so that a search has few shapes: each one needs its own recording.
        missing = max(_LEAST_ROOM, 1 << position.bit_length()) - self.capacity
        return StaticKVCache(
            self.blocks,
            pad(self.buffer, (0, 0, 0, 0, 0, 0, 0, missing)),
            pad(self.hidden, (0, missing), value=-math.inf),
            self._position,
        )

    @property
    def position(self) -> StaticPosition:
        return self._position

    def push_pair(self, block: int, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest keys and values [R, 2, H, d] in `block`.

        Returns those of the whole buffer, [R, H, capacity, d] each.
        """
        # The first block of a step unhides the new column for all blocks, which share the mask.
        if not block:
            self.hidden.index_fill_(3, self._position.index, 0.0)
        live, newest = self.buffer[block], pair.transpose(0, 1)[:, None]
        live.index_copy_(1, self._position.index, newest.to(live.dtype))
        return _in_rows(live)

    def advance(self) -> None:
        """Do nothing: search/cuda_graphs.py advances the position."""

    def take_rows(self, rows: Tensor) -> StaticKVCache:
        buffer = self.buffer.index_select(3, rows)
        # Each state has its own mask, because it may move to a slot of another size.
        return StaticKVCache(self.blocks, buffer, self.hidden.clone(), self._position)

    def static_tensors(self) -> tuple[Tensor, ...]:
        return self.buffer, self.hidden
