"""Keys and values of the source for decoding: one copy per sentence, shared by all of its rows.

Rows are sentences x beam. Keys and values of the source are the same for every row of a sentence,
so a beam of five need not store, reorder or read them five times. Built by the encoders of models,
read by their decoders.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.layers.attention import attend, attention_weights, missing_columns
from nmtgrid.layers.kernels.dropout import dropout

_WORTH_COPYING = 0.7
"""With fewer rows per sentence than this, `attend_rows` copies keys and values for the rows."""


def with_hidden_columns(mask: Tensor | None, like: Tensor, columns: int, padding: int) -> Tensor:
    """Return the additive mask [B, 1, 1, S + padding] that hides `padding` more columns.

    It has the type of `like` [B, ...]; without a `mask` all S `columns` are visible.
    """
    if mask is None:
        mask = like.new_zeros(len(like), 1, 1, columns)
    return pad(mask, (0, padding), value=-math.inf)


@dataclasses.dataclass(frozen=True)
class SourceCache:
    """Source tensors of B sentences, each shared by `width` adjacent rows.

    keys and values: one pair for each attention of the decoder, [B, H, S, d]; mask [B, 1, 1, S]
    is additive (see layers/attention.py) or None. R = B * width rows. The first `lead` columns
    precede the source and need no READ; the last `padding` ones follow it and are hidden by the
    mask. In a static cache (layers/static_cache.py) sentences keep `width` rows each, so that
    nothing synchronises with the device.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None
    width: int = 1
    lead: int = 0
    is_static: bool = False
    padding: int = 0

    @classmethod
    def over(cls, memory: SourceCache, **parts: Any) -> Self:
        """Return `memory` as a cache of this class, with its further fields `parts`."""
        shared = memory.keys, memory.values, memory.mask, memory.width, memory.lead
        return cls(*shared, **parts)

    @property
    def count(self) -> int:
        """B, the number of sentences."""
        return len(self.keys[0])

    def pair(self, block: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, S, d] that decoder block `block` attends to."""
        return self.keys[block], self.values[block]

    def limited(self, reads: Tensor) -> SourceCache:
        """Return the cache in which query t of sentence b sees its first reads[b, t] source tokens.

        reads [B, T] in teacher forcing, [B, width] in a step.
        """
        keys, _ = self.pair(0)
        # Columns before the source are always visible: they cost no READ.
        columns = torch.arange(keys.shape[2], device=reads.device)
        is_unread = columns >= (reads + self.lead)[:, None, :, None]
        mask = torch.zeros(is_unread.shape, dtype=keys.dtype, device=reads.device)
        mask.masked_fill_(is_unread, -math.inf)
        return dataclasses.replace(self, mask=mask if self.mask is None else mask + self.mask)

    def led_by_zero(self) -> SourceCache:
        """Return the cache with an additional first column of zero keys and values."""
        mask = None if self.mask is None else pad(self.mask, (1, 0))
        return self._changed(lambda part: pad(part, (0, 0, 1, 0)), mask=mask, lead=self.lead + 1)

    def with_rows(self, rows: Tensor, new: SourceCache) -> SourceCache:
        """Return the cache with `rows` [R'] replaced by those of `new`, which may be narrower.

        Each row gets its own copy, and columns after those of `new` are hidden.
        """
        # Rows read different prefixes after this, so they can no longer share keys and values.
        size = new.keys[0].shape[2]

        def replaced(old: Tensor, part: Tensor) -> Tensor:
            copy = old.repeat_interleave(self.width, 0) if self.width > 1 else old.clone()
            copy[rows, :, :size] = part.to(copy.dtype)
            return copy

        keys = tuple(map(replaced, self.keys, new.keys))
        values = tuple(map(replaced, self.values, new.values))
        mask = keys[0].new_zeros(len(keys[0]), 1, 1, keys[0].shape[2])
        if self.mask is not None:
            mask = mask + self.mask.repeat_interleave(self.width, 0)
        mask[rows] = -math.inf
        mask[rows, :, :, :size] = 0.0 if new.mask is None else new.mask.to(mask.dtype)
        return SourceCache(keys, values, mask, 1, self.lead, padding=self.padding)

    def select(self, block: int, features: Tensor) -> None:
        """Choose what the heads of `block` see, for features [B, T, D] ([R, D] in a step).

        Called before the block attends. Here nothing is chosen: heads see the source read so far.
        """

    def attend(self, block: int, query: Tensor, *, scale: float | None = None) -> Tensor:
        """Return the context [R, H, d] of the rows' queries [R, H, d] in a step of `block`."""
        mask = self.mask_for(block, query)
        read = attend(self._grouped(query), *self.pair(block), mask, scale=scale)
        return read.transpose(1, 2).flatten(0, 1)

    def weights(self, block: int, query: Tensor, *, scale: float | None = None) -> Tensor:
        """Return [R, H, S]: the attention weights of `attend`."""
        weights = self._weights(block, self._grouped(query), scale)
        return weights.transpose(1, 2).flatten(0, 1)

    def attend_rows(self, block: int, query: Tensor, rows: Tensor) -> Tensor:
        """Return the context [R', H, d] of the queries [R', H, d] of some rows [R']."""
        if len(rows) < _WORTH_COPYING * self.count:
            return self.of_rows(block, rows).attend(0, query)
        # With most rows left, idle queries cost less than copies of keys and values: measured by
        # benchmarks/exits.py, results/exits-1-thread-fp32.json.
        padded = query.new_zeros(self.count * self.width, *query.shape[1:])
        return self.attend(block, padded.index_copy(0, rows, query)).index_select(0, rows)

    def of_rows(self, block: int, rows: Tensor) -> SourceCache:
        """Return a cache of only `block`, as its first, for some rows [R'].

        Each row gets its own copy.
        """
        (keys, values), width, mask = self.pair(block), self.width, self.mask
        sentences = rows if width == 1 else rows // width
        if mask is not None and mask.shape[2] > 1:  # one for each row: reads are limited
            mask = mask.transpose(1, 2).reshape(len(keys) * width, 1, 1, -1).index_select(0, rows)
        elif mask is not None:
            mask = mask.index_select(0, sentences)
        keys, values = keys.index_select(0, sentences), values.index_select(0, sentences)
        return SourceCache((keys,), (values,), mask, 1, self.lead, padding=self.padding)

    def attend_all(self, block: int, query: Tensor, *, rate: float = 0.0) -> Tensor:
        """Return the context [B, H, T, d] of queries [B, H, T, d] in teacher forcing.

        Weights are dropped at this rate: pass 0 outside training.
        """
        return attend(query, *self.pair(block), self.mask_for(block, query), dropout=rate)

    def weights_all(self, block: int, query: Tensor) -> Tensor:
        """Return [B, H, T, S]: the attention weights of `attend_all`."""
        return self._weights(block, query)

    def mask_for(self, block: int, like: Tensor) -> Tensor | None:
        """Return the additive mask of `block`'s attention, in the type of queries `like`."""
        return self.mask

    def _weights(self, block: int, query: Tensor, scale: float | None = None) -> Tensor:
        """Return [B, H, T, S] for queries [B, H, T, d]."""
        keys, _ = self.pair(block)
        weights = attention_weights(query, keys, self.mask_for(block, query), scale=scale)
        return weights[..., : keys.shape[2] - self.padding]

    def _attend_unfused(self, block: int, query: Tensor, rate: float) -> Tensor:
        """Return the same as `attend_all`; fused attention has no gradient for its mask."""
        weights = dropout(self._weights(block, query), rate, training=rate > 0)
        _, values = self.pair(block)
        return weights.to(values.dtype) @ values

    def contiguous(self) -> SourceCache:
        """Return the cache with contiguous tensors, because decoding reads them repeatedly."""
        return self._changed(Tensor.contiguous)

    def padded(self) -> SourceCache:
        """Return the cache with contiguous tensors, padded to the kernel's fastest width."""
        padding = missing_columns(self.keys[0])
        if not padding:
            return self.contiguous()
        columns = self.keys[0].shape[2]
        mask = with_hidden_columns(self.mask, self.keys[0], columns, padding)
        return self._changed(lambda part: pad(part, (0, 0, 0, padding)), mask=mask, padding=padding)

    def _changed(self, change: Callable[[Tensor], Tensor], **fields: Any) -> SourceCache:
        """Return the cache with `change` applied to all keys and values, and with new `fields`."""
        keys, values = tuple(map(change, self.keys)), tuple(map(change, self.values))
        return dataclasses.replace(self, keys=keys, values=values, **fields)

    def take_rows(self, rows: Tensor) -> SourceCache:
        """Return the cache of `rows` [R']: nothing is copied while rows stay with their sentence.

        If all remaining sentences have equally many adjacent rows, only these sentences are
        copied; otherwise each row gets its own copy.
        """
        if self.is_static:
            return self.to_static(rows, self.width)
        sentences, width = self._sentences_of(rows)
        if sentences is None:
            return dataclasses.replace(self, width=width)
        return self._of_sentences(sentences, width)

    def to_static(self, rows: Tensor, width: int) -> SourceCache:
        """Return the static cache of `rows` [R], each `width` of which are of one sentence."""
        # Computed only on the device: the CPU would have to wait for the result of a comparison.
        sentences = torch.div(rows[::width], self.width, rounding_mode="floor")
        return dataclasses.replace(self._of_sentences(sentences, width), is_static=True)

    def _of_sentences(self, sentences: Tensor, width: int) -> SourceCache:
        mask = None if self.mask is None else self.mask.index_select(0, sentences)
        return self._changed(lambda part: part.index_select(0, sentences), mask=mask, width=width)

    def _sentences_of(self, rows: Tensor) -> tuple[Tensor | None, int]:
        """Return the sentences to copy for `rows` [R'] (None: none is copied) and the new width."""
        sentences = rows if self.width == 1 else rows // self.width
        # Reordering within a beam moves no row to another sentence: the common case copies nothing.
        if len(sentences) % self.count == 0:
            width = len(sentences) // self.count
            unmoved = torch.arange(self.count, device=rows.device).repeat_interleave(width)
            if width and torch.equal(sentences, unmoved):
                return None, width
        # Sentences that have ended leave with all of their rows: the others are copied once each.
        distinct, counts = torch.unique_consecutive(sentences, return_counts=True)
        width = int(counts[0])
        return (distinct, width) if bool((counts == width).all()) else (sentences, 1)

    def _grouped(self, query: Tensor) -> Tensor:
        # Rows of a sentence become target positions, so one product reads their shared keys.
        return query.reshape(-1, self.width, *query.shape[1:]).transpose(1, 2)


def without_lead(shares: Tensor, lead: int) -> Tensor:
    """Return shares [..., S] without the first `lead` columns, renormalised to sum to one."""
    if not lead:
        return shares
    # All attention may have gone to the marker: 0 / tiny is 0, not NaN.
    shares = shares[..., lead:]
    return shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
