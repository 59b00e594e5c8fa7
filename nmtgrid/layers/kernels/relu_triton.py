# Triton's language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The backward pass of a rectifier and of the bias before it on a GPU, in Triton: one pass.

Imported only where Triton is installed; `linear_relu` (linear.py) uses it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmtgrid.layers.kernels.triton_options import OPTIONS

TILE: dict[str, int] = {"BLOCK_M": 32, "BLOCK_N": 128, "num_warps": 4}
"""Rows at a time, features, and warps."""
STEPS = 16
"""Number of blocks of rows per program."""


# As in grid_conv_triton.py, each program writes its own sums: atomic adds happen in any order.
@triton.jit(do_not_specialize=["count"])
def _rectifier_kernel(
    gradient, rectified, of_input, sums, count,
    N: tl.constexpr, STEPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """of_input = gradient where rectified > 0, else 0, [count, N]; sums [groups, N] of its rows."""
    first = tl.program_id(0).to(tl.int64) * (STEPS * BLOCK_M) + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_feature = n < N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(STEPS):
        m = first + step * BLOCK_M
        is_inside = (m < count)[:, None] & is_feature[None, :]
        index = m[:, None] * N + n[None, :]
        is_open = tl.load(rectified + index, mask=is_inside, other=0.0).to(tl.float32) > 0.0
        value = tl.load(gradient + index, mask=is_inside, other=0.0)
        value = tl.where(is_open, value, tl.zeros_like(value))
        tl.store(of_input + index, value, mask=is_inside)
        total += value.to(tl.float32)
    tl.store(sums + tl.program_id(0) * N + n, tl.sum(total, 0), mask=is_feature)


@triton.jit(do_not_specialize=["groups"])
def _sum_kernel(sums, out, groups, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """out [N] = the sum of sums [groups, N]."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, groups, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        is_inside = (m < groups)[:, None] & (n < N)[None, :]
        total += tl.load(sums + m[:, None] * N + n[None, :], mask=is_inside, other=0.0)
    tl.store(out + n, tl.sum(total, 0).to(out.dtype.element_ty), mask=n < N)


def rectifier_backward(gradient: Tensor, rectified: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of relu's input [M, N] and of the bias [N], for relu's output.

    Sums are in float32; both results have the type of `gradient`.
    """
    gradient, rectified = gradient.contiguous(), rectified.contiguous()
    of_input = torch.empty_like(gradient)
    count, size = gradient.shape
    groups = triton.cdiv(count, STEPS * TILE["BLOCK_M"])
    columns = triton.cdiv(size, TILE["BLOCK_N"])
    sums = torch.empty(groups, size, dtype=torch.float32, device=gradient.device)
    of_bias = gradient.new_empty(size)
    with torch.cuda.device_of(gradient):
        if groups:
            _rectifier_kernel[(groups, columns)](
                gradient, rectified, of_input, sums, count, size, STEPS, **TILE, **OPTIONS
            )
        _sum_kernel[(columns,)](sums, of_bias, groups, size, **TILE, **OPTIONS)
    return of_input, of_bias
