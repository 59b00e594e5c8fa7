"""Affine maps in fp32 through oneDNN where that is faster: on x86 processors that are not Intel's.

torch multiplies fp32 matrices with MKL, which leaves half of an AMD core idle; oneDNN does not.
On Intel's MKL is the faster one, where oneDNN takes a tenth of a millisecond or more to begin each
product. Both round as fp32 does. Everything else (autocast, other types, other devices) goes the
usual way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.base.processors import is_intel


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias [..., N], for x [..., K], weight [N, K] and bias [N]."""
    if not _is_served(x, weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return product(x, weight, bias)
    mapped: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return mapped


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the same without a gradient, for factors with any strides."""
    if not _is_served(x, weight):
        return F.linear(x, weight, bias)
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # oneDNN multiplies a slice hundreds of times more slowly
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def _is_served(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype is torch.float32
        and weight.dtype is torch.float32
        and x.device.type == "cpu"
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and _IS_FASTER
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        flat, given = gradient.flatten(0, -2), x.flatten(0, -2)
        wanted = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if wanted[0] else None,
            product(flat.t(), given.t()) if wanted[1] else None,
            flat.sum(0) if ctx.has_bias and wanted[2] else None,
        )


def _is_slowed_by_mkl() -> bool:
    """Return whether torch multiplies with MKL on a processor of another maker."""
    return torch.backends.mkl.is_available() and not is_intel()


_IS_FASTER = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and _is_slowed_by_mkl()
)
