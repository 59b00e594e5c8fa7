"""A decoder block's step without gradients, in as few operations as it takes.

At one token for each row the arithmetic is small, and modules, closures and gradients cost as much
as it does. `DecoderBlock.step` and `step_some` come here when nothing is learnt; the formulas are
those of layers/transformer/blocks.py and layers/transformer/attention.py.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nmtgrid.layers.attention import attend
from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.source_cache import SourceMemory
from nmtgrid.layers.transformer.attention import AttentionMaps
from nmtgrid.layers.transformer.kv_cache import TokenCache

# Of layers/transformer/blocks.py, which imports this file.
AddNorm: TypeAlias = Any
DecoderBlock: TypeAlias = Any


def lean_step(
    block: DecoderBlock,
    features: Tensor,
    cache: TokenCache,
    memory: SourceMemory,
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
    memory: SourceMemory,
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
