"""Additive attention: scores w^T tanh(W_k k + W_q q), and its gradients written out.

Shapes: B sentences or pictures, Q queries of each, S source positions, H features that are
compared, F features of a value. Keys and queries come with their maps W_k, W_q applied. Neither
function leaves a trace for autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.layers.recurrent.lstm import squash


def attend_additively(
    query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, hide: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what queries [B, Q, H] read [B, Q, F], and the shares [B, Q, S].

    keys [B, S, H], values [B, S, F], weight [H]; hide [B, 1, S] is added to the scores (None:
    nothing).
    """
    scores = _mixed(query, keys) @ weight
    shares = (scores if hide is None else scores + hide).softmax(-1)
    return torch.bmm(shares, values), shares


def attend_additively_backward(
    of_read: Tensor, query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries [B, Q, H], keys [B, S, H] and weight [H]; values have none.

    What is compared is computed again: kept, it would be as large as the values at each position.
    """
    mixed = _mixed(query, keys)
    of_shares = torch.bmm(of_read, values.transpose(1, 2))
    of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype)
    of_weight = of_scores.flatten() @ mixed.flatten(0, 2)
    of_mixed = torch.ops.aten.tanh_backward(of_scores[..., None] * weight, mixed)
    return of_mixed.sum(2), of_mixed.sum(1), of_weight


def _mixed(query: Tensor, keys: Tensor) -> Tensor:
    """Return tanh(W_k k + W_q q) [B, Q, S, H]."""
    mixed = query[:, :, None] + keys[:, None]
    squash(mixed, mixed)
    return mixed
