# Triton's language has no starred tuples and no annotations but constexpr.
# ruff: noqa: RUF005
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"
"""The grid convolution on a GPU, in Triton, on flat cells: padding is neither read nor written.

Imported only where Triton is installed; benchmarks/kernels.py times it and sweeps its tiles.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.kernels.triton_options import OPTIONS

PARTS = 2
"""Number of strips per program of the convolution: each tap is loaded once for all of them."""
TILE: dict[str, int] = {"BLOCK_S": 8, "BLOCK_D": 64, "num_warps": 4}
"""Source positions of a strip, features, and warps; `benchmarks/kernels.py` sweeps them."""
STEP_TILE: dict[str, int] = {"BLOCK_S": 8, "BLOCK_D": 64, "num_warps": 4}
"""The same for a decoding step, which has few cells for many programs."""
SENTENCES = 4
"""Number of grids that one program of the weight gradient sums over."""


# One program walks down neighbouring strips of one grid. It reads each input row once for each
# column of the kernel and adds it, weighted, to all output rows that it reaches, whose sums rotate
# through registers. The input gradient is the same walk upwards. Loads of taps bound the speed of
# one strip: a thread has four features of a position, so 16 bytes serve 4 multiplications. With
# two strips they serve 8 in about 200 registers. With three they would serve 12, and an update
# would be 4 % faster on paper (benchmarks/gpu_code.py), but they take 252 of 255 registers with
# Triton 3.6 and 3.7 and spill with 3.8 and 3.9. Short strips waste less at the ends of sentences.
@triton.jit
def _convolve_kernel(
    x, taps, y, offsets, heights, widths,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEFT: tl.constexpr,
    REVERSED: tl.constexpr, PARTS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """x, y [M, D]; taps [ROWS, COLUMNS, D] float32, the last row being the current one."""
    sentence = tl.program_id(0)
    first = tl.program_id(1) * (PARTS * BLOCK_S)
    s = first + tl.arange(0, BLOCK_S)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    is_feature = d < D
    height = tl.load(heights + sentence).to(tl.int32)
    width = tl.load(widths + sentence).to(tl.int32)
    start = tl.load(offsets + sentence).to(tl.int64)
    zero = tl.zeros((BLOCK_S, BLOCK_D), tl.float32)
    # sums[ahead * PARTS + part] is that of the output row `ahead` rows beyond the input row.
    sums = (zero,) * (ROWS * PARTS)
    if first < width:
        for step in range(height):
            t = height - 1 - step if REVERSED else step
            row = (start + t * width) * D
            for column in tl.static_range(COLUMNS):
                values = ()
                for part in tl.static_range(PARTS):
                    shift = LEFT - column if REVERSED else column - LEFT
                    source = s + (part * BLOCK_S + shift)
                    is_read = ((source >= 0) & (source < width))[:, None] & is_feature[None, :]
                    index = row + source[:, None] * D + d[None, :]
                    value = tl.load(x + index, mask=is_read, other=0.0).to(tl.float32)
                    values = values + (value,)
                grown = ()
                for ahead in tl.static_range(ROWS):
                    tap_row = taps + ((ROWS - 1 - ahead) * COLUMNS + column) * D
                    tap = tl.load(tap_row + d, mask=is_feature, other=0.0)
                    for part in tl.static_range(PARTS):
                        total = sums[ahead * PARTS + part] + values[part] * tap[None, :]
                        grown = grown + (total,)
                sums = grown
            for part in tl.static_range(PARTS):
                target = s + part * BLOCK_S
                is_written = (target < width)[:, None] & is_feature[None, :]
                index = row + target[:, None] * D + d[None, :]
                tl.store(y + index, sums[part].to(y.dtype.element_ty), mask=is_written)
            sums = sums[PARTS:] + (zero,) * PARTS


# Each program sums over a few grids and writes its own sums, which torch then adds: atomic adds
# would happen in any order, and runs would differ.
@triton.jit
def _weight_gradient_kernel(
    x, gradient, of_taps, offsets, heights, widths, batch,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEFT: tl.constexpr,
    SENTENCES: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """of_taps [groups, ROWS, COLUMNS, D] float32: one column of the taps for each program."""
    column = tl.program_id(0)
    group = tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    is_feature = d < D
    zero = tl.zeros((BLOCK_S, BLOCK_D), tl.float32)
    sums = (zero,) * ROWS
    for member in range(SENTENCES):
        sentence = group * SENTENCES + member
        if sentence < batch:
            height = tl.load(heights + sentence).to(tl.int32)
            width = tl.load(widths + sentence).to(tl.int32)
            start = tl.load(offsets + sentence).to(tl.int64)
            for first in range(0, width, BLOCK_S):
                s = first + tl.arange(0, BLOCK_S)
                source = s + column - LEFT
                is_cell = (s < width)[:, None] & is_feature[None, :]
                is_read = is_cell & ((source >= 0) & (source < width))[:, None]
                seen = (zero,) * ROWS
                for t in range(height):
                    row = (start + t * width) * D
                    index = row + source[:, None] * D + d[None, :]
                    value = tl.load(x + index, mask=is_read, other=0.0).to(tl.float32)
                    index = row + s[:, None] * D + d[None, :]
                    error = tl.load(gradient + index, mask=is_cell, other=0.0).to(tl.float32)
                    # seen[back] is the input `back` rows above the current row.
                    seen = (value,) + seen[: ROWS - 1]
                    grown = ()
                    for back in tl.static_range(ROWS):
                        grown = grown + (sums[back] + error * seen[back],)
                    sums = grown
    for back in tl.static_range(ROWS):
        tap_row = ((group * ROWS + ROWS - 1 - back) * COLUMNS + column) * D
        tl.store(of_taps + tap_row + d, tl.sum(sums[back], 0), mask=is_feature)


# A step has one output row: no sums rotate. The rows of a ring are in any order, so each looks up
# its taps; library kernels would need the rows, or the taps, to be moved.
@triton.jit(do_not_specialize=["width"])
def _step_kernel(
    window, taps, order, y, width, row_stride, slot_stride, cell_stride,
    feature_step, tap_row_step, tap_step,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEFT: tl.constexpr,
    IS_RING: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """window [R, ROWS, S, D]; y [R, S, D]; order [ROWS]: the tap row of each row of a ring."""
    s = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    is_feature = d < D
    start = tl.program_id(0).to(tl.int64) * row_stride
    total = tl.zeros((BLOCK_S, BLOCK_D), tl.float32)
    for slot in range(ROWS):
        tap_row = slot
        if IS_RING:
            tap_row = tl.load(order + slot).to(tl.int32)
        for column in tl.static_range(COLUMNS):
            source = s + (column - LEFT)
            is_read = ((source >= 0) & (source < width))[:, None] & is_feature[None, :]
            index = start + slot * slot_stride + source[:, None] * cell_stride + d[None, :]
            value = tl.load(window + index, mask=is_read, other=0.0).to(tl.float32)
            tap_index = d * feature_step + (tap_row * tap_row_step + column * tap_step)
            tap = tl.load(taps + tap_index, mask=is_feature, other=0.0).to(tl.float32)
            total += value * tap[None, :]
    index = (tl.program_id(0).to(tl.int64) * width + s[:, None]) * D + d[None, :]
    is_written = (s < width)[:, None] & is_feature[None, :]
    tl.store(y + index, total.to(y.dtype.element_ty), mask=is_written)


def convolve_step(window: Tensor, taps: Tensor, order: Tensor | None, left: int) -> Tensor:
    """Return the newest row [R, S, D]; see `grid_convolution_step`. taps [D, 1, rows, columns]."""
    if window.stride(3) != 1:
        window = window.contiguous()
    count, rows, width, size = window.shape
    y = window.new_empty(count, width, size)
    programs = (
        count, triton.cdiv(width, STEP_TILE["BLOCK_S"]), triton.cdiv(size, STEP_TILE["BLOCK_D"])
    )  # fmt: skip
    if y.numel():
        with torch.cuda.device_of(window):
            _step_kernel[programs](
                window, taps, order, y, width, *window.stride()[:3],
                taps.stride(0), taps.stride(2), taps.stride(3),
                size, rows, taps.shape[3], left, order is not None, **STEP_TILE, **OPTIONS,
            )  # fmt: skip
    return y


def convolve_cells(
    x: Tensor,
    taps: Tensor,
    layout: GridLayout,
    left: int,
    *,
    reverse: bool = False,
    tile: dict[str, int] | None = None,
) -> Tensor:
    """Convolve x [M, D] with taps [rows, columns, D], or, with `reverse`, its transpose."""
    x, taps, tile = x.contiguous(), taps.float().contiguous(), tile or TILE
    rows, columns, size = taps.shape
    strips = triton.cdiv(layout.source_size, PARTS * tile["BLOCK_S"])
    programs = (layout.batch_size, strips, triton.cdiv(size, tile["BLOCK_D"]))
    y = torch.empty_like(x)
    grids = (layout.offsets, layout.target_lengths, layout.source_lengths)
    with torch.cuda.device_of(x):
        _convolve_kernel[programs](
            x, taps, y, *grids, size, rows, columns, left, reverse, PARTS, **tile, **OPTIONS
        )
    return y


def weight_gradient(
    x: Tensor,
    gradient: Tensor,
    layout: GridLayout,
    shape: tuple[int, int],
    left: int,
    *,
    tile: dict[str, int] | None = None,
) -> Tensor:
    """Return the float32 gradient [rows, columns, D] of the taps, shape = (rows, columns)."""
    x, gradient, tile = x.contiguous(), gradient.contiguous(), tile or TILE
    (rows, columns), size = shape, x.shape[1]
    groups = triton.cdiv(layout.batch_size, SENTENCES)
    of_taps = torch.empty(groups, rows, columns, size, dtype=torch.float32, device=x.device)
    grids = (layout.offsets, layout.target_lengths, layout.source_lengths, layout.batch_size)
    programs = (columns, groups, triton.cdiv(size, tile["BLOCK_D"]))
    with torch.cuda.device_of(x):
        _weight_gradient_kernel[programs](
            x, gradient, of_taps, *grids, size, rows, columns, left, SENTENCES, **tile, **OPTIONS
        )
    return of_taps.sum(0)


class TritonGridConvolution(torch.autograd.Function):
    """Convolve x [M, D] with live taps [rows, columns, D], as `CpuGridConvolution` does."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, taps: Tensor, layout: GridLayout, left: int, right: int
    ) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.layout, ctx.left = layout, left
        return convolve_cells(x, taps, layout, left)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, taps = ctx.saved_tensors
        of_x = of_taps = None
        gradient = gradient.to(x.dtype)
        if ctx.needs_input_grad[0]:
            of_x = convolve_cells(gradient, taps, ctx.layout, ctx.left, reverse=True)
        if ctx.needs_input_grad[1]:
            shape = (taps.shape[0], taps.shape[1])
            of_taps = weight_gradient(x, gradient, ctx.layout, shape, ctx.left).to(taps.dtype)
        return of_x, of_taps, None, None, None
