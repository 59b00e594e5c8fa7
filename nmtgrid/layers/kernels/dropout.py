"""Dropout whose masks cost little on a CPU, by itself and fused with a residual sum.

torch's dropout draws one float per element and takes longer than the matrix product next to it
(benchmarks/kernels.py times the residual sum with it). Here one random byte decides about one
element, so on a CPU the rate is rounded to a multiple of 1/256, and is at least 1/256; elements
that are kept are scaled by exactly one over the kept share. All randomness comes from torch's
default generator, one draw of 64 bits for eight elements, so a run resumes exactly. A GPU uses
torch's own masks, and for the residual sum a kernel that stores none (dropout_triton.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import apply
from nmtgrid.layers.kernels.triton_support import uses_triton

LEVELS = 256


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Zero elements of x with probability `rate` while training, and scale the others up.

    Raises: ValueError for a rate outside [0, 1).
    """
    rate = _active_rate(rate, training)
    if not rate:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    return apply(_Dropout, x, rate)


def residual_dropout(h: Tensor, y: Tensor, rate: float, scale: float, training: bool) -> Tensor:
    """Return (h + dropout(y)) * scale, for h and y of one shape, in h's dtype.

    Raises: ValueError for a rate outside [0, 1).
    """
    rate, y = _active_rate(rate, training), y.to(h.dtype)
    if torch.compiler.is_compiling():
        # The compiler fuses all this with its neighbours.
        return (h + F.dropout(y, rate, rate > 0.0)) * scale
    if _has_kernel(h):
        # Imported here: CPU builds of torch come without Triton.
        from nmtgrid.layers.kernels.dropout_triton import TritonResidual

        return apply(TritonResidual, h, y, rate, scale)
    # Without Triton: torch's own mask, and the fused sum for the rest.
    if rate and h.device.type != "cpu":
        y, rate = F.dropout(y, rate), 0.0
    return apply(_Residual, h, y, rate, scale)


def residual_branches(
    h: Tensor, y: Tensor, rate: float, scale: float, training: bool, count: int
) -> tuple[Tensor, ...]:
    """Return `count` (1 to 3) copies of the `residual_dropout` of these inputs, one per reader.

    They share their memory. On a GPU the kernel that needs the sum of their gradients adds them.
    """
    if count > 1 and _has_kernel(h):
        from nmtgrid.layers.kernels.dropout_triton import TritonResidual

        branches: tuple[Tensor, ...] = TritonResidual.apply(  # type: ignore[no-untyped-call]
            h, y.to(h.dtype), _active_rate(rate, training), scale, count
        )
        return branches
    return (residual_dropout(h, y, rate, scale, training),) * count


def _has_kernel(h: Tensor) -> bool:
    return not torch.compiler.is_compiling() and uses_triton(h)


def kept_share(rate: float) -> float:
    """Return the probability with which a CPU mask keeps an element, a multiple of 1/256."""
    return 1.0 - _dropped_levels(rate) / LEVELS


def draw_mask(like: Tensor, rate: float) -> Tensor:
    """Return a mask of the shape and dtype of `like`, 1 with probability `kept_share(rate)`."""
    # One draw of 64 bits serves eight elements: drawing costs more than all that follows.
    words = torch.empty((like.numel() + 7) // 8, dtype=torch.int64)
    draws = words.random_(-(2**63), None).view(torch.uint8)[: like.numel()].view(like.shape)
    # Writing the comparison in the final dtype saves a conversion, which costs more than it.
    mask = torch.empty(like.shape, dtype=like.dtype)
    return torch.ge(draws, _dropped_levels(rate), out=mask)


def _active_rate(rate: float, training: bool) -> float:
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"the dropout rate must be in [0, 1), but is {rate}")
    return rate if training else 0.0


def _dropped_levels(rate: float) -> int:
    # A rate above zero must drop something, and a rate below one must not drop everything.
    return min(max(round(rate * LEVELS), 1), LEVELS - 1) if rate else 0


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask = draw_mask(x, rate)
        ctx.save_for_backward(mask)
        ctx.factor = 1.0 / kept_share(rate)
        return _masked(x, mask, ctx.factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _masked(gradient, ctx.saved_tensors[0], ctx.factor), None


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, y: Tensor, rate: float, scale: float) -> Tensor:
        ctx.scale, ctx.factor = scale, scale / kept_share(rate)
        if rate:
            mask = draw_mask(h, rate)
            ctx.save_for_backward(mask)
            total = torch.addcmul(h, y, mask, value=1.0 / kept_share(rate))
        else:
            ctx.save_for_backward()
            total = torch.add(h, y)
        return total if scale == 1.0 else total.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_sum = gradient * ctx.scale if ctx.scale != 1.0 else gradient
        # Unpacked only once: with activation checkpointing each access recomputes.
        saved = ctx.saved_tensors
        if not saved:
            return of_sum, of_sum, None, None
        return of_sum, _masked(gradient, saved[0], ctx.factor), None, None


def _masked(x: Tensor, mask: Tensor, factor: float) -> Tensor:
    # Adding to a single zero is torch's only way of computing two products in one pass.
    return torch.addcmul(x.new_zeros(()), x, mask, value=factor)
