"""Scaled dot-product attention by plain batched products, with its gradient written out.

On CPUs the library's fused attention takes ten times longer backward in bf16 than these few
products, and has no fused form with dropout. The weights [B, H, T, S], in fp32 at least, are kept
for the gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.dropout import draw_mask, kept_share


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
    """Return [B, H, T, d'], as `attend` (layers/attention.py) does."""
    if causal:
        length, width = query.shape[-2], keys.shape[-2]
        later = query.new_full((length, width), -math.inf).triu_(1)
        mask = later if mask is None else mask + later
    if not torch.is_grad_enabled() and not dropout:
        return _read(query, keys, values, mask, scale)
    read: Tensor = _ProductAttention.apply(  # type: ignore[no-untyped-call]
        query, keys, values, mask, dropout, scale
    )
    return read


def _read(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return [B, H, T, d'] without a gradient."""
    leading = query.shape[:2]
    weights = _weights(query.flatten(0, 1), keys.flatten(0, 1), mask, scale, leading)
    read = torch.bmm(weights.to(values.dtype), values.flatten(0, 1))
    return read.view(*leading, *read.shape[1:])


def _weights(
    query: Tensor, keys: Tensor, mask: Tensor | None, scale: float, leading: torch.Size
) -> Tensor:
    """Return [B H, T, S] the softmax of scale * query keys^T + mask, in fp32 at least."""
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
        kept = draw_mask(weights, dropout).div_(kept_share(dropout)) if dropout else None
        used = weights if kept is None else weights * kept
        ctx.save_for_backward(query, keys, values, weights, kept)
        ctx.leading, ctx.scale = leading, scale
        read = torch.bmm(used.to(values.dtype), values)
        return read.view(*leading, *read.shape[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, weights, kept = ctx.saved_tensors
        gradient = gradient.flatten(0, 1)
        used = weights if kept is None else weights * kept
        of_values = torch.bmm(used.to(gradient.dtype).transpose(1, 2), gradient)
        of_weights = torch.bmm(gradient, values.transpose(1, 2)).to(weights.dtype)
        if kept is not None:
            of_weights *= kept
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_scores = (of_scores * ctx.scale).to(query.dtype)
        of_query = torch.bmm(of_scores, keys)
        of_keys = torch.bmm(of_scores.transpose(1, 2), query)
        found = (part.unflatten(0, ctx.leading) for part in (of_query, of_keys, of_values))
        return (*found, None, None, None)
