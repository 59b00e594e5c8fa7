"""Caches for a decoder whose blocks may never be reached: early exits (section 5.2).

`ExitKVProjection` fills the key-value cache of the blocks after an exit, `LazySourceCache`
computes a block's source keys and values when the block is first run. Used by
models/transformer; benchmarks/exits.py measures their gain over running all blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.base.rows import take
from nmtgrid.layers.kernels.linear import linear, working_dtype
from nmtgrid.layers.source_cache import SourceCache, with_hidden_columns
from nmtgrid.layers.transformer.attention import AttentionProjections, SourceProjection
from nmtgrid.layers.transformer.blocks import DecoderBlock
from nmtgrid.layers.transformer.kv_cache import KVCache


class ExitKVProjection:
    """The self-attention projections of a decoder, split and fused for steps with early exits.

    They are created when first needed, from the parameters at that time. Under autocast they are
    stored in its type, so that no step converts them.
    """

    def __init__(self, blocks: Sequence[DecoderBlock]) -> None:
        self.blocks = blocks
        self._projections: dict[int, AttentionProjections] = {}
        self._fused: tuple[Tensor, Tensor] | None = None

    def of(self, block: int) -> AttentionProjections:
        """Return the projections of `block`."""
        if block not in self._projections:
            fused = self.blocks[block].self_attention.input_map
            size = fused.in_features
            parts = fused.weight[:size], fused.bias[:size], fused.weight[size:], fused.bias[size:]
            projections = AttentionProjections(*(part.to(working_dtype(part)) for part in parts))
            self._projections[block] = projections
        return self._projections[block]

    def copy(self, features: Tensor, cache: KVCache, first: int) -> None:
        """Write the keys and values of features [R, D] in block `first` and all after it."""
        # One product for all blocks after the exit, instead of one for each.
        if self._fused is None:
            parts = [self._folded(block) for block in self.blocks]
            weight, bias = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
            dtype = working_dtype(weight)
            self._fused = weight.to(dtype), bias.to(dtype)
        weight, bias = self._fused
        block = self.blocks[first]
        if not block.add_self.is_post:
            # Each block's scale and shift are in its projection; the rest of the norm is the same
            # for all blocks, since the state no longer changes, and is computed once.
            norm = block.add_self.norm
            features = torch.nn.functional.layer_norm(
                features.to(norm.weight.dtype), norm.normalized_shape, eps=norm.eps
            ).to(features.dtype)
        start = first * 2 * features.shape[1]
        pairs = linear(features, weight[start:], bias[start:])
        heads = block.self_attention.heads
        pairs = pairs.view(len(features), len(self.blocks) - first, 2, heads, -1)
        keys, values = pairs.permute(2, 0, 3, 1, 4).unbind(0)
        cache.push_rest(first, keys, values)

    def _folded(self, block: DecoderBlock) -> tuple[Tensor, Tensor]:
        """Return the block's projection [2D, D] to keys and values, and its bias [2D]."""
        fused, norm = block.self_attention.input_map, block.add_self.norm
        weight, bias = fused.weight[fused.in_features :], fused.bias[fused.in_features :]
        # With post-norm the projection reads the state itself, and there is nothing to fold.
        if block.add_self.is_post:
            return weight, bias
        return weight * norm.weight, bias + weight @ norm.bias


@dataclasses.dataclass(frozen=True)
class LazySourceCache(SourceCache):
    """A source cache that computes a block's keys and values when they are first read.

    `states` are the source's [B, S, D'], one for all blocks or one for each; `computed` has the
    keys and values of the blocks that have been read. `zeros` columns of zeros precede the source,
    `padding` ones follow it.
    """

    projection: SourceProjection = dataclasses.field(kw_only=True)
    states: tuple[Tensor, ...] = dataclasses.field(kw_only=True)
    computed: dict[int, tuple[Tensor, Tensor]] = dataclasses.field(kw_only=True)
    zeros: int = dataclasses.field(default=0, kw_only=True)

    @classmethod
    def of_states(
        cls, projection: SourceProjection, states: Tensor | list[Tensor], mask: Tensor | None
    ) -> LazySourceCache:
        """Return the cache of `states`, not yet read."""
        parts = (states,) if isinstance(states, Tensor) else tuple(states)
        return cls((), (), mask, projection=projection, states=parts, computed={})

    @property
    def count(self) -> int:
        return len(self.pair(0)[0])

    def pair(self, block: int) -> tuple[Tensor, Tensor]:
        # Copies by `dataclasses.replace` share this dict, whatever their reads are limited to.
        if block not in self.computed:
            states = self.states[block if len(self.states) > 1 else 0]
            keys, values = self.projection.of_block(block, states)
            if self.zeros or self.padding:
                keys, values = (
                    pad(part, (0, 0, self.zeros, self.padding)) for part in (keys, values)
                )
            self.computed[block] = keys.contiguous(), values.contiguous()
        return self.computed[block]

    def with_columns(self, least: int) -> LazySourceCache:
        """Return the cache, not yet read, padded after the source to at least `least` columns."""
        states = self.states[0]
        count = self.zeros + states.shape[1]
        if count >= least:
            return self
        padding = least - count
        mask = with_hidden_columns(self.mask, states, count, padding)
        return dataclasses.replace(self, computed={}, mask=mask, padding=padding)

    def led_by_zero(self) -> LazySourceCache:
        mask = None if self.mask is None else pad(self.mask, (1, 0))
        return dataclasses.replace(
            self, computed={}, mask=mask, lead=self.lead + 1, zeros=self.zeros + 1
        )

    def contiguous(self) -> LazySourceCache:
        """Return the cache itself: all computed tensors are contiguous."""
        return self

    def padded(self) -> LazySourceCache:
        return self

    def with_rows(self, rows: Tensor, new: SourceCache) -> SourceCache:
        """Return the whole cache, computed, with `rows` [R'] replaced by those of `new`."""
        keys, values = zip(*map(self.pair, range(self.projection.blocks)), strict=True)
        cache = SourceCache(keys, values, self.mask, self.width, self.lead, padding=self.padding)
        return cache.with_rows(rows, new)

    def take_rows(self, rows: Tensor) -> LazySourceCache:
        sentences, width = self._sentences_of(rows)
        if sentences is None:
            return dataclasses.replace(self, width=width)
        # Keys and values of blocks that have been read are reordered; the others are computed later
        # from the remaining sentences.
        is_complete = len(self.computed) == self.projection.blocks
        return dataclasses.replace(
            self,
            mask=None if self.mask is None else self.mask.index_select(0, sentences),
            width=width,
            # Once every block has its keys and values, the states are not read again.
            states=() if is_complete else take(self.states, sentences),
            computed=take(self.computed, sentences),
        )
