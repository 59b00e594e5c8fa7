"""Blocks of the Transformer: sub-layers in residual connections with layer normalisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.layers.attention import attend
from nmtgrid.layers.kernels.dropout import dropout, residual_dropout
from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.probes import ProbePoint
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.attention import (
    AttentionMaps,
    SelfAttention,
    SourceAttention,
    outward_map,
)
from nmtgrid.layers.transformer.kv_cache import KVCache


def decoder_step(
    block: DecoderBlock,
    features: Tensor,
    cache: KVCache,
    memory: SourceCache,
    weights: list[Tensor] | None,
    rows: Tensor | None = None,
    maps: AttentionMaps | None = None,
) -> Tensor:
    """Return the next state [R, D] of each row's newest token, or [R', D] of `rows` [R'] alone.

    features [R, D] are all rows' states; `maps`, needed with `rows`, are the self-attention's.
    """
    held, heads, place = block.self_attention, block.self_attention.heads, block.place
    inner = _before(block.add_self, features)
    count = len(features)
    if rows is None or maps is None:
        parts = mapped(held.input_map, inner).view(count, 3, heads, -1)
        keys, values = cache.push_pair(place, parts[:, 1:])
        query = parts[:, 0, :, None]
    else:
        pair = product(inner, maps.pair_weight, maps.pair_bias)
        keys, values = cache.push_pair(place, pair.view(count, 2, heads, -1))
        query = product(inner.index_select(0, rows), maps.query_weight, maps.query_bias)
        query = query.view(len(rows), heads, 1, -1)
        keys, values = cache.of_rows(place, rows)
        features = features.index_select(0, rows)
    read = attend(query, keys, values, cache.hidden).reshape(features.shape)
    features = _after(block.add_self, mapped(held.output_map, read), features)
    features = _source(block, features, memory, weights, rows)
    inner = _before(block.add_feed_forward, features)
    inner = torch.relu_(mapped(block.feed_forward.widen, inner))
    return _after(block.add_feed_forward, mapped(block.feed_forward.narrow, inner), features)


def mapped(module: nn.Linear, features: Tensor) -> Tensor:
    """Return what `module` maps features [R, K] to, [R, N]."""
    return product(features, module.weight, module.bias)


def _source(
    block: DecoderBlock,
    features: Tensor,
    memory: SourceCache,
    weights: list[Tensor] | None,
    rows: Tensor | None,
) -> Tensor:
    """Return features [R, D] after attention over the source."""
    held, place = block.source_attention, block.place
    query = mapped(held.query_map, _before(block.add_source, features))
    query = query.view(len(features), held.heads, -1)
    if rows is None:
        read = memory.attend(place, query)
        if weights is not None:
            weights.append(memory.weights(place, query).mean(1))
    else:
        read = memory.attend_rows(place, query, rows)
        if weights is not None:
            weights.append(memory.of_rows(place, rows).weights(0, query).mean(1))
    return _after(block.add_source, mapped(held.output_map, read.reshape(features.shape)), features)


def _before(around: AddNorm, features: Tensor) -> Tensor:
    return features if around.is_post else _normed(around, features)


def _after(around: AddNorm, change: Tensor, features: Tensor) -> Tensor:
    """Add `features` to `change`, which is written over, and normalise where that comes after."""
    if change.dtype == features.dtype:
        change.add_(features)
    else:
        change = features + change.to(features.dtype)
    return _normed(around, change) if around.is_post else change


def _normed(around: AddNorm, features: Tensor) -> Tensor:
    norm = around.norm
    if features.dtype is norm.weight.dtype:
        return torch.layer_norm(features, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    normed: Tensor = norm(features)
    return normed


Norm = Literal["post", "pre"]


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """What a block is built from; sizes in features."""

    size: int
    feed_forward_size: int
    heads: int
    norm: Norm
    dropout: float
    attention_dropout: float
    activation_dropout: float


class AddNorm(nn.Module):
    """A residual connection: LN(x + F(x)), Eq. (2.42), or x + F(LN(x)) with `norm` pre."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.norm = PositionNorm(plan.size)
        self.is_post, self.dropout_rate = plan.norm == "post", plan.dropout

    def forward(self, features: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return [..., D], F(x) being `sublayer` with dropout on its output."""
        if not self.is_post:
            return self._add(features, sublayer(self.norm(features)))
        normed: Tensor = self.norm(self._add(features, sublayer(features)))
        return normed

    def of_rows(
        self, features: Tensor, rows: Tensor, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return [R', D] for `rows` [R'] of features [R, D], all of which `sublayer` is given."""
        change = sublayer(features if self.is_post else self.norm(features))
        added = self._add(features.index_select(0, rows), change)
        return self.norm(added) if self.is_post else added

    def points(self, name: str, sublayer: nn.Module) -> dict[str, ProbePoint]:
        """Return what is normalised, what comes of it and what `sublayer`, called `name`, yields.

        In the order of the forward pass; with `norm` post, what is normalised is the sum.
        """
        given, normed = ProbePoint(self.norm, "inside", "input"), ProbePoint(self.norm, "inside")
        change = {f"{name}.change": ProbePoint(sublayer, "change")}
        norm = {f"{name}.sum" if self.is_post else f"{name}.read": given}
        norm[f"{name}.normalised"] = normed
        return change | norm if self.is_post else norm | change

    def _add(self, features: Tensor, change: Tensor) -> Tensor:
        if not (self.training and self.dropout_rate):
            return features + change.to(features.dtype)
        return residual_dropout(features, change, self.dropout_rate, 1.0, True)


class FeedForward(nn.Module):
    """Two maps with a ReLU between, the same at every position, Eq. (2.41)."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.widen = outward_map(plan.size, plan.feed_forward_size)
        self.narrow = outward_map(plan.feed_forward_size, plan.size)
        self.dropout_rate = plan.activation_dropout

    def forward(self, features: Tensor) -> Tensor:
        """Return [..., D]."""
        # Flat, so that the rectifier may write over what the first map returns.
        hidden = torch.relu_(self.widen(features.flatten(0, -2)))
        narrowed: Tensor = self.narrow(dropout(hidden, self.dropout_rate, self.training))
        return narrowed.view_as(features)


class EncoderBlock(nn.Module):
    """Self-attention over the sentence, then the feed-forward network."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.attention = SelfAttention(plan.size, plan.heads, plan.attention_dropout)
        self.feed_forward = FeedForward(plan)
        self.add_attention, self.add_feed_forward = AddNorm(plan), AddNorm(plan)

    def forward(self, features: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        """Return the next states [B, S, D]; mask [B, 1, 1, S] or [S, S] hides what is not to be
        seen, `causal` all that follows.
        """
        features = self.add_attention(
            features, lambda inner: self.attention(inner, mask, causal=causal)
        )
        following: Tensor = self.add_feed_forward(features, self.feed_forward)
        return following

    def points(self) -> dict[str, ProbePoint]:
        """Return the points of the block, in order."""
        return {
            **self.add_attention.points("attention", self.attention),
            **self.add_feed_forward.points("feed-forward", self.feed_forward),
        }

    def step(
        self, features: Tensor, cache: KVCache, place: int, window: int | None = None
    ) -> Tensor:
        """Return the next state [R, D] of each row's newest token, `place` being the block's."""
        features = self.add_attention(
            features, lambda inner: self.attention.step(inner, cache, place, window)
        )
        following: Tensor = self.add_feed_forward(features, self.feed_forward)
        return following


class DecoderBlock(nn.Module):
    """Self-attention over the prefix, attention over the source, the feed-forward network."""

    def __init__(self, plan: BlockPlan, place: int) -> None:
        """`place` is the block's number in the decoder, from 0."""
        super().__init__()
        self.place = place
        self.self_attention = SelfAttention(plan.size, plan.heads, plan.attention_dropout)
        self.source_attention = SourceAttention(
            plan.size, plan.heads, plan.attention_dropout, place
        )
        self.feed_forward = FeedForward(plan)
        self.add_self, self.add_source = AddNorm(plan), AddNorm(plan)
        self.add_feed_forward = AddNorm(plan)

    def forward(
        self, features: Tensor, memory: SourceCache, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Return the next states [B, T, D] of teacher forcing.

        Padding stands behind all real tokens, so causality hides it too. The mean attention over
        the source is appended to `weights` where it is given.
        """
        features = self.add_self(
            features, lambda inner: self.self_attention(inner, None, causal=True)
        )
        return self._finish(features, memory, weights)

    def points(self) -> dict[str, ProbePoint]:
        """Return the points of the block, in order."""
        return {
            **self.add_self.points("self-attention", self.self_attention),
            **self.add_source.points("source-attention", self.source_attention),
            **self.add_feed_forward.points("feed-forward", self.feed_forward),
        }

    def step(
        self,
        features: Tensor,
        cache: KVCache,
        memory: SourceCache,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the next state [R, D] of each row's newest token."""
        if not (self.training or torch.is_grad_enabled()):
            return decoder_step(self, features, cache, memory, weights)
        features = self.add_self(
            features, lambda inner: self.self_attention.step(inner, cache, self.place)
        )
        return self._finish(features, memory, weights)

    def step_some(
        self,
        features: Tensor,
        rows: Tensor,
        cache: KVCache,
        memory: SourceCache,
        maps: AttentionMaps,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the next state [R', D] of `rows` [R'], for the states [R, D] of all rows.

        `maps` are those of the self-attention; rows that are not named have left at an earlier
        block and leave keys and values of the state that they left with.
        """
        if not (self.training or torch.is_grad_enabled()):
            return decoder_step(self, features, cache, memory, weights, rows, maps)
        some = self.add_self.of_rows(
            features,
            rows,
            lambda inner: self.self_attention.step_some(inner, rows, cache, self.place, maps),
        )
        return self._finish(some, memory, weights, rows)

    def _finish(
        self,
        features: Tensor,
        memory: SourceCache,
        weights: list[Tensor] | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        features = self.add_source(
            features, lambda inner: self.source_attention(inner, memory, weights, rows)
        )
        following: Tensor = self.add_feed_forward(features, self.feed_forward)
        return following
