# Triton's language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Dropout and the residual sum on a GPU, in Triton: one pass forward and one backward.

No mask is stored: both passes draw the same numbers. Sums are in float32.
Imported only where Triton is installed; benchmarks/kernels.py times it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.triton_options import OPTIONS

BLOCK = 512
"""Elements in a quarter of a program: a draw yields four numbers."""


# The numbers depend only on a seed and the index of an element. The seed comes from torch's
# default generator on the CPU, so nothing waits for the GPU, a run resumes exactly, and recomputed
# activations have the same masks.
@triton.jit
def _is_kept(draws, rate):
    return tl.uint_to_uniform_float(draws) >= rate


@triton.jit(do_not_specialize=["seed"])
def _add_kernel(
    h, y, out, count, rate, factor, scale, seed, DROPS: tl.constexpr, BLOCK: tl.constexpr
):
    """out = (h + factor * y where kept) * scale, for `count` elements."""
    lane = tl.arange(0, BLOCK)
    draws = tl.randint4x(seed, tl.program_id(0) * BLOCK + lane)
    first = tl.program_id(0).to(tl.int64) * (4 * BLOCK) + lane
    for quarter in tl.static_range(4):
        index = first + quarter * BLOCK
        is_inside = index < count
        change = tl.load(y + index, mask=is_inside, other=0.0).to(tl.float32) * factor
        if DROPS:
            change = tl.where(_is_kept(draws[quarter], rate), change, 0.0)
        total = (tl.load(h + index, mask=is_inside, other=0.0).to(tl.float32) + change) * scale
        tl.store(out + index, total.to(out.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize=["seed"])
def _gradient_kernel(
    first, second, third, of_h, of_y, count, rate, factor, scale, seed,
    GRADIENTS: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """of_h = gradient * scale; of_y = gradient * scale * factor where kept, else zero.

    The gradient is the sum of the first GRADIENTS tensors, of three at most.
    """
    lane = tl.arange(0, BLOCK)
    draws = tl.randint4x(seed, tl.program_id(0) * BLOCK + lane)
    begin = tl.program_id(0).to(tl.int64) * (4 * BLOCK) + lane
    for quarter in tl.static_range(4):
        index = begin + quarter * BLOCK
        is_inside = index < count
        gradient = tl.load(first + index, mask=is_inside, other=0.0).to(tl.float32)
        if GRADIENTS > 1:
            gradient += tl.load(second + index, mask=is_inside, other=0.0).to(tl.float32)
        if GRADIENTS > 2:
            gradient += tl.load(third + index, mask=is_inside, other=0.0).to(tl.float32)
        of_sum = gradient * scale
        tl.store(of_h + index, of_sum.to(of_h.dtype.element_ty), mask=is_inside)
        if DROPS:
            of_change = tl.where(_is_kept(draws[quarter], rate), of_sum * factor, 0.0)
            tl.store(of_y + index, of_change.to(of_y.dtype.element_ty), mask=is_inside)


class TritonResidual(torch.autograd.Function):
    """(h + dropout(y)) * scale for h and y of one shape and dtype; see `residual_dropout`.

    With `branches` (2 or 3) it returns as many tensors that share their memory, one per reader; the
    backward pass adds their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, y: Tensor, rate: float, scale: float, branches: int = 1
    ) -> Tensor | tuple[Tensor, ...]:
        h, y = h.contiguous(), y.contiguous()
        ctx.rate, ctx.scale, ctx.seed = rate, scale, 0
        if rate:
            # More than 32 bits: for smaller arguments Triton would compile the kernels again.
            ctx.seed = int(torch.empty((), dtype=torch.int64).random_(2**32, 2**63 - 1))
        out = torch.empty_like(h)
        if out.numel():
            _launch(_add_kernel, (h, y, out), ctx)
        return out if branches == 1 else tuple(out.view_as(out) for _ in range(branches))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        first = gradients[0]
        # A plain sum passes on its gradient unchanged: no kernel, no copy.
        if not ctx.rate and ctx.scale == 1.0 and len(gradients) == 1:
            return first, first, None, None, None
        inputs = [gradient.contiguous() for gradient in gradients]
        of_h = torch.empty_like(inputs[0])
        # Without dropout both gradients are equal and share their memory.
        of_y = torch.empty_like(of_h) if ctx.rate else of_h
        if of_h.numel():
            pointers = *inputs, *inputs[:1] * (3 - len(inputs))
            _launch(_gradient_kernel, (*pointers, of_h, of_y), ctx, len(inputs))
        return of_h, of_y, None, None, None


def _launch(kernel: Any, tensors: tuple[Tensor, ...], ctx: Any, *constants: int) -> None:
    count = tensors[0].numel()
    programs = (triton.cdiv(count, 4 * BLOCK),)
    factor = 1.0 / (1.0 - ctx.rate)
    with torch.cuda.device_of(tensors[0]):
        kernel[programs](
            *tensors, count, ctx.rate, factor, ctx.scale, ctx.seed,
            *constants, ctx.rate > 0.0, BLOCK, **OPTIONS,
        )  # fmt: skip
