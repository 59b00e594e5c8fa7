"""A map with a rectifier behind it: on a GPU the product itself writes what is rectified.

A grid's inner features are four times as wide as its cells, so a pass over them alone takes a
GPU as long as a fifth of the product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmtgrid.base.devices import is_intel


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


def rectified_map(module: nn.Linear, x: Tensor) -> Tensor:
    """Return relu(module(x)) [..., N], for x [..., K]."""
    is_watched = bool(module._forward_hooks or module._forward_pre_hooks)
    if x.device.type != "cuda" or is_watched or module.bias is None:
        return torch.relu_(module(x))
    kind = x.dtype
    if torch.is_autocast_enabled("cuda") and kind != torch.float64:
        kind = torch.get_autocast_dtype("cuda")
    mapped: Tensor = RectifiedMap.apply(  # type: ignore[no-untyped-call]
        x.to(kind), module.weight.to(kind), module.bias.to(kind)
    )
    return mapped


class RectifiedMap(torch.autograd.Function):
    """relu(x weight^T + bias) for x [..., K], weight [N, K] and bias [N] of one dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            flat = torch._addmm_activation(bias, x.flatten(0, -2), weight.t())
        ctx.save_for_backward(x, weight, flat)
        found: Tensor = flat.view(*x.shape[:-1], flat.shape[1])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, rectified = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            of_flat = torch.ops.aten.threshold_backward(gradient.flatten(0, -2), rectified, 0)
            of_x = (of_flat @ weight).view(x.shape)
            return of_x, of_flat.t() @ x.flatten(0, -2), of_flat.sum(0)
