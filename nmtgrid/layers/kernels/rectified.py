"""A map with a rectifier behind it: on a GPU the product itself writes what is rectified.

A grid's inner features are four times as wide as its cells, so a pass over them alone takes a
GPU as long as a fifth of the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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
