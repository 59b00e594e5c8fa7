"""The scaled sum of many tensors, such as the states of all layers, with one gradient for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import apply
from nmtgrid.layers.kernels.triton_support import uses_triton


def scaled_sum(terms: Sequence[Tensor], scale: float) -> Tensor:
    """Return `scale` times the sum of `terms` of one shape and type, summed in fp32 at least."""
    return apply(_ScaledSum, scale, *terms)


class _ScaledSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, *terms: Tensor) -> Tensor:
        ctx.scale, ctx.count = scale, len(terms)
        if uses_triton(terms[0]):
            # Imported here: CPU builds of torch come without Triton.
            from nmtgrid.layers.kernels import scaled_sum_triton

            return scaled_sum_triton.scaled_sum(terms, scale)
        total = terms[0].to(torch.promote_types(terms[0].dtype, torch.float32), copy=True)
        for term in terms[1:]:
            total += term
        return (total * scale).to(terms[0].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # One gradient for all terms: autograd would convert it for each of them.
        return None, *[gradient * ctx.scale] * ctx.count
