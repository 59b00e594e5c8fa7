"""The depthwise convolution of grids that never sees the future: plain form, steps, and choice.

A weight has the printed shape [k_y, k_x, D]; of it only the live taps are read (Eq. 3.2): the
first floor(k_y/2) + 1 rows, and, where the source direction is causal too, the first
floor(k_x/2) + 1 columns. Row i looks floor(k_y/2) - i rows up, column j looks
j - floor(k_x/2) cells to the right.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor

from nmtgrid.layers.kernels.grid_conv_cpu import CpuGridConvolution
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.kernels.triton_support import has_triton


def live_taps(weight: Tensor, *, source_causal: bool = False) -> Tensor:
    """Return the view [floor(k_y/2)+1, k_x or floor(k_x/2)+1, D] that is ever read, Eq. (3.2).

    Departs: the print zeroes the current row for odd k_y; it stays live.
    Raises: ValueError for an even kernel size.
    """
    rows, columns = weight.shape[0], weight.shape[1]
    if rows % 2 == 0 or columns % 2 == 0:
        raise ValueError(f"kernel sizes must be odd, but are {rows}x{columns}")
    return weight[: rows // 2 + 1, : columns // 2 + 1 if source_causal else columns]


def plain_grid_convolution(
    x: Tensor, weight: Tensor, layout: GridLayout, *, source_causal: bool = False
) -> Tensor:
    """Convolve flat grids x [M, D] with weight [k_y, k_x, D]: the plain twin, Eq. (3.2)."""
    taps = live_taps(weight, source_causal=source_causal).to(x.dtype)
    above, left = taps.shape[0] - 1, weight.shape[1] // 2
    right = 0 if source_causal else left
    grid = F.pad(layout.pad(x), (0, 0, left, right, above, 0)).permute(0, 3, 1, 2)
    with torch.autocast(x.device.type, enabled=False):
        result = F.conv2d(grid, taps.permute(2, 0, 1).unsqueeze(1), groups=x.shape[1])
    return layout.pack(result.permute(0, 2, 3, 1))


def grid_convolution(
    x: Tensor, weight: Tensor, layout: GridLayout, *, source_causal: bool = False
) -> Tensor:
    """Convolve flat grids x [M, D] with weight [k_y, k_x, D], returning [M, D] in x's dtype.

    Padding reads as zero. The weight may be float32 beside a bfloat16 x; its gradient comes in
    its own dtype, zero on dead taps. Eq. (3.2). Raises: ValueError for an even kernel size.
    """
    form = _form(x)
    if form is None:
        return plain_grid_convolution(x, weight, layout, source_causal=source_causal)
    taps, left = live_taps(weight, source_causal=source_causal), weight.shape[1] // 2
    right = 0 if source_causal else left
    result: Tensor = form.apply(x, taps, layout, left, right)
    return result


def _form(x: Tensor) -> type[torch.autograd.Function] | None:
    """Return the fastest form for the device and dtype of x, or None for the plain one."""
    if x.device.type == "cpu":
        return CpuGridConvolution
    if x.device.type == "cuda" and x.dtype != torch.float64 and has_triton():
        # Imported here: builds of torch for a CPU alone come without Triton.
        from nmtgrid.layers.kernels.grid_conv_triton import TritonGridConvolution

        return TritonGridConvolution
    return None


def prepare_step_weight(
    weight: Tensor, dtype: torch.dtype, *, source_causal: bool = False
) -> Tensor:
    """Return the live taps of weight [k_y, k_x, D] as [D, 1, rows, columns], for many steps."""
    taps = live_taps(weight, source_causal=source_causal).detach()
    return taps.permute(2, 0, 1).unsqueeze(1).to(dtype).contiguous()


def grid_convolution_step(
    window: Tensor, prepared: Tensor, *, source_causal: bool = False
) -> Tensor:
    """Return the newest row [R, S, D] of the convolution of a window [R, rows, S, D].

    window: the last floor(k_y/2) + 1 rows, older first, zero above the top and on padding;
    prepared: what `prepare_step_weight` returned, in the window's dtype.
    """
    columns, source_size = prepared.shape[3], window.shape[2]
    left = columns - 1 if source_causal else columns // 2
    grid = window.permute(0, 3, 1, 2)
    with _without_autocast(window.device.type):
        result = F.conv2d(grid, prepared, padding=(0, left), groups=window.shape[3])
    return result[:, :, 0, :source_size].transpose(1, 2)


def _without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Keep the dtype as it comes; nothing to do, and nothing to pay, where autocast is off."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()
