"""Multi-head attention, Eq. (2.40): over a sentence itself, and from the decoder to the source.

Weights are stored fused: queries, keys and values of self-attention are one map, and the source's
keys and values of all decoder blocks are another. Initial values are those of the published
systems: Xavier-uniform over [3d, d] for what leads into attention, over [d, d] for what leads out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmtgrid.layers.attention import attend
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.kv_cache import KVCache


class Map(nn.Linear):
    """An affine map whose product takes the fastest way in its type."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [..., N] for input [..., K]."""
        return linear(input, self.weight, self.bias)


def inward_map(size: int, parts: int) -> Map:
    """Return a map from d to `parts` x d features, each d with the variance of one of three."""
    made = Map(size, parts * size)
    bound = inward_bound(size)
    nn.init.uniform_(made.weight, -bound, bound)
    nn.init.zeros_(made.bias)
    return made


def outward_map(input_size: int, output_size: int) -> Map:
    """Return a map with Xavier-uniform weights and a zero bias."""
    made = Map(input_size, output_size)
    nn.init.xavier_uniform_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def inward_bound(size: int) -> float:
    """Return the bound of Xavier's uniform distribution for a map from d to 3d features."""
    return math.sqrt(6.0 / (4 * size))


class SelfAttention(nn.Module):
    """Attention of each position over its own sentence."""

    def __init__(self, size: int, heads: int, dropout_rate: float) -> None:
        super().__init__()
        self.heads, self.dropout_rate = heads, dropout_rate
        self.input_map = inward_map(size, 3)
        self.output_map = outward_map(size, size)

    def forward(self, features: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """Return [B, L, D]; mask is additive (see layers/attention.py)."""
        size = features.shape[-1]
        # One split of the last axis, whose gradient is one concatenation.
        query, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.input_map(features).split(size, -1)
        )
        rate = self.dropout_rate if self.training else 0.0
        read = attend(query, keys, values, mask, causal=causal, dropout=rate)
        mapped: Tensor = self.output_map(read.transpose(1, 2).flatten(2))
        return mapped

    def step(
        self, features: Tensor, cache: KVCache, place: int, window: int | None = None
    ) -> Tensor:
        """Return [R, D] for the newest token [R, D] of each row, and remember it in `cache`.

        `window` limits what it sees to so many tokens, itself included.
        """
        query, keys, values = (
            self.input_map(features).view(len(features), 3, self.heads, -1).unbind(1)
        )
        keys, values = cache.push(place, keys, values)
        if window is not None:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        read = attend(query[:, :, None], keys, values)
        result: Tensor = self.output_map(read.flatten(1))
        return result

    def step_some(
        self, features: Tensor, rows: Tensor, cache: KVCache, place: int, maps: AttentionMaps
    ) -> Tensor:
        """Return [R', D] for the newest token of `rows` [R'], of features [R, D] of all rows.

        All rows' keys and values are remembered: those of rows that left earlier copy their state.
        """
        both = linear(features, maps.pair_weight, maps.pair_bias)
        keys, values = both.view(len(features), 2, self.heads, -1).unbind(1)
        cache.push(place, keys, values)
        query = linear(features.index_select(0, rows), maps.query_weight, maps.query_bias)
        query = query.view(len(rows), self.heads, 1, -1)
        result: Tensor = self.output_map(attend(query, *cache.of_rows(place, rows)).flatten(1))
        return result


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The maps of a self-attention: to queries [D, D], and to keys and values together [2D, D]."""

    query_weight: Tensor
    query_bias: Tensor
    pair_weight: Tensor
    pair_bias: Tensor


class SourceAttention(nn.Module):
    """Attention of decoder positions over the source, whose keys and values are in a memory."""

    def __init__(self, size: int, heads: int, dropout_rate: float, place: int) -> None:
        """`place` is the attention's number in the memory."""
        super().__init__()
        self.heads, self.dropout_rate, self.place = heads, dropout_rate, place
        self.query_map = inward_map(size, 1)
        self.output_map = outward_map(size, size)

    def forward(
        self,
        features: Tensor,
        memory: SourceCache,
        weights: list[Tensor] | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return [..., D] for positions [B, T, D] of teacher forcing or rows [R, D] of a step.

        `rows` [R'] are those of the memory that features [R', D] belong to (None: all).

        The heads' mean attention [B, T, S] or [R, S] is appended to `weights` where it is given.
        """
        query = self.query_map(features).unflatten(-1, (self.heads, -1))
        if rows is not None:
            read = memory.attend_rows(self.place, query, rows).flatten(1)
            if weights is not None:
                weights.append(memory.of_rows(self.place, rows).weights(0, query).mean(1))
        elif features.dim() == 2:
            read = memory.attend(self.place, query).flatten(1)
            if weights is not None:
                weights.append(memory.weights(self.place, query).mean(1))
        else:
            query = query.transpose(1, 2)
            rate = self.dropout_rate if self.training else 0.0
            read = memory.attend_all(self.place, query, dropout=rate).transpose(1, 2).flatten(2)
            if weights is not None:
                weights.append(memory.weights_all(self.place, query).mean(1))
        mapped: Tensor = self.output_map(read)
        return mapped


class SourceProjection(nn.Module):
    """Keys and values of the source for all blocks of a decoder: maps [d, d] of N blocks in one."""

    def __init__(self, size: int, heads: int, blocks: int, source_size: int | None = None) -> None:
        """`source_size` are the features of a source state (None: `size`)."""
        super().__init__()
        source_size = source_size or size
        self.heads, self.blocks = heads, blocks
        self.weight = nn.Parameter(torch.empty(2 * blocks * size, source_size))
        self.bias = nn.Parameter(torch.zeros(2 * blocks * size))
        with torch.no_grad():
            bound = math.sqrt(6.0 / (source_size + 3 * size))
            self.weight.uniform_(-bound, bound)

    def forward(self, states: Tensor | Sequence[Tensor], mask: Tensor | None) -> SourceCache:
        """Return the memory of source states [B, S, D]: one for all blocks, or one for each."""
        if isinstance(states, Tensor):
            mapped = linear(states, self.weight, self.bias)
            parts = mapped.chunk(2 * self.blocks, -1)
        else:
            pairs = zip(states, self.weight.chunk(self.blocks), self.bias.chunk(self.blocks),
                        strict=True)  # fmt: skip
            parts = tuple(
                part
                for state, weight, bias in pairs
                for part in linear(state, weight, bias).chunk(2, -1)
            )
        heads = tuple(self._headed(part) for part in parts)
        return SourceCache(heads[0::2], heads[1::2], mask)

    def one(self, place: int, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, S, d] of block `place` alone."""
        size = len(self.weight) // self.blocks
        part = slice(place * size, (place + 1) * size)
        keys, values = linear(states, self.weight[part], self.bias[part]).chunk(2, -1)
        return self._headed(keys), self._headed(values)

    def _headed(self, part: Tensor) -> Tensor:
        headed: Tensor = part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return headed
