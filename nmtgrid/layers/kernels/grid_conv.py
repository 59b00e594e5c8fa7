"""The causal depthwise convolution of grids, Eq. (3.2): on a CPU, in steps, and the plain form.

A weight has the printed shape [k_y, k_x, D]; only its live taps are read (Eq. 3.2): the first
floor(k_y/2) + 1 rows, and, if the source direction is causal too, the first floor(k_x/2) + 1
columns. Row i reads floor(k_y/2) - i rows up, column j reads j - floor(k_x/2) cells to the right.
benchmarks/kernels.py compares it with the naive form and with torch's own; grid_conv_triton.py is
the form for GPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_weight

from nmtgrid.layers.kernels.layout import GridLayout, Run, collect_cells, scatter_cells
from nmtgrid.layers.kernels.linear import apply
from nmtgrid.layers.kernels.triton_support import uses_triton

PIECE_CELLS = 2048
"""Number of cells of the tall image processed at a time, so that they stay in a core's cache."""


CALL_ELEMENTS = 2**16
"""Number of elements that a convolution computes in the time of one more call."""


class CpuGridConvolution(torch.autograd.Function):
    """Convolve x [M, D] with live taps [rows, columns, D], the last row being the current one.

    left, right: number of columns that the taps reach to each side, columns = left + 1 + right.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, taps: Tensor, layout: GridLayout, left: int, right: int
    ) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.layout, ctx.reach = layout, (left, right)
        result: Tensor | None = None
        with torch.autocast("cpu", enabled=False):
            for group in _groups(layout, x.shape[1]):
                grid = _spread(x, layout, group, above=taps.shape[0] - 1, left=left, right=right)
                grid = _convolve(grid, taps.to(x.dtype), left, right)
                result = _collect(grid, layout, group, result)
        assert result is not None
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, taps = ctx.saved_tensors
        layout, (left, right) = ctx.layout, ctx.reach
        above, gradient = taps.shape[0] - 1, gradient.to(x.dtype)
        # The transpose of a causal convolution reads downwards and to the other side.
        reversed_taps = taps.to(x.dtype).flip(0, 1)
        of_x: Tensor | None = None
        wide = torch.promote_types(x.dtype, torch.float32)
        of_taps = torch.zeros(taps.shape, dtype=wide)
        with torch.autocast("cpu", enabled=False):
            for group in _groups(layout, x.shape[1]):
                below = _spread(gradient, layout, group, below=above, left=right, right=left)
                if ctx.needs_input_grad[0]:
                    of_grid = _convolve(below, reversed_taps, right, left)
                    of_x = _collect(of_grid, layout, group, of_x)
                # Padded again here: a saved grid would double the memory of ragged batches.
                if ctx.needs_input_grad[1]:
                    grid = _spread(x, layout, group, above=above, left=left, right=right)
                    columns = max(run.columns for run in group)
                    of_taps += _weight_gradient(grid, below[:, :, :columns], taps, left, right)
        needs = ctx.needs_input_grad
        return (
            of_x, of_taps.to(taps.dtype) if needs[1] else None,
            None, None, None,
        )  # fmt: skip


def _groups(layout: GridLayout, size: int) -> Sequence[Sequence[Run]]:
    """Return groups of sentences whose grids, with `size` features, are convolved together.

    Their shapes are similar.
    """
    groups: list[list[Run]] = []
    count = height = width = 0
    for run in sorted(layout.runs, key=lambda run: (run.rows, run.columns)):
        tall, wide = max(height, run.rows), max(width, run.columns)
        # The padding that sharing a rectangle adds.
        padding = (count + run.sentences) * tall * wide
        padding -= count * height * width + run.sentences * run.rows * run.columns
        if groups and padding * size <= CALL_ELEMENTS:
            groups[-1].append(run)
            count, height, width = count + run.sentences, tall, wide
        else:
            groups.append([run])
            count, height, width = run.sentences, run.rows, run.columns
    # A single group keeps its order in memory.
    return groups if len(groups) > 1 else [layout.runs]


def _spread(
    x: Tensor, layout: GridLayout, group: Sequence[Run], *, above: int = 0, below: int = 0,
    left: int = 0, right: int = 0,
) -> Tensor:  # fmt: skip
    """Return grids of the flat cells of some sentences, with empty margins.

    Columns are added only if the sides differ: torch pads equal sides by itself.
    """
    # Padding inside the convolution saves a copy of the grid that is wider than the input.
    if left == right:
        left = right = 0
    return scatter_cells(x, layout, (above, below, left, right), group)


def _collect(
    grid: Tensor, layout: GridLayout, group: Sequence[Run], result: Tensor | None
) -> Tensor:
    """Write the valid cells of grids [B', T', S', D] of some sentences into flat cells [M, D].

    Returns the flat cells, allocated for the first group; if all cells are valid, the grids.
    """
    if layout.is_full:
        return grid.reshape(layout.cell_count, grid.shape[3])
    if result is None:
        result = grid.new_empty(layout.cell_count, grid.shape[3])
    collect_cells(grid, group, result)
    return result


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
        wide = torch.promote_types(grid.dtype, torch.float32)
        image, shape = grid.permute(0, 3, 1, 2).to(wide), (grid.shape[3], 1, *taps.shape[:2])
        errors = below[:, : below.shape[1] - taps.shape[0] + 1].permute(0, 3, 1, 2).to(wide)
        of_kernel: Tensor = conv2d_weight(
            image, shape, errors, padding=(0, side), groups=grid.shape[3]
        )
        return of_kernel.squeeze(1).permute(1, 2, 0)
    # torch's own gradient of depthwise weights is slow on a CPU. Here it is a convolution too: the
    # sentences are stacked into one tall image, the output gradient is the filter, and the empty
    # rows between sentences keep them apart.
    batch, height, _, width = grid.shape
    gap = taps.shape[0] - 1
    of_taps = taps.new_zeros(taps.shape, dtype=torch.float32)
    step = max(1, PIECE_CELLS // (height * grid.shape[2]))
    for start in range(0, batch, step):
        # Batched before it is permuted: otherwise torch would not see that channels are last.
        image = grid[start : start + step].flatten(0, 1).unsqueeze(0).permute(0, 3, 1, 2)
        kernel = below[start : start + step].flatten(0, 1)
        kernel = kernel[: len(kernel) - gap]
        # torch transposes matrices faster than tensors.
        shape = (width, 1, *kernel.shape[:2])
        kernel = kernel.flatten(0, 1).t().contiguous().view(shape)
        # [1, D, rows, columns]: each output position of the tall image is one tap.
        of_taps += F.conv2d(image, kernel, padding=(0, side), groups=width)[0].permute(1, 2, 0)
    return of_taps


def live_taps(weight: Tensor, *, source_causal: bool = False) -> Tensor:
    """Return the live taps: the view [floor(k_y/2)+1, k_x or floor(k_x/2)+1, D], Eq. (3.2).

    Departs: The mask of Eq. (3.2) as printed also removes the current row for odd k_y. Here the
    current row is kept, since it holds the source and the previous target word.
    Raises: ValueError for an even kernel size.
    """
    rows, columns = weight.shape[0], weight.shape[1]
    if rows % 2 == 0 or columns % 2 == 0:
        raise ValueError(f"kernel sizes must be odd, but are {rows}x{columns}")
    return weight[: rows // 2 + 1, : columns // 2 + 1 if source_causal else columns]


def plain_grid_convolution(
    x: Tensor, weight: Tensor, layout: GridLayout, *, source_causal: bool = False
) -> Tensor:
    """Convolve flat grids x [M, D] with weight [k_y, k_x, D]: the reference, Eq. (3.2)."""
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

    Padding reads as zero. The weight may be float32 with a bfloat16 x; its gradient has its own
    dtype and is zero on dead taps. Eq. (3.2). Raises: ValueError for an even kernel size.
    """
    form: type[torch.autograd.Function]
    if x.device.type == "cpu":
        form = CpuGridConvolution
    elif uses_triton(x):
        # Imported here: CPU builds of torch come without Triton.
        from nmtgrid.layers.kernels.grid_conv_triton import TritonGridConvolution

        form = TritonGridConvolution
    else:
        return plain_grid_convolution(x, weight, layout, source_causal=source_causal)
    taps, left = live_taps(weight, source_causal=source_causal), weight.shape[1] // 2
    right = 0 if source_causal else left
    return apply(form, x, taps, layout, left, right)


def prepare_step_weight(
    weight: Tensor, dtype: torch.dtype, *, source_causal: bool = False
) -> Tensor:
    """Return the live taps of weight [k_y, k_x, D] as [D, 1, rows, columns], for many steps."""
    taps = live_taps(weight, source_causal=source_causal).detach()
    taps = taps.permute(2, 0, 1).unsqueeze(1).to(dtype)
    # The kernel for GPUs reads features that are adjacent in memory.
    return taps.contiguous() if taps.device.type == "cpu" else taps


def grid_convolution_step(
    window: Tensor, prepared: Tensor, order: Tensor | None = None, *, source_causal: bool = False
) -> Tensor:
    """Return the newest row [R, S, D] of the convolution of a window [R, rows, S, D].

    window: the last floor(k_y/2) + 1 rows, zero above the top and on padding, oldest first, or
    those of a ring, `order` [rows] then being the row of taps for each; prepared: the result of
    `prepare_step_weight`, in the window's dtype.
    """
    columns, source_size = prepared.shape[3], window.shape[2]
    left = columns - 1 if source_causal else columns // 2
    if uses_triton(window):
        # Imported here: CPU builds of torch come without Triton.
        from nmtgrid.layers.kernels.grid_conv_triton import convolve_step

        return convolve_step(window, prepared, order, left)
    prepared = in_order(prepared, order)
    grid = window.permute(0, 3, 1, 2)
    # Entering the context takes as long as a small convolution: only if autocast is on.
    device = window.device.type
    context: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if torch.is_autocast_enabled(device):
        context = torch.autocast(device, enabled=False)
    with context:
        result = F.conv2d(grid, prepared, padding=(0, left), groups=window.shape[3])
    # conv2d pads both sides alike; for a causal filter the columns from the right margin are cut.
    return result[:, :, 0, :source_size].transpose(1, 2)


def in_order(prepared: Tensor, order: Tensor | None) -> Tensor:
    """Return prepared taps [D', D, rows, columns] in the order of a ring (None: unchanged)."""
    return prepared if order is None else prepared.index_select(2, order)
