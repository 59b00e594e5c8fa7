"""Additive attention: scores w^T tanh(W_k k + W_q q), with a backward pass written out.

Shapes: B sentences or pictures, Q queries of each, S source positions, H features that are
compared, F features of a value. Keys and queries come with their maps W_k, W_q applied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.recurrent import squash


def attend_additively(
    query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, hide: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what queries [B, Q, H] read [B, Q, F], and the shares [B, Q, S], without gradient.

    keys [B, S, H], values [B, S, F], weight [H]; hide [B, 1, S] is added to the scores (None:
    nothing). All is computed in the precision of the values.
    """
    found: tuple[Tensor, Tensor] = _Additive.apply(  # type: ignore[no-untyped-call]
        query.to(values.dtype), keys.to(values.dtype), values, weight.to(values.dtype), hide
    )
    return found


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, hide: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(query.device.type, enabled=False):
            mixed = query[:, :, None] + keys[:, None]
            squash(mixed, mixed)
            scores = mixed @ weight
            shares = (scores if hide is None else scores + hide).softmax(-1)
            read = torch.bmm(shares, values)
        ctx.save_for_backward(mixed, shares, values, weight)
        ctx.mark_non_differentiable(shares)
        return read, shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_read: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        mixed, shares, values, weight = ctx.saved_tensors
        with torch.autocast(of_read.device.type, enabled=False):
            of_shares = torch.bmm(of_read, values.transpose(1, 2))
            of_scores = shares * (of_shares - (shares * of_shares).sum(-1, keepdim=True))
            of_weight = of_scores.flatten() @ mixed.flatten(0, 2)
            of_mixed = of_scores[..., None] * weight
            of_mixed = torch.ops.aten.tanh_backward(of_mixed, mixed)
            of_values = None
            if ctx.needs_input_grad[2]:
                of_values = torch.bmm(shares.transpose(1, 2), of_read)
        return of_mixed.sum(2), of_mixed.sum(1), of_values, of_weight, None
