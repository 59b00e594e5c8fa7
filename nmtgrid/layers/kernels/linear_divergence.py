"""How far predictions at many sites are from one another, without keeping their logits [M, V].

As in `linear_loss` the features are taken in chunks, whose logits are dropped at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.kernels.linear_loss import dtype_and_chunk

Measure = Literal["kl", "total-variation", "euclidean", "cosine"]
"""A divergence of a prediction p from a reference q, on a scale from 0 (the same) to 1.

"kl" is 1 - exp(-KL(q || p)), which rises with the Kullback-Leibler divergence; "total-variation"
half the sum of |q - p|; "euclidean" the norm of q - p divided by the square root of 2; "cosine" 1
less the cosine of p and q.
"""


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return -torch.expm1((log_q.exp() * (log_p - log_q)).sum(1))


def _total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_q.exp() - log_p.exp()).abs().sum(1) / 2


def _euclidean(log_p: Tensor, log_q: Tensor) -> Tensor:
    return ((log_q.exp() - log_p.exp()).square().sum(1) / 2).sqrt()


def _cosine(log_p: Tensor, log_q: Tensor) -> Tensor:
    # A zero norm cannot be: the largest of V probabilities is at least 1 / V.
    return 1 - cosine_similarity(log_p.exp(), log_q.exp(), dim=1)


_MEASURES: Mapping[Measure, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": _kl,
    "total-variation": _total_variation,
    "euclidean": _euclidean,
    "cosine": _cosine,
}
assert set(_MEASURES) == set(get_args(Measure))


@torch.no_grad()
def linear_divergence(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    references: Tensor,
    measure: Measure,
    chunk: int | None = None,
) -> Tensor:
    """Return [M]: how far the prediction at each site is from that at its reference.

    features [M, D], weight [V, D], bias [V] or None; references [M] (int64) index the features.
    In float32 at least, without gradient; chunk counts the features taken at a time, with at most
    as many references beside them. See `linear_loss.linear_cross_entropy`.

    Raises: ValueError for a chunk below 1.
    """
    dtype, chunk = dtype_and_chunk(features, weight, chunk)
    matrix, shift = weight.to(dtype), None if bias is None else bias.to(dtype)
    total = torch.promote_types(dtype, torch.float32)
    values = features.new_empty(len(features), dtype=total)

    def log_probs(rows: Tensor) -> Tensor:
        return product(features[rows].to(dtype), matrix, shift).to(total).log_softmax(1)

    with torch.autocast(features.device.type, enabled=False):
        for rows in torch.arange(len(features), device=features.device).split(chunk):
            # Sites of a row of a grid have one reference, whose logits are computed once.
            kinds, index = references[rows].unique(return_inverse=True)
            log_q = log_probs(kinds)[index]
            values[rows] = _MEASURES[measure](log_probs(rows), log_q).clamp(0.0, 1.0)
    return values
