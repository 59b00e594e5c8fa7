"""Kernels of the dense network: its masked convolution, and the first half of a dense layer.

The first half is scale, shift, ReLU and 1 x 1 projection of all earlier features, which are columns
of one matrix [M, f_L]. Used by grid/densenet.py; `pervasive-densenet` under training in
benchmarks/results/cpu-1-thread.md gives time and peak memory.
"""

# As separate tensors the features would be concatenated for every layer, and autograd would save
# every copy for the backward pass: memory quadratic in the depth. Here only the features themselves
# are saved, the rectified ones are recomputed in the backward pass, and all layers add to one
# gradient. A layer's gradient is complete when the layers after it are done, so the layers form a
# chain for autograd: the input of each one is the features appended last, and its backward pass
# returns their share of the gradient.

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.layout import GridLayout, gather_cells, scatter_cells
from nmtgrid.layers.kernels.linear import apply, close_where_zero, product


def live_dense_taps(weight: Tensor) -> Tensor:
    """Return the view [D', D, floor(k/2)+1, k] of the live taps, the only ones that are read.

    Raises: ValueError for an even kernel size.
    """
    rows, columns = weight.shape[2], weight.shape[3]
    if rows % 2 == 0 or columns % 2 == 0:
        raise ValueError(f"kernel sizes must be odd, but are {rows}x{columns}")
    return weight[:, :, : rows // 2 + 1]


def dense_grid_convolution(x: Tensor, weight: Tensor, layout: GridLayout) -> Tensor:
    """Convolve flat grids x [M, D] with weight [D', D, k, k], returning [M, D'] in x's dtype.

    Padding reads as zero. The weight may be float32 with a bfloat16 x; its gradient has its own
    dtype and is zero on dead taps. Raises: ValueError for an even kernel size.
    """
    taps = live_dense_taps(weight).to(x.dtype)
    return apply(_Convolution, x, taps, layout)


def prepare_dense_step_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the live taps of weight [D', D, k, k] in `dtype`, for many steps."""
    return _channels_last(live_dense_taps(weight).detach().to(dtype))


def dense_grid_convolution_step(
    window: Tensor, prepared: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return the newest row [R, S, D'] of the convolution of a window [R, rows, S, D].

    window: the last floor(k/2) + 1 rows, oldest first, zero above the top and on padding;
    prepared: the result of `prepare_dense_step_weight`, in the window's dtype.
    """
    with torch.autocast(window.device.type, enabled=False):
        return _convolve(window, prepared, bias)[:, 0]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, layout: GridLayout) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.layout = layout
        with torch.autocast(x.device.type, enabled=False):
            grid = scatter_cells(x, layout, margins=(taps.shape[2] - 1, 0, 0, 0))
            return gather_cells(_convolve(grid, taps), layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # The padded grids are built again: saved, they would double the memory of ragged batches.
        x, taps = ctx.saved_tensors
        above, layout = taps.shape[2] - 1, ctx.layout
        gradient = gradient.to(x.dtype)
        below = scatter_cells(gradient, layout, margins=(0, above, 0, 0))
        of_x = of_taps = None
        with torch.autocast(x.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                reversed_taps = taps.flip(2, 3).transpose(0, 1)
                of_x = gather_cells(_convolve(below, reversed_taps), layout)
            if ctx.needs_input_grad[1]:
                grid = scatter_cells(x, layout, margins=(above, 0, 0, 0))
                of_taps = _weight_gradient(grid, below[:, : layout.target_size], taps)
        return of_x, of_taps, None


def _convolve(grid: Tensor, taps: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve grids [B, T + rows - 1, S, D] with taps [D', D, rows, k]; return [B, T, S, D']."""
    side = taps.shape[3] // 2
    result = F.conv2d(grid.permute(0, 3, 1, 2), _channels_last(taps), bias, padding=(0, side))
    return result.permute(0, 2, 3, 1)


def _weight_gradient(grid: Tensor, gradient: Tensor, taps: Tensor) -> Tensor:
    of_taps: Tensor
    _, of_taps, _ = torch.ops.aten.convolution_backward(
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
    )
    return of_taps


def _channels_last(taps: Tensor) -> Tensor:
    # The grids are channels-last already; with taps in another format both would be copied.
    return taps.contiguous(memory_format=torch.channels_last)


@dataclasses.dataclass(eq=False)
class _Store:
    """All features [M, f_L], the end column of each part, and the gradient of a backward pass."""

    features: Tensor
    ends: list[int]
    gradient: Tensor | None = None

    def first(self, count: int) -> Tensor:
        return self.features[:, : self.ends[count]].contiguous()

    def share(self, count: int) -> Tensor:
        """Return the gradient of part `count`, once all layers that read it have added to it."""
        assert self.gradient is not None
        return self.gradient[:, self.ends[count - 1] : self.ends[count]].contiguous()


class DensePrefix:
    """A matrix of features [M, f_L]: `append` fills it from the left, `project` reads it so far.

    It serves one forward pass; its backward pass may run more than once (`retain_graph`).
    """

    def __init__(self, like: Tensor, size: int) -> None:
        features = torch.empty(like.shape[0], size, dtype=like.dtype, device=like.device)
        self._store, self._count = _Store(features, [0]), 0
        self._last: Tensor | None = None

    def append(self, part: Tensor) -> None:
        """Append features [M, g]."""
        ends = self._store.ends
        ends.append(ends[-1] + part.shape[1])
        self._store.features[:, ends[-2] : ends[-1]] = part.detach()
        self._last, self._count = part, self._count + 1

    def snapshot(self) -> Self:
        """Return the features so far, without those appended later."""
        return copy.copy(self)

    def project(
        self, scale: Tensor, shift: Tensor, weight: Tensor, *, last: bool = False
    ) -> Tensor:
        """Return relu(features * scale + shift) weight^T [M, D'] of all features so far.

        weight [D', f] may be float32 with bfloat16 features. `last` says that nothing else will
        read the features.
        """
        kind = self._store.features.dtype
        return apply(
            _Projection, self._last, scale, shift, weight.to(kind), self._store, self._count, last
        )

    def whole(self) -> Tensor:
        """Return all features [M, f_L]; nothing else may read them."""
        return apply(_Whole, self._last, self._store)


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        last_part: Tensor,
        scale: Tensor,
        shift: Tensor,
        weight: Tensor,
        store: _Store,
        count: int,
        is_last: bool,
    ) -> Tensor:
        ctx.save_for_backward(scale, shift, weight)
        ctx.store, ctx.count, ctx.is_last = store, count, is_last
        return product(_rectified(store.first(count), scale, shift), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scale, shift, weight = ctx.saved_tensors
        store: _Store = ctx.store
        features = store.first(ctx.count)
        rectified = _rectified(features, scale, shift)
        # Overwritten in place below: this is the widest tensor of the layer.
        of_weight = product(gradient.t(), rectified.t())
        of_rectified = product(gradient, weight.t())
        close_where_zero(of_rectified, rectified)
        zeros, ones = torch.zeros_like(scale), torch.ones_like(scale)
        # One pass for the gradients of scale, shift and input: batch norm with known moments, also
        # passed as those of the batch, for the CUDA kernel.
        of_features, of_scale, of_shift = torch.ops.aten.native_batch_norm_backward(
            of_rectified, features, scale, zeros, ones, zeros, ones, False, 0.0, [True, True, True]
        )
        # The last reader comes first in the backward pass: its gradient starts the sum.
        if ctx.is_last:
            store.gradient = of_features
        else:
            assert store.gradient is not None
            store.gradient[:, : features.shape[1]].add_(of_features)
        return store.share(ctx.count), of_scale, of_shift, of_weight, None, None, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, last_part: Tensor, store: _Store) -> Tensor:
        ctx.store = store
        return store.features.view_as(store.features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        store: _Store = ctx.store
        store.gradient = gradient.clone()
        return store.share(len(store.ends) - 1), None


def _rectified(features: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    # Batch norm with moments of zero and one is the only kernel that scales and shifts columns in
    # one pass.
    zeros, ones = torch.zeros_like(scale), torch.ones_like(scale)
    scaled, _, _ = torch.native_batch_norm(features, scale, shift, zeros, ones, False, 0.0, 0.0)
    return scaled.relu_()
