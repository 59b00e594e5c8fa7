"""The grid convolution on a CPU: oneDNN's depthwise kernel on channels-last grids.

Only live taps enter. Flat cells are written once into a grid with empty rows above (below, for
gradients), which also clears the padding. The input gradient is the same convolution with the
taps reversed. The weight gradient is a convolution too, of the grids with their gradients as the
kernel: grids stacked into one tall image, whose empty rows keep sentences apart, give all taps in
one pass. That is 2 to 4 times faster than the library's own weight gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.layout import GridLayout, gather_cells, scatter_cells

PIECE_CELLS = 2048
"""Cells of the tall image at a time, so that a piece stays in the cache of a core."""


class CpuGridConvolution(torch.autograd.Function):
    """Convolve x [M, D] with live taps [rows, columns, D], the last row being the current one.

    left, right: how many columns the taps reach to each side, columns = left + 1 + right.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, taps: Tensor, layout: GridLayout, left: int, right: int
    ) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.layout, ctx.reach = layout, (left, right)
        with torch.autocast("cpu", enabled=False):
            grid = _spread(x, layout, above=taps.shape[0] - 1, left=left, right=right)
            return gather_cells(_convolve(grid, taps.to(x.dtype), left, right), layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, taps = ctx.saved_tensors
        layout, (left, right) = ctx.layout, ctx.reach
        above, gradient = taps.shape[0] - 1, gradient.to(x.dtype)
        of_x = of_taps = None
        with torch.autocast("cpu", enabled=False):
            below = _spread(gradient, layout, below=above, left=right, right=left)
            if ctx.needs_input_grad[0]:
                reversed_taps = taps.to(x.dtype).flip(0, 1)
                of_x = gather_cells(_convolve(below, reversed_taps, right, left), layout)
            if ctx.needs_input_grad[1]:
                grid = _spread(x, layout, above=above, left=left, right=right)
                below = below[:, :, : layout.source_size]
                of_taps = _weight_gradient(grid, below, taps, left, right).to(taps.dtype)
        return of_x, of_taps, None, None, None


def _spread(
    x: Tensor, layout: GridLayout, *, above: int = 0, below: int = 0, left: int = 0, right: int = 0
) -> Tensor:
    """Write flat cells into grids with empty margins.

    Columns are added only where the sides differ: the library pads equal sides by itself.
    """
    if left == right:
        left = right = 0
    return scatter_cells(x, layout, margins=(above, below, left, right))


def _convolve(grid: Tensor, taps: Tensor, left: int, right: int) -> Tensor:
    """Convolve grids [B, rows, columns, D] of `_spread` with taps; return [B, T, S, D]."""
    kernel = taps.permute(2, 0, 1).unsqueeze(1).contiguous()
    padding = (0, left if left == right else 0)
    image = grid.permute(0, 3, 1, 2)
    return F.conv2d(image, kernel, padding=padding, groups=grid.shape[3]).permute(0, 2, 3, 1)


def _weight_gradient(grid: Tensor, below: Tensor, taps: Tensor, left: int, right: int) -> Tensor:
    """Return the gradient of the taps [rows, columns, D], summed in float32 at least.

    grid: inputs with rows - 1 empty rows above; below: output gradients with as many below.
    """
    side = left if left == right else 0
    has_kernel = grid.dtype in (torch.float32, torch.bfloat16)
    if not (has_kernel and torch.backends.mkldnn.is_available()):
        return _library_weight_gradient(grid, below, taps, side)
    batch, height, _, width = grid.shape
    gap = taps.shape[0] - 1
    found = taps.new_zeros(taps.shape, dtype=torch.float32)
    step = max(1, PIECE_CELLS // (height * grid.shape[2]))
    for start in range(0, batch, step):
        image = grid[start : start + step].flatten(0, 1).permute(2, 0, 1).unsqueeze(0)
        kernel = below[start : start + step].flatten(0, 1)
        kernel = kernel[: len(kernel) - gap].permute(2, 0, 1).unsqueeze(1)
        # [1, D, rows, columns]: each output place of the tall image is one tap.
        found += F.conv2d(image, kernel, padding=(0, side), groups=width)[0].permute(1, 2, 0)
    return found


def _library_weight_gradient(grid: Tensor, below: Tensor, taps: Tensor, side: int) -> Tensor:
    wide = torch.promote_types(grid.dtype, torch.float32)
    gap, width = taps.shape[0] - 1, grid.shape[3]
    gradient = below[:, : below.shape[1] - gap].permute(0, 3, 1, 2).to(wide)
    image = grid.permute(0, 3, 1, 2).to(wide)
    kernel = taps.permute(2, 0, 1).unsqueeze(1).to(wide)
    found: Tensor = torch.ops.aten.convolution_backward(
        gradient,
        image,
        kernel,
        None,
        [1, 1],
        [0, side],
        [1, 1],
        False,
        [0, 0],
        width,
        [False, True, False],
    )[1]
    return found.squeeze(1).permute(1, 2, 0)
