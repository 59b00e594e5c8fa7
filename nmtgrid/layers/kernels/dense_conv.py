"""The full (not depthwise) convolution of grids that never sees the future.

A weight has the printed shape [D', D, k, k]; of it only the first floor(k/2) + 1 rows are read:
row i looks floor(k/2) - i rows up, column j looks j - floor(k/2) cells to the right. Flat cells
are written into a channels-last grid with empty rows above (below, for gradients), which also
clears the padding; the library's convolution reads it. Products of shifted views took 1.2 to 2.5
times as long on a CPU, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.layout import GridLayout, gather_cells, scatter_cells


def live_dense_taps(weight: Tensor) -> Tensor:
    """Return the view [D', D, floor(k/2)+1, k] that is ever read.

    Raises: ValueError for an even kernel size.
    """
    rows, columns = weight.shape[2], weight.shape[3]
    if rows % 2 == 0 or columns % 2 == 0:
        raise ValueError(f"kernel sizes must be odd, but are {rows}x{columns}")
    return weight[:, :, : rows // 2 + 1]


def plain_dense_grid_convolution(x: Tensor, weight: Tensor, layout: GridLayout) -> Tensor:
    """Convolve flat grids x [M, D] with weight [D', D, k, k]: the plain twin."""
    taps = live_dense_taps(weight).to(x.dtype)
    side = taps.shape[3] // 2
    grid = F.pad(layout.pad(x), (0, 0, side, side, taps.shape[2] - 1, 0)).permute(0, 3, 1, 2)
    with torch.autocast(x.device.type, enabled=False):
        result = F.conv2d(grid, taps)
    return layout.pack(result.permute(0, 2, 3, 1))


def dense_grid_convolution(x: Tensor, weight: Tensor, layout: GridLayout) -> Tensor:
    """Convolve flat grids x [M, D] with weight [D', D, k, k], returning [M, D'] in x's dtype.

    Padding reads as zero. The weight may be float32 beside a bfloat16 x; its gradient comes in
    its own dtype, zero on dead taps. Raises: ValueError for an even kernel size.
    """
    taps = live_dense_taps(weight).to(x.dtype)
    result: Tensor = _Convolution.apply(x, taps, layout)  # type: ignore[no-untyped-call]
    return result


def prepare_dense_step_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the live taps of weight [D', D, k, k] in `dtype`, for many steps."""
    return _channels_last(live_dense_taps(weight).detach().to(dtype))


def dense_grid_convolution_step(
    window: Tensor, prepared: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return the newest row [R, S, D'] of the convolution of a window [R, rows, S, D].

    window: the last floor(k/2) + 1 rows, older first, zero above the top and on padding;
    prepared: what `prepare_dense_step_weight` returned, in the window's dtype.
    """
    with torch.autocast(window.device.type, enabled=False):
        return _convolve(window, prepared, bias)[:, 0]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, layout: GridLayout) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.layout = layout
        with torch.autocast(x.device.type, enabled=False):
            grid = _spread(x, layout, above=taps.shape[2] - 1)
            return gather_cells(_convolve(grid, taps), layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, taps = ctx.saved_tensors
        above, layout = taps.shape[2] - 1, ctx.layout
        gradient = gradient.to(x.dtype)
        below = _spread(gradient, layout, below=above)
        of_x = of_taps = None
        with torch.autocast(x.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                reversed_taps = taps.flip(2, 3).transpose(0, 1)
                of_x = gather_cells(_convolve(below, reversed_taps), layout)
            if ctx.needs_input_grad[1]:
                grid = _spread(x, layout, above=above)
                of_taps = _weight_gradient(grid, below[:, : layout.target_size], taps)
        return of_x, of_taps, None


def _spread(x: Tensor, layout: GridLayout, *, above: int = 0, below: int = 0) -> Tensor:
    """Write flat cells into grids with empty rows above and below."""
    return scatter_cells(x, layout, margins=(above, below, 0, 0))


def _convolve(grid: Tensor, taps: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve grids [B, T + rows - 1, S, D] with taps [D', D, rows, k]; return [B, T, S, D']."""
    side = taps.shape[3] // 2
    result = F.conv2d(grid.permute(0, 3, 1, 2), _channels_last(taps), bias, padding=(0, side))
    return result.permute(0, 2, 3, 1)


def _weight_gradient(grid: Tensor, gradient: Tensor, taps: Tensor) -> Tensor:
    """Return the gradient of the taps, for inputs and output gradients as grids."""
    found: Tensor = torch.ops.aten.convolution_backward(
        gradient.permute(0, 3, 1, 2),
        grid.permute(0, 3, 1, 2),
        _channels_last(taps),
        None,
        [1, 1],
        [0, taps.shape[3] // 2],
        [1, 1],
        False,
        [0, 0],
        1,
        [False, True, False],
    )[1]
    return found


def _channels_last(taps: Tensor) -> Tensor:
    return taps.contiguous(memory_format=torch.channels_last)
