"""Linear layers by the fastest product that torch has for the device.

On a CPU of another maker than Intel, torch's default fp32 product (MKL) is slower than oneDNN's,
which `linear` and `product` call instead: `machine` in benchmarks/results/cpu-1-thread.md gives the
rates. On a GPU `linear_relu` has the product itself write what is rectified: a grid's inner
features are four times as wide as its cells, so a pass over them alone takes a fifth of the
product's time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmtgrid.base.devices import is_intel


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Return `function.apply(*inputs)`, for which torch has no types."""
    result: Tensor = function.apply(*inputs)
    return result


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the type of products on `x`: autocast's where that is on, and x's own for float64."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias [..., N], for x [..., K], weight [N, K] and bias [N]."""
    # oneDNN's operator has no derivative of its own; the Function costs time only with gradients.
    if not torch.is_grad_enabled():
        return product(x, weight, bias)
    if not _uses_onednn(x, weight):
        return F.linear(x, weight, bias)
    return apply(_Linear, x, weight, bias)


class Projection(nn.Linear):
    """A linear layer whose product takes the fastest way in its type."""

    @classmethod
    def of(cls, layer: nn.Linear) -> Projection:
        """Return the projection that shares the parameters of `layer`."""
        projection = cls(layer.in_features, layer.out_features, device="meta")
        projection.weight, projection.bias = layer.weight, layer.bias
        return projection.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the same without a gradient, for factors with any strides."""
    packed = getattr(weight, "packed", None)  # see packed_weights.py
    if packed is not None and _is_plain_fp32(x, weight):
        result: Tensor = packed.product(x, weight, bias)
        return result
    if not _uses_onednn(x, weight):
        return F.linear(x, weight, bias)
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # oneDNN multiplies a slice hundreds of times more slowly
    result = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def _uses_onednn(x: Tensor, weight: Tensor) -> bool:
    return _IS_FASTER and _is_plain_fp32(x, weight)


def _is_plain_fp32(x: Tensor, weight: Tensor) -> bool:
    # In bf16 torch takes oneDNN by itself, and autocast must see `F.linear` to convert.
    return (
        x.dtype is torch.float32
        and weight.dtype is torch.float32
        and x.device.type == "cpu"
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
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
        flat, needs = gradient.flatten(0, -2), ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if needs[0] else None,
            product(flat.t(), x.flatten(0, -2).t()) if needs[1] else None,
            flat.sum(0) if ctx.has_bias and needs[2] else None,
        )


def _is_slowed_by_mkl() -> bool:
    return torch.backends.mkl.is_available() and not is_intel()


_IS_FASTER = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and _is_slowed_by_mkl()
)


def packs_fp32() -> bool:
    """Return whether fp32 products on this machine's CPU gain by packed weights."""
    return _IS_FASTER and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def linear_relu(module: nn.Linear, x: Tensor) -> Tensor:
    """Return relu(module(x)) [..., N], for x [..., K]."""
    # The fused product calls no module, so hooks on it would see nothing.
    is_watched = bool(module._forward_hooks or module._forward_pre_hooks)
    if x.device.type != "cuda" or is_watched or module.bias is None:
        return torch.relu_(module(x))
    dtype = working_dtype(x)
    return apply(LinearReLU, x.to(dtype), module.weight.to(dtype), module.bias.to(dtype))


class LinearReLU(torch.autograd.Function):
    """relu(x weight^T + bias) for x [..., K], weight [N, K] and bias [N] of one dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            flat = torch._addmm_activation(bias, x.flatten(0, -2), weight.t())
        ctx.save_for_backward(x, weight, flat)
        rectified: Tensor = flat.view(*x.shape[:-1], flat.shape[1])
        return rectified

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, rectified = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            # The output says where the rectifier was open: the input need not be kept.
            of_flat = torch.ops.aten.threshold_backward(gradient.flatten(0, -2), rectified, 0)
            of_x = (of_flat @ weight).view(x.shape)
            return of_x, of_flat.t() @ x.flatten(0, -2), of_flat.sum(0)
