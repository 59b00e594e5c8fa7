"""What decoding keeps of the source: one copy for each sentence, shared by all of its rows.

Rows are sentences x beam. Keys and values of the source are the same for every row of a sentence,
so a beam of five need not hold, reorder or read them five times.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.layers.attention import attend, attention_weights

_WORTH_COPYING = 0.7
"""Share of the sentences below which some rows read copies of their own."""


@dataclasses.dataclass(frozen=True)
class SourceCache:
    """Source tensors of B sentences, each seen by `width` rows that stand side by side.

    keys and values: one pair for each attention of the decoder, [B, H, S, d]; mask [B, 1, 1, S]
    is additive (see layers/attention.py) or None. R = B * width rows. The first `lead` columns
    stand before the source and need no READ.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None
    width: int = 1
    lead: int = 0

    def keys_of(self, place: int) -> Tensor:
        """Return the keys [B, H, S, d] of attention `place`."""
        return self.keys[place]

    def values_of(self, place: int) -> Tensor:
        """Return the values [B, H, S, d] of attention `place`."""
        return self.values[place]

    def limited(self, reads: Tensor) -> SourceCache:
        """Return the memory that shows query t of sentence b its first reads[b, t] source tokens.

        reads [B, T] in teacher forcing, [B, width] in a step.
        """
        keys = self.keys_of(0)
        columns = torch.arange(keys.shape[2], device=reads.device)
        is_unread = columns >= (reads + self.lead)[:, None, :, None]
        mask = torch.zeros(is_unread.shape, dtype=keys.dtype, device=reads.device)
        mask.masked_fill_(is_unread, -math.inf)
        return dataclasses.replace(self, mask=mask if self.mask is None else mask + self.mask)

    def led_by_zero(self) -> SourceCache:
        """Return the memory behind one more column, whose keys and values are zero."""
        mask = self.mask
        return dataclasses.replace(
            self,
            keys=tuple(pad(tensor, (0, 0, 1, 0)) for tensor in self.keys),
            values=tuple(pad(tensor, (0, 0, 1, 0)) for tensor in self.values),
            mask=None if mask is None else pad(mask, (1, 0)),
            lead=self.lead + 1,
        )

    def written(self, rows: Tensor, part: SourceCache) -> SourceCache:
        """Return the memory with `rows` [R'] replaced by those of `part`, which may be narrower.

        Each row gets a memory of its own, and columns behind those of `part` are hidden.
        """
        count, size = self.keys[0].shape[0] * self.width, part.keys[0].shape[2]

        def write(held: Tensor, new: Tensor) -> Tensor:
            grown = held.repeat_interleave(self.width, 0) if self.width > 1 else held.clone()
            grown[rows, :, :size] = new.to(grown.dtype)
            return grown

        keys = tuple(map(write, self.keys, part.keys))
        values = tuple(map(write, self.values, part.values))
        mask = keys[0].new_zeros(count, 1, 1, keys[0].shape[2])
        if self.mask is not None:
            mask = mask + self.mask.repeat_interleave(self.width, 0)
        mask[rows] = -math.inf
        mask[rows, :, :, :size] = 0.0 if part.mask is None else part.mask.to(mask.dtype)
        return SourceCache(keys, values, mask, 1, self.lead)

    def attend(self, place: int, query: Tensor, *, scale: float | None = None) -> Tensor:
        """Return [R, H, d]: what the rows' queries [R, H, d] read from attention `place`."""
        keys, values = self.keys_of(place), self.values_of(place)
        read = attend(self._grouped(query), keys, values, self.mask, scale=scale)
        return read.transpose(1, 2).flatten(0, 1)

    def of_rows(self, place: int, rows: Tensor) -> SourceCache:
        """Return the memory of attention `place` alone, as its first, for some rows [R'].

        Each row gets a copy of its own.
        """
        keys, width = self.keys_of(place), self.width
        sentences = rows if width == 1 else rows // width
        mask = self.mask
        if mask is not None and mask.shape[2] > 1:  # one for each row: reads are limited
            mask = mask.transpose(1, 2).reshape(len(keys) * width, 1, 1, -1).index_select(0, rows)
        elif mask is not None:
            mask = mask.index_select(0, sentences)
        values = self.values_of(place).index_select(0, sentences)
        return SourceCache((keys.index_select(0, sentences),), (values,), mask, 1, self.lead)

    def attend_rows(self, place: int, query: Tensor, rows: Tensor) -> Tensor:
        """Return [R', H, d]: what the queries [R', H, d] of some rows [R'] read."""
        sentences = self.keys_of(place).shape[0]
        if len(rows) < _WORTH_COPYING * sentences:
            return self.of_rows(place, rows).attend(0, query)
        # So many rows cost less without copies of what they read.
        every = query.new_zeros(sentences * self.width, *query.shape[1:])
        return self.attend(place, every.index_copy(0, rows, query)).index_select(0, rows)

    def weights(self, place: int, query: Tensor, *, scale: float | None = None) -> Tensor:
        """Return [R, H, S]: the weights with which `attend` reads the source."""
        keys = self.keys_of(place)
        found = attention_weights(self._grouped(query), keys, self.mask, scale=scale)
        return found.transpose(1, 2).flatten(0, 1)

    def attend_all(self, place: int, query: Tensor, *, dropout: float = 0.0) -> Tensor:
        """Return [B, H, T, d]: what all positions' queries [B, H, T, d] read, in teacher forcing.

        `dropout` is the rate at which weights are dropped: pass 0 outside training.
        """
        keys, values = self.keys_of(place), self.values_of(place)
        return attend(query, keys, values, self.mask, dropout=dropout)

    def weights_all(self, place: int, query: Tensor) -> Tensor:
        """Return [B, H, T, S]: the weights with which `attend_all` reads the source."""
        return attention_weights(query, self.keys_of(place), self.mask)

    def ready(self) -> SourceCache:
        """Return the memory in contiguous tensors, as decoding reads it over and over."""
        return dataclasses.replace(
            self,
            keys=tuple(tensor.contiguous() for tensor in self.keys),
            values=tuple(tensor.contiguous() for tensor in self.values),
        )

    def take_rows(self, rows: Tensor) -> SourceCache:
        """Return the memory of `rows` [R']: nothing is copied while rows stay with their sentence.

        Where each kept sentence has equally many rows side by side, only the kept sentences are
        copied; any other choice gives each row a copy of its own.
        """
        kept, width = self._kept(rows)
        if kept is None:
            return dataclasses.replace(self, width=width)
        return SourceCache(
            tuple(tensor.index_select(0, kept) for tensor in self.keys),
            tuple(tensor.index_select(0, kept) for tensor in self.values),
            None if self.mask is None else self.mask.index_select(0, kept),
            width,
            self.lead,
        )

    def _kept(self, rows: Tensor) -> tuple[Tensor | None, int]:
        """Return the sentences to copy for `rows` [R'] (None: none is copied) and the new width."""
        count = self.keys_of(0).shape[0]
        sentences = rows if self.width == 1 else rows // self.width
        if sentences.shape[0] % count == 0:
            width = sentences.shape[0] // count
            still = torch.arange(count, device=rows.device).repeat_interleave(width)
            if width and torch.equal(sentences, still):
                return None, width
        kept, counts = torch.unique_consecutive(sentences, return_counts=True)
        width = int(counts[0])
        return (kept, width) if bool((counts == width).all()) else (sentences, 1)

    def _grouped(self, query: Tensor) -> Tensor:
        """Return [B, H, width, d]: the queries of each sentence's rows as target positions."""
        return query.reshape(-1, self.width, *query.shape[1:]).transpose(1, 2)
