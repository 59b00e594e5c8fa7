"""Scaled dot-product attention through torch's fused kernels, and its weights where asked.

Shapes: queries [B, H, T, d], keys and values [B, H, S, d]; B sentences or rows, H heads, T target
and S source positions, d features of a head. Masks are additive floats (0 or -inf) that broadcast
to [B, H, T, S]; None lets everything through.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nmtgrid.layers.product_attention import product_attention


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
    """Return [B, H, T, d'] the values weighted by softmax(scale * query keys^T + mask).

    `scale` None means 1 / sqrt(d); `causal` lets query t see keys up to t alone (T = S); `dropout`
    is the rate at which weights are dropped: pass 0 outside training.
    """
    if mask is not None:
        mask = mask.to(query.dtype)
    if query.device.type == "cpu" and (query.dtype is torch.bfloat16 or dropout):
        factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        return product_attention(
            query, keys, values, mask, causal=causal, dropout=dropout, scale=factor
        )
    return scaled_dot_product_attention(
        query, keys, values, mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


def attention_weights(
    query: Tensor, keys: Tensor, mask: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Return the weights [B, H, T, S] that `attend` gives the values, in fp32 at least."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ keys.transpose(-1, -2)) * factor
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return scores.softmax(-1)


def source_mask(is_source: Tensor | None, like: Tensor) -> Tensor | None:
    """Return the additive mask [B, 1, 1, S] that hides padded source positions, or None.

    is_source [B, S] is True on real tokens; None, or True everywhere, needs no mask.
    """
    if is_source is None or bool(is_source.all()):
        return None
    mask = torch.zeros(is_source.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~is_source, -math.inf)[:, None, None, :]


def window_mask(length: int, window: int, like: Tensor) -> Tensor:
    """Return the additive mask [S, S] that shows a position the last `window`, itself included.

    Eq. (4.18): i - window < j <= i.
    """
    ones = torch.ones(length, length, dtype=torch.bool, device=like.device)
    is_seen = ones.tril().triu(1 - window)
    return torch.zeros(length, length, dtype=like.dtype, device=like.device).masked_fill_(
        ~is_seen, -math.inf
    )
