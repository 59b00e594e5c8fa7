"""Linear layers with the fastest matrix product that torch has for the device.

On CPUs other than Intel's, MKL, torch's default in fp32, leaves AVX-512 unused and takes twice as
long as oneDNN, which `linear`, `product` and `feed_forward` call there instead: `machine` in
benchmarks/results/cpu-1-thread.md gives the rates. In bf16 oneDNN's operator saves a copy of the
bias. Gradients of weights are summed over chunks of rows, which stay in the cache. On a GPU
`linear_relu` lets the product apply the ReLU: a grid's inner features are four times as wide as its
cells, so a separate pass over them takes a fifth of the product's time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmtgrid.base.devices import is_intel
from nmtgrid.layers.kernels.triton_support import uses_triton


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Return `function.apply(*inputs)`, for which torch has no types."""
    result: Tensor = function.apply(*inputs)
    return result


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the type of products on `x`: autocast's if it is on and x not float64, else x's."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias [..., N], for x [..., K], weight [N, K] and bias [N]."""
    if not torch.is_grad_enabled():
        return product(x, weight, bias)
    # oneDNN's operator has no derivative; the Function costs time, but only with gradients.
    if not _has_derivative(x, weight):
        return F.linear(x, weight, bias)
    return apply(_Linear, x, weight, bias)


class Projection(nn.Linear):
    """A linear layer that uses the fastest product for its type."""

    @classmethod
    def of(cls, layer: nn.Linear) -> Projection:
        """Return the projection that shares the parameters of `layer`."""
        projection = cls(layer.in_features, layer.out_features, device="meta")
        projection.weight, projection.bias = layer.weight, layer.bias
        return projection.train(layer.training)

    @classmethod
    def xavier(cls, input_size: int, output_size: int) -> Projection:
        """Return a projection with Xavier-uniform weights and a zero bias."""
        projection = cls(input_size, output_size)
        nn.init.xavier_uniform_(projection.weight)
        nn.init.zeros_(projection.bias)
        return projection

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, rectify: bool = False
) -> Tensor:
    """Return `linear` without a gradient, for factors with any strides; `rectify` adds a ReLU."""
    packed = getattr(weight, "packed", None)  # see packed_weights.py
    if packed is not None and x.dtype is torch.float32 and _is_plain(x, weight):
        result: Tensor = packed.product(x, weight, bias, rectify)
        return result
    is_faster = _IS_FASTER.get(x.dtype, False) and _is_plain(x, weight)
    # In bf16 `F.linear` uses oneDNN by itself, but first copies a bias into every row.
    if not is_faster or (x.dtype is torch.bfloat16 and bias is None):
        return plain_product(x, weight, bias, rectify)
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # oneDNN multiplies a slice hundreds of times more slowly
    activation = "relu" if rectify else "none"
    result = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")
    return result


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:
    """Return `product` as torch computes it, with its own choice of library."""
    result = F.linear(x, weight, bias)
    return result.relu_() if rectify else result


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    # Under autocast `F.linear` casts, and caches the cast weights.
    return (
        weight.dtype is x.dtype
        and x.is_cpu
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _has_derivative(x: Tensor, weight: Tensor) -> bool:
    """Return whether the Functions below accept x and weight, in autocast's type if it is on."""
    if x.device.type != "cpu" or x.dim() < 2 or not x.numel():
        return False
    if torch.compiler.is_compiling():
        return False
    if not _IS_FASTER.get(working_dtype(x), False):
        return False
    return x.dtype is weight.dtype or torch.is_autocast_enabled("cpu")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.dtypes, dtype = _dtypes(x, weight, bias), working_dtype(x)
        x, weight = x.to(dtype).contiguous(), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        with torch.autocast("cpu", enabled=False):
            return product(x, weight, None if bias is None else bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs, gradient = ctx.needs_input_grad, gradient.contiguous()
        of_map = _MapGradient(weight, has_weight=needs[1], has_bias=needs[2])
        for part, rows in _chunks(gradient, x):
            of_map.add(part, rows)
        of_x = product(gradient, weight.t()).to(ctx.dtypes[0]) if needs[0] else None
        return of_x, *of_map.sums(*ctx.dtypes[1:])


CHUNK = 2**22
"""Bytes per chunk of a backward pass: the next product finds the output of one in the cache."""


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield chunks of rows [m, N] of all contiguous `tensors` [..., N]."""
    flat = [tensor.view(-1, tensor.shape[-1]) for tensor in tensors]
    rows = max(256, CHUNK // sum(x.shape[1] * x.element_size() for x in flat))
    yield from zip(*(x.split(rows) for x in flat), strict=True)


class _MapGradient:
    """The gradient of a linear map's weight [N, K] and bias [N], summed over chunks in float32."""

    def __init__(self, weight: Tensor, *, has_weight: bool = True, has_bias: bool = True) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self._of_weight = weight.new_zeros(weight.shape, dtype=wide) if has_weight else None
        self._of_bias = weight.new_zeros(len(weight), dtype=wide) if has_bias else None

    def add(self, gradient: Tensor, x: Tensor) -> None:
        """Add the share of rows x [m, K] with the gradient [m, N] of the map's output."""
        if self._of_weight is not None:
            self._of_weight += product(gradient.t(), x.t())
        if self._of_bias is not None:
            self._of_bias += gradient.sum(0)

    def sums(
        self, of_weight: torch.dtype, of_bias: torch.dtype | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return both in these types; None for one that is not needed."""
        return (
            None if self._of_weight is None else self._of_weight.to(of_weight),
            None if self._of_bias is None else self._of_bias.to(of_bias),
        )


def _dtypes(*tensors: Tensor | None) -> list[torch.dtype | None]:
    return [None if tensor is None else tensor.dtype for tensor in tensors]


def _is_slowed_by_mkl() -> bool:
    # Without AVX-512 MKL is as fast as oneDNN, and faster in the products of gradients.
    has_avx512 = torch.cpu._is_avx512_supported()
    return torch.backends.mkl.is_available() and has_avx512 and not is_intel()


_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)
_IS_FASTER = {
    torch.float32: _HAS_ONEDNN and _is_slowed_by_mkl(),
    torch.bfloat16: _HAS_ONEDNN and torch.cpu._is_avx512_bf16_supported(),
}
"""Types in which oneDNN's own operator is faster than `F.linear`."""


def feed_forward(widen: nn.Linear, narrow: nn.Linear, x: Tensor) -> Tensor:
    """Return narrow(relu(widen(x))) [..., N], for x [..., K]."""
    has_hooks = is_watched(widen) or is_watched(narrow)
    if has_hooks or not torch.is_grad_enabled() or not _has_derivative(x, widen.weight):
        narrowed: Tensor = narrow(linear_relu(widen, x))
        return narrowed
    return apply(_FeedForward, x, widen.weight, widen.bias, narrow.weight, narrow.bias)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        widen: Tensor,
        widen_bias: Tensor | None,
        narrow: Tensor,
        narrow_bias: Tensor | None,
    ) -> Tensor:
        ctx.dtypes = _dtypes(x, widen, widen_bias, narrow, narrow_bias)
        dtype = working_dtype(x)
        x, widen, narrow = x.to(dtype).contiguous(), widen.to(dtype), narrow.to(dtype)
        biases = [None if bias is None else bias.to(dtype) for bias in (widen_bias, narrow_bias)]
        with torch.autocast("cpu", enabled=False):
            hidden = product(x, widen, biases[0], rectify=True)
            ctx.save_for_backward(x, hidden, widen, narrow)
            return product(hidden, narrow, biases[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, widen, narrow = ctx.saved_tensors
        needs, dtypes = ctx.needs_input_grad, ctx.dtypes
        of_widen = _MapGradient(widen, has_weight=needs[1], has_bias=needs[2])
        of_narrow = _MapGradient(narrow, has_weight=needs[3], has_bias=needs[4])
        of_x = torch.empty_like(x)
        for part, rows, inner, of_rows in _chunks(gradient.contiguous(), x, hidden, of_x):
            of_narrow.add(part, inner)
            of_inner = product(part, narrow.t())
            close_where_zero(of_inner, inner)
            of_widen.add(of_inner, rows)
            if needs[0]:
                of_rows.copy_(product(of_inner, widen.t()))
        of_maps = *of_widen.sums(*dtypes[1:3]), *of_narrow.sums(*dtypes[3:])
        return of_x.to(dtypes[0]) if needs[0] else None, *of_maps


def close_where_zero(gradient: Tensor, rectified: Tensor) -> None:
    """Zero the gradient of a ReLU in place where the ReLU's output is zero."""
    # The output shows where the ReLU was active: its input need not be saved.
    if gradient.dtype is not torch.bfloat16 or not gradient.is_cpu:
        torch.ops.aten.threshold_backward.grad_input(gradient, rectified, 0, grad_input=gradient)
        return
    # As integers, in half the time, without torch's conversions to float32 and back. The bits of
    # zero are zero, those of a positive number are positive: clamped at one, they are a mask.
    is_open = rectified.view(torch.int16).clamp(max=1)
    gradient.view(torch.int16).mul_(is_open)


def is_watched(module: nn.Module) -> bool:
    """Return whether a module has hooks, which would see nothing if it is not called."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


@functools.cache
def packable_library() -> Literal["onednn", "mkl"] | None:
    """Return the library of this CPU's fp32 products, if packed weights make them faster.

    Measured on AMD's processors, with AVX-512 (oneDNN) and without (MKL); None on others.
    """
    if not (_HAS_ONEDNN and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return None
    if _IS_FASTER[torch.float32]:
        return "onednn"
    return "mkl" if torch.backends.mkl.is_available() and not is_intel() else None


def linear_relu(module: nn.Linear, x: Tensor) -> Tensor:
    """Return relu(module(x)) [..., N], for x [..., K]."""
    is_plain = x.device.type != "cuda" or torch.compiler.is_compiling()
    if is_plain or is_watched(module) or module.bias is None:
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
            # The output shows where the ReLU was active: its input need not be saved.
            of_flat, of_bias = _rectifier_backward(gradient.flatten(0, -2), rectified)
            of_x = (of_flat @ weight).view(x.shape)
            return of_x, of_flat.t() @ x.flatten(0, -2), of_bias


def _rectifier_backward(gradient: Tensor, rectified: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the ReLU's input [M, N] and of the bias [N] added before it."""
    if uses_triton(gradient):
        # Imported here: CPU builds of torch come without Triton.
        from nmtgrid.layers.kernels.relu_triton import rectifier_backward

        return rectifier_backward(gradient, rectified)
    of_flat = torch.ops.aten.threshold_backward(gradient, rectified, 0)
    return of_flat, of_flat.sum(0)
