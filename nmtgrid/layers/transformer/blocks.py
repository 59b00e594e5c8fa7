"""Blocks of the Transformer: sub-layers in residual connections with layer normalisation.

`forward` is teacher forcing with gradients, `DecoderBlock.step` one decoding step without.
Section 2.6.3; used by models/transformer.
"""

# A step's products are so small that module calls and extra copies would take as long, so `step`
# calls no modules and overwrites tensors where it can. benchmarks/decoding_speed.py measures steps
# and searches (results/cpu-1-thread.md, decoding), benchmarks/exits.py steps with early exits.

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtgrid.layers.attention import attend
from nmtgrid.layers.kernels.dropout import dropout, residual_dropout
from nmtgrid.layers.kernels.linear import Projection, linear_relu, product
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.probes import ProbePoint
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.attention import (
    AttentionProjections,
    SelfAttention,
    SourceAttention,
    newest_focus,
)
from nmtgrid.layers.transformer.kv_cache import DraftKVCache, KVCache

Norm = Literal["post", "pre"]
Activation = Literal["relu", "swish"]


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """The sizes and options of a block."""

    size: int
    feed_forward_size: int
    heads: int
    norm: Norm
    activation: Activation
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
        change = sublayer(features if self.is_post else self.norm(features))
        return self.join(features, change)

    def join(self, features: Tensor, change: Tensor) -> Tensor:
        """Return the result of `forward` from the sub-layer's `change`."""
        if self.training and self.dropout_rate:
            added = residual_dropout(features, change, self.dropout_rate, 1.0, True)
        else:
            added = features + change.to(features.dtype)
        return self.norm(added) if self.is_post else added

    def compile(self, **options: Any) -> None:
        """Compile only `join`, because there are many sub-layers."""
        self.join = torch.compile(self.join, **options)  # type: ignore[method-assign]

    def before(self, features: Tensor) -> Tensor:
        """Return the input of the sub-layer in a step."""
        return features if self.is_post else self._normed(features)

    def after(self, change: Tensor, features: Tensor) -> Tensor:
        """Return the step's result from the sub-layer's `change`, which is overwritten."""
        # The change is new memory that can take the sum, unless autocast made it narrower.
        if change.dtype == features.dtype:
            change.add_(features)
        else:
            change = features + change.to(features.dtype)
        return self._normed(change) if self.is_post else change

    def _normed(self, features: Tensor) -> Tensor:
        norm = self.norm
        # The same as the module does, without the call and the casts.
        if features.dtype is norm.weight.dtype:
            return torch.layer_norm(
                features, norm.normalized_shape, norm.weight, norm.bias, norm.eps
            )
        normed: Tensor = norm(features)
        return normed

    def points(self, name: str, sublayer: nn.Module) -> dict[str, ProbePoint]:
        """Return probe points: the input of the norm, the result, and the output of `sublayer`.

        They are in the order of the forward pass; with `norm` post, the norm's input is the sum.
        """
        change = {f"{name}.change": ProbePoint(sublayer, "change")}
        norm = {
            f"{name}.sum" if self.is_post else f"{name}.read": ProbePoint(
                self.norm, "inside", "input"
            ),
            f"{name}.normalised": ProbePoint(self.norm, "inside"),
        }
        return change | norm if self.is_post else norm | change


class FeedForward(nn.Module):
    """Two projections with a ReLU (or swish) between, the same at all positions, Eq. (2.41)."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.widen = Projection.xavier(plan.size, plan.feed_forward_size)
        self.narrow = Projection.xavier(plan.feed_forward_size, plan.size)
        self.activation, self.dropout_rate = plan.activation, plan.activation_dropout

    def forward(self, features: Tensor) -> Tensor:
        # Flat, so that the ReLU may overwrite the output of the first projection.
        flat = features.flatten(0, -2)
        if not (self.training or torch.is_grad_enabled()):
            return self.step(flat).view_as(features)
        if self.activation != "relu":
            hidden = nn.functional.silu(self.widen(flat))
        elif self.training:
            hidden = linear_relu(self.widen, flat)
        else:
            hidden = torch.relu_(self.widen(flat))
        narrowed: Tensor = self.narrow(dropout(hidden, self.dropout_rate, self.training))
        return narrowed.view_as(features)

    def step(self, features: Tensor) -> Tensor:
        """Return the same as `forward` for features [R, D], without gradient and dropout."""
        is_relu = self.activation == "relu"
        hidden = _project(self.widen, features, rectify=is_relu)
        return _project(self.narrow, hidden if is_relu else nn.functional.silu(hidden))


class EncoderBlock(nn.Module):
    """Self-attention over the sentence, then the feed-forward network."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.attention = SelfAttention(plan.size, plan.heads, plan.attention_dropout)
        self.feed_forward = FeedForward(plan)
        self.add_attention, self.add_feed_forward = AddNorm(plan), AddNorm(plan)

    def forward(
        self,
        features: Tensor,
        mask: Tensor | None,
        *,
        causal: bool = False,
        focus: Tensor | None = None,
    ) -> Tensor:
        """Return the next states [B, S, D].

        mask [B, 1, 1, S] or [S, S] hides positions, `causal` all later ones; focus [B, S] is as in
        `SelfAttention`.
        """
        features = self.add_attention(
            features, lambda inner: self.attention(inner, mask, causal=causal, focus=focus)
        )
        output: Tensor = self.add_feed_forward(features, self.feed_forward)
        return output

    def step(
        self,
        features: Tensor,
        cache: KVCache,
        block: int,
        window: int | None = None,
        focus: Tensor | None = None,
    ) -> Tensor:
        """Return the next state [R, D] of each row's newest token; `block` is this one's index.

        Streams encode their source with it, token by token.
        """
        features = self.add_attention(
            features, lambda inner: self.attention.step(inner, cache, block, window, focus)
        )
        output: Tensor = self.add_feed_forward(features, self.feed_forward)
        return output

    def points(self) -> dict[str, ProbePoint]:
        return {
            **self.add_attention.points("attention", self.attention),
            **self.add_feed_forward.points("feed-forward", self.feed_forward),
        }


@dataclasses.dataclass(frozen=True)
class NewestTokens:
    """The M of the newest Q tokens of R rows that are computed: `indices` into R Q (None: all).

    `mask` [R or 1, 1, Q, t] hides later tokens and those that rows have not kept.
    """

    rows: int
    indices: Tensor | None
    mask: Tensor

    def spread(self, features: Tensor) -> Tensor:
        """Return [R, Q, D] of features [M, D], zero elsewhere."""
        count = self.mask.shape[2]
        if self.indices is not None:
            spread = features.new_zeros(self.rows * count, features.shape[1])
            features = spread.index_copy_(0, self.indices, features)
        return features.view(self.rows, count, -1)

    def collect(self, context: Tensor) -> Tensor:
        """Return [M, D] of the heads' contexts [R, H, Q, d]."""
        flat = context.transpose(1, 2).flatten(2).flatten(0, 1)
        return flat if self.indices is None else flat.index_select(0, self.indices)


class DecoderBlock(nn.Module):
    """Self-attention over the prefix, attention over the source, the feed-forward network."""

    def __init__(self, plan: BlockPlan, index: int) -> None:
        """`index` is the block's number in the decoder, from 0."""
        super().__init__()
        self.index = index
        self.self_attention = SelfAttention(plan.size, plan.heads, plan.attention_dropout)
        self.source_attention = SourceAttention(
            plan.size, plan.heads, plan.attention_dropout, index
        )
        self.feed_forward = FeedForward(plan)
        self.add_self, self.add_source = AddNorm(plan), AddNorm(plan)
        self.add_feed_forward = AddNorm(plan)

    def forward(
        self,
        features: Tensor,
        memory: SourceCache,
        weights: list[Tensor] | None = None,
        focus: Tensor | None = None,
    ) -> Tensor:
        """Return the next states [B, T, D] of teacher forcing.

        The heads' mean attention over the source is appended to `weights` if that is a list;
        focus [B, T] is as in `SelfAttention`.
        """
        # Padding follows all real tokens, so causality hides it too.
        features = self.add_self(
            features, lambda inner: self.self_attention(inner, None, causal=True, focus=focus)
        )
        features = self.add_source(
            features, lambda inner: self.source_attention(inner, memory, weights)
        )
        output: Tensor = self.add_feed_forward(features, self.feed_forward)
        return output

    def step(
        self,
        features: Tensor,
        cache: KVCache,
        memory: SourceCache,
        weights: list[Tensor] | None = None,
        rows: Tensor | None = None,
        projections: AttentionProjections | None = None,
        focus: Tensor | None = None,
    ) -> Tensor:
        """Return the next state [R, D] of each row's newest token, without gradient and dropout.

        With `rows` [R'] and the self-attention's `projections`, return [R', D] for these rows only.
        `features` [R, D] are still the states of all rows: rows that exited at an earlier block
        also write keys and values, those of the state with which they exited. focus [R] is as in
        `SelfAttention`.
        """
        # Searches step without gradient already, and a decorator would cost each of their steps.
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.step(features, cache, memory, weights, rows, projections, focus)
        features, context = self._attend_to_prefix(features, cache, rows, projections, focus)
        change = _project(self.self_attention.output_map, context)
        features = self.add_self.after(change, features)
        attention = self.source_attention
        inner = self.add_source.before(features)
        memory.select(self.index, inner)
        query = _project(attention.query_map, inner)
        query = query.view(len(features), attention.heads, -1)
        # `attend` is fused, so that weights are computed again for alignments, which few searches
        # need.
        if rows is None:
            context = memory.attend(self.index, query)
            if weights is not None:
                weights.append(memory.weights(self.index, query).mean(1))
        else:
            context = memory.attend_rows(self.index, query, rows)
            if weights is not None:
                weights.append(memory.of_rows(self.index, rows).weights(0, query).mean(1))
        change = _project(attention.output_map, context.reshape(features.shape))
        return self._feed_forward(self.add_source.after(change, features))

    def step_several(
        self,
        features: Tensor,
        cache: DraftKVCache,
        memory: SourceCache,
        cells: NewestTokens,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the next states [M, D] of some of each row's newest Q tokens, without gradient.

        `cells` says which; the cache already counts all of them. Attention over the source,
        [R, Q, S], is appended to `weights` if that is a list.
        """
        heads = self.self_attention.heads
        inner = self.add_self.before(features)
        # Attention is computed for all cells, everything else only for the requested ones.
        fused = cells.spread(_project(self.self_attention.input_map, inner))
        fused = fused.view(*fused.shape[:2], 3, heads, -1)
        keys, values = cache.push_several(self.index, fused[:, :, 1:])
        context = attend(fused[:, :, 0].transpose(1, 2), keys, values, cells.mask)
        change = _project(self.self_attention.output_map, cells.collect(context))
        features = self.add_self.after(change, features)
        attention = self.source_attention
        query = cells.spread(_project(attention.query_map, self.add_source.before(features)))
        query = query.view(*query.shape[:2], heads, -1).transpose(1, 2)
        context = memory.attend_all(self.index, query)
        if weights is not None:
            weights.append(memory.weights_all(self.index, query).mean(1))
        change = _project(attention.output_map, cells.collect(context))
        return self._feed_forward(self.add_source.after(change, features))

    def _feed_forward(self, features: Tensor) -> Tensor:
        inner = self.add_feed_forward.before(features)
        change = self.feed_forward.step(inner)
        return self.add_feed_forward.after(change, features)

    def _attend_to_prefix(
        self,
        features: Tensor,
        cache: KVCache,
        rows: Tensor | None,
        projections: AttentionProjections | None,
        focus: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return features [R', D] of the rows that continue, and their heads' contexts [R', D]."""
        count, heads = len(features), self.self_attention.heads
        inner = self.add_self.before(features)
        if rows is None or projections is None:
            fused = _project(self.self_attention.input_map, inner).view(count, 3, heads, -1)
            keys, values = cache.push_pair(self.index, fused[:, 1:])
            query = fused[:, 0, :, None]
        else:
            # Rows that exited need keys and values at this position too, or their later tokens
            # could not attend to it; queries are needed only for the rows that continue.
            pair = product(inner, projections.pair_weight, projections.pair_bias)
            cache.push_pair(self.index, pair.view(count, 2, heads, -1))
            keys, values = cache.read(self.index, rows)
            inner = inner.index_select(0, rows)
            query = product(inner, projections.query_weight, projections.query_bias)
            query = query.view(len(rows), heads, 1, -1)
            features = features.index_select(0, rows)
        mask = cache.hidden if focus is None else newest_focus(focus, keys)
        context = attend(query, keys, values, mask)
        return features, context.reshape(features.shape)

    def points(self) -> dict[str, ProbePoint]:
        return {
            **self.add_self.points("self-attention", self.self_attention),
            **self.add_source.points("source-attention", self.source_attention),
            **self.add_feed_forward.points("feed-forward", self.feed_forward),
        }


def _project(layer: nn.Linear, features: Tensor, *, rectify: bool = False) -> Tensor:
    """Return layer(features) [R, N], with `rectify` its ReLU, without a gradient.

    It avoids the cost of a module call.
    """
    return product(features, layer.weight, layer.bias, rectify=rectify)
