"""Scaled dot-product attention, Eq. (2.40), through torch's fused kernels, and its weights.

Shapes: queries [B, H, T, d], keys and values [B, H, S, d]; B sentences or rows, H heads, T target
and S source positions, d features per head. Masks are additive floats (0 or -inf) that broadcast
to [B, H, T, S]; None masks nothing. All architectures with attention use this module.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from nmtgrid.base.rows import is_true_everywhere
from nmtgrid.layers.kernels.dropout import draw_mask, kept_share
from nmtgrid.layers.kernels.linear import apply

VECTOR = 8
"""Number of scores that torch's CPU kernel computes at once, or half of it."""


def product_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    dropout: float,
    scale: float,
) -> Tensor:
    """Return [B, H, T, d'], like `attend`, computed by two batched products.

    On a CPU torch's kernel is slow in bf16 and draws dropout element by element; the transformer's
    rows under training in benchmarks/results/cpu-1-thread.md use this form.
    """
    if causal:
        later = query.new_full((query.shape[-2], keys.shape[-2]), -math.inf).triu_(1)
        mask = later if mask is None else mask + later
    if torch.is_grad_enabled() or dropout:
        return apply(_ProductAttention, query, keys, values, mask, dropout, scale)
    leading = query.shape[:2]
    weights = _weights(query.flatten(0, 1), keys.flatten(0, 1), mask, scale, leading)
    context = torch.bmm(weights.to(values.dtype), values.flatten(0, 1))
    return context.view(*leading, *context.shape[1:])


def _weights(
    query: Tensor, keys: Tensor, mask: Tensor | None, scale: float, leading: torch.Size
) -> Tensor:
    """Return [B H, T, S]: the softmax of scale * query keys^T + mask, in fp32 at least."""
    # In place from here on: the scores are the largest tensor, and only their softmax is needed.
    scores = torch.bmm(query, keys.transpose(1, 2)).mul_(scale)
    if mask is not None:
        scores.unflatten(0, leading).add_(mask)
    return scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32))


class _ProductAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        dropout: float,
        scale: float,
    ) -> Tensor:
        leading = query.shape[:2]
        query, keys, values = (part.flatten(0, 1) for part in (query, keys, values))
        weights = _weights(query, keys, mask, scale, leading)
        dropped = draw_mask(weights, dropout).div_(kept_share(dropout)) if dropout else None
        used = weights if dropped is None else weights * dropped
        ctx.save_for_backward(query, keys, values, weights, dropped)
        ctx.leading, ctx.scale = leading, scale
        context = torch.bmm(used.to(values.dtype), values)
        return context.view(*leading, *context.shape[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, weights, dropped = ctx.saved_tensors
        gradient = gradient.flatten(0, 1)
        # Recomputed rather than saved: [B H, T, S] is the largest tensor here.
        used = weights if dropped is None else weights * dropped
        of_values = torch.bmm(used.to(gradient.dtype).transpose(1, 2), gradient)
        of_weights = torch.bmm(gradient, values.transpose(1, 2)).to(weights.dtype)
        if dropped is not None:
            of_weights *= dropped
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_scores = (of_scores * ctx.scale).to(query.dtype)
        of_query = torch.bmm(of_scores, keys)
        of_keys = torch.bmm(of_scores.transpose(1, 2), query)
        gradients = (part.unflatten(0, ctx.leading) for part in (of_query, of_keys, of_values))
        return (*gradients, None, None, None)


def missing_columns(keys: Tensor) -> int:
    """Return the number of keys to add to [..., S, d] for torch's kernel to take less time.

    On a CPU it computes the scores beyond the last whole vector one by one.
    """
    is_vectorised = keys.device.type == "cpu" and keys.dtype is torch.float32
    return -keys.shape[-2] % VECTOR if is_vectorised else 0


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Return [B, H, T, d']: the values weighted by softmax(scale * query keys^T + mask).

    `scale` None means 1 / sqrt(d); `causal` lets query t see only keys up to t (T = S); `dropout`
    is the rate at which weights are dropped: pass 0 outside training.
    """
    if mask is not None and mask.dtype is not query.dtype:
        mask = mask.to(query.dtype)
    # torch's CPU kernel has a fast path only for fp32 without dropout.
    has_own_form = query.is_cpu and not torch.compiler.is_compiling()
    if has_own_form and (query.dtype is torch.bfloat16 or dropout):
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        return product_attention(
            query, keys, values, mask, causal=causal, dropout=dropout, scale=scale
        )
    if has_own_form and mask is not None and query.shape[-2] >= VECTOR:
        padding = 0 if torch.is_grad_enabled() else missing_columns(keys)
        if padding:
            columns = (0, 0, 0, padding)
            keys, values = pad(keys, columns), pad(values, columns)
            mask = pad(mask, (0, padding), value=-math.inf)
    return scaled_dot_product_attention(
        query, keys, values, mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


def attention_weights(
    query: Tensor, keys: Tensor, mask: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Return the weights [B, H, T, S] that `attend` gives the values, in fp32 at least."""
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ keys.transpose(-1, -2)) * scale
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return scores.softmax(-1)


def source_mask(is_source: Tensor, like: Tensor) -> Tensor | None:
    """Return the additive mask [B, 1, 1, S] that hides padded source positions, or None.

    is_source [B, S] is True on real tokens; if it is True everywhere, no mask is needed.
    """
    # Without a mask torch can use its fastest kernels.
    if is_true_everywhere(is_source):
        return None
    mask = like.new_zeros(is_source.shape)
    return mask.masked_fill_(~is_source, -math.inf)[:, None, None, :]


def window_mask(length: int, window: int, like: Tensor) -> Tensor:
    """Return the additive mask [S, S] with which a position sees the last `window` ones and itself.

    Eq. (4.18): i - window < j <= i.
    """
    is_seen = torch.ones(length, length, dtype=torch.bool, device=like.device)
    is_seen = is_seen.tril().triu(1 - window)
    return like.new_zeros(length, length).masked_fill_(~is_seen, -math.inf)
