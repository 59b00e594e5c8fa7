"""The full (not depthwise) convolution of grids that never sees the future.

A weight has the printed shape [D', D, k, k]; of it only the first floor(k/2) + 1 rows are read:
row i looks floor(k/2) - i rows up, column j looks j - floor(k/2) cells to the right.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nmtgrid.layers.kernels.layout import GridLayout


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
    return plain_dense_grid_convolution(x, weight, layout)


def prepare_dense_step_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the live taps of weight [D', D, k, k] in `dtype`, for many steps."""
    return live_dense_taps(weight).detach().to(dtype).contiguous(memory_format=torch.channels_last)


def dense_grid_convolution_step(window: Tensor, prepared: Tensor) -> Tensor:
    """Return the newest row [R, S, D'] of the convolution of a window [R, rows, S, D].

    window: the last floor(k/2) + 1 rows, older first, zero above the top and on padding;
    prepared: what `prepare_dense_step_weight` returned, in the window's dtype.
    """
    grid = window.permute(0, 3, 1, 2)
    with torch.autocast(window.device.type, enabled=False):
        result = F.conv2d(grid, prepared, padding=(0, prepared.shape[3] // 2))
    return result[:, :, 0].transpose(1, 2)
