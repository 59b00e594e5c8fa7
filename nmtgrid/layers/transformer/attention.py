"""Multi-head attention, Eq. (2.40): over a sentence itself, and from the decoder to the source.

Weights are stored fused: queries, keys and values of self-attention are one projection, and the
source's keys and values of all decoder blocks are another. Initial values are those of the
published systems: Xavier-uniform over [3d, d] for input projections, over [d, d] for output
projections. The decoder's steps are in `DecoderBlock.step` (transformer/blocks.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmtgrid.layers.attention import attend, attention_weights
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import Projection, linear
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.kv_cache import KVCache


def inward_projection(size: int, parts: int) -> Projection:
    """Return a projection from d to `parts` x d features, initialised as parts of [3d, d]."""
    # Xavier's bound is that of [3d, d], the fused projection of the published systems, also for a
    # separate query projection [d, d].
    projection = Projection(size, parts * size)
    bound = math.sqrt(6.0 / (4 * size))
    nn.init.uniform_(projection.weight, -bound, bound)
    nn.init.zeros_(projection.bias)
    return projection


class SelfAttention(nn.Module):
    """Attention of each position over its own sentence."""

    def __init__(self, size: int, heads: int, dropout_rate: float) -> None:
        super().__init__()
        self.heads, self.dropout_rate = heads, dropout_rate
        self.input_map = inward_projection(size, 3)
        self.output_map = Projection.xavier(size, size)

    def forward(
        self, features: Tensor, mask: Tensor | None, *, causal: bool, focus: Tensor | None = None
    ) -> Tensor:
        """Return [B, L, D]; mask is additive (see layers/attention.py).

        focus [B, L] is added to the score that each token gives itself.
        """
        # One split of the last axis, whose gradient is one concatenation.
        query, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.input_map(features).split(features.shape[-1], -1)
        )
        rate = self.dropout_rate if self.training else 0.0
        if focus is None:
            context = attend(query, keys, values, mask, causal=causal, dropout=rate)
        else:
            # Fused attention has no gradient for its mask.
            mask = _focused(focus, mask, causal=causal)
            weights = dropout(attention_weights(query, keys, mask), rate, training=rate > 0)
            context = weights.to(values.dtype) @ values
        output: Tensor = self.output_map(context.transpose(1, 2).flatten(2))
        return output

    def step(
        self,
        features: Tensor,
        cache: KVCache,
        block: int,
        window: int | None = None,
        focus: Tensor | None = None,
    ) -> Tensor:
        """Return [R, D] for the newest token [R, D] of each row, and store it in `cache`.

        `window` is the number of tokens that it may see, itself included; focus [R] is added to the
        score that it gives itself.
        """
        # Keys and values are adjacent in the projection as in the cache: one copy, not two.
        projected = self.input_map(features).view(len(features), 3, self.heads, -1)
        keys, values = cache.push_pair(block, projected[:, 1:])
        # Older tokens stay in the cache, but are not read: a window needs no mask in a step.
        if window is not None:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        mask = None if focus is None else newest_focus(focus, keys)
        context = attend(projected[:, 0, :, None], keys, values, mask)
        output: Tensor = self.output_map(context.flatten(1))
        return output


def _focused(focus: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """Return the additive mask [B, 1, L, L] with focus [B, L] on its diagonal."""
    whole = torch.diag_embed(focus)[:, None]
    if causal:
        whole = whole + torch.full_like(whole[0, 0], -math.inf).triu_(1)
    return whole if mask is None else whole + mask


def newest_focus(focus: Tensor, keys: Tensor) -> Tensor:
    """Return the additive mask [R, 1, 1, t] with focus [R] on the last of keys [R, H, t, d]."""
    mask = keys.new_zeros(len(keys), 1, 1, keys.shape[2])
    mask[..., -1] = focus.to(mask.dtype)[:, None, None]
    return mask


@dataclasses.dataclass(frozen=True)
class AttentionProjections:
    """Self-attention's projections to queries [D, D], and to keys and values together [2D, D]."""

    query_weight: Tensor
    query_bias: Tensor
    pair_weight: Tensor
    pair_bias: Tensor


class SourceAttention(nn.Module):
    """Attention of decoder positions over the source, whose keys and values are in a cache."""

    def __init__(self, size: int, heads: int, dropout_rate: float, block: int) -> None:
        """`block` is the index of this attention in the cache."""
        super().__init__()
        self.heads, self.dropout_rate, self.block = heads, dropout_rate, block
        self.query_map = inward_projection(size, 1)
        self.output_map = Projection.xavier(size, size)

    def forward(
        self, features: Tensor, memory: SourceCache, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Return [B, T, D] for positions [B, T, D] of teacher forcing.

        The heads' mean attention [B, T, S] is appended to `weights` if that is a list.
        """
        memory.select(self.block, features)
        query = self.query_map(features).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        rate = self.dropout_rate if self.training else 0.0
        context = memory.attend_all(self.block, query, rate=rate).transpose(1, 2).flatten(2)
        if weights is not None:
            weights.append(memory.weights_all(self.block, query).mean(1))
        output: Tensor = self.output_map(context)
        return output


class SourceProjection(nn.Module):
    """Keys and values of the source for all blocks: fused projections [d, d] of N blocks."""

    def __init__(self, size: int, heads: int, blocks: int, source_size: int) -> None:
        """`source_size` is the number of features of a source state."""
        super().__init__()
        self.heads, self.blocks = heads, blocks
        self.weight = _source_weight(2 * blocks, size, source_size)
        self.bias = nn.Parameter(torch.zeros(2 * blocks * size))

    def forward(self, states: Tensor | Sequence[Tensor], mask: Tensor | None) -> SourceCache:
        """Return the cache of source states [B, S, D]: one for all blocks, or one for each."""
        if isinstance(states, Tensor):
            parts = linear(states, self.weight, self.bias).chunk(2 * self.blocks, -1)
        else:
            weights, biases = self.weight.chunk(self.blocks), self.bias.chunk(self.blocks)
            parts = tuple(
                part
                for state, weight, bias in zip(states, weights, biases, strict=True)
                for part in linear(state, weight, bias).chunk(2, -1)
            )
        heads = tuple(_in_heads(part, self.heads) for part in parts)
        return SourceCache(heads[0::2], heads[1::2], mask)

    def of_block(self, block: int, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, S, d] of a single `block`."""
        size = len(self.weight) // self.blocks
        rows = slice(block * size, (block + 1) * size)
        keys, values = linear(states, self.weight[rows], self.bias[rows]).chunk(2, -1)
        return _in_heads(keys, self.heads), _in_heads(values, self.heads)


class SourceSelection(nn.Module):
    """Queries of decoder states and keys of source states besides those of attention, in heads.

    Projections [d, d] of N blocks, fused for the keys, with which a reading mechanism weights the
    source tokens that a target token sees.
    """

    def __init__(self, size: int, heads: int, blocks: int, source_size: int) -> None:
        super().__init__()
        self.heads, self.blocks = heads, blocks
        self.query_maps = nn.ModuleList(inward_projection(size, 1) for _ in range(blocks))
        self.key_weight = _source_weight(blocks, size, source_size)
        self.key_bias = nn.Parameter(torch.zeros(blocks * size))

    def with_keys(self, memory: SourceCache, states: Tensor | Sequence[Tensor]) -> SourceCache:
        """Return the cache with these keys after those of the N blocks.

        `states` are the source's [B, S, D'], one for all blocks or one for each. Entry N + n of the
        cache belongs to block n, and is reordered with the rows. Its keys also serve as its values.
        """
        if isinstance(states, Tensor):
            parts = linear(states, self.key_weight, self.key_bias).chunk(self.blocks, -1)
        else:
            pairs = self.key_weight.chunk(self.blocks), self.key_bias.chunk(self.blocks)
            parts = tuple(map(linear, states, *pairs))
        keys = tuple(_in_heads(part, self.heads) for part in parts)
        return dataclasses.replace(memory, keys=memory.keys + keys, values=memory.values + keys)

    def queries(self, block: int, features: Tensor) -> Tensor:
        """Return [B, H, T, d] for the decoder states [B, T, D] of `block`."""
        return _in_heads(self.query_maps[block](features), self.heads)


def _source_weight(parts: int, size: int, source_size: int) -> nn.Parameter:
    """Return the fused weight of `parts` projections [d, d'] of source states."""
    # The fan of one projection, not of the fused one, determines the bound.
    bound = math.sqrt(6.0 / (source_size + 3 * size))
    return nn.Parameter(torch.empty(parts * size, source_size).uniform_(-bound, bound))


def _in_heads(features: Tensor, heads: int) -> Tensor:
    split: Tensor = features.unflatten(-1, (heads, -1)).transpose(1, 2)
    return split
