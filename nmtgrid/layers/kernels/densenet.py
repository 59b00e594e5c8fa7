"""The first half of a dense layer: scale, shift, ReLU and 1 x 1 map of all earlier features.

Side by side in memory, [M, f_L], stand the features of all layers so far; each layer reads those
before it. Kept as separate tensors they would be copied together for every layer, and the library
would hold every copy for the backward pass: memory quadratic in the depth. Here nothing is held
but the features themselves, the rectified ones are made again in the backward pass, and all
layers add to one gradient. A layer's gradient is complete when the layers behind it are done, so
the layers form a chain: each one takes the features appended last, and gives them their share.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.layout import GridLayout, gather_cells, scatter_cells
from nmtgrid.layers.kernels.linear import product


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


@dataclasses.dataclass(eq=False)
class _Store:
    """All features [M, f_L], where each layer's end, and the gradient of one backward pass."""

    features: Tensor
    ends: list[int]
    gradient: Tensor | None = None

    def first(self, count: int) -> Tensor:
        """Return the features of the first `count` parts, packed."""
        return self.features[:, : self.ends[count]].contiguous()

    def share(self, count: int) -> Tensor:
        """Return the gradient of part `count`, when all that read it have added theirs."""
        assert self.gradient is not None
        return self.gradient[:, self.ends[count - 1] : self.ends[count]].contiguous()


class DensePrefix:
    """Room for features [M, f_L], filled from the left: `append` in order, `map` what is there.

    One forward pass long; its backward pass may run more than once (`retain_graph`).
    """

    def __init__(self, like: Tensor, size: int) -> None:
        room = torch.empty(like.shape[0], size, dtype=like.dtype, device=like.device)
        self._store, self._count = _Store(room, [0]), 0
        self._last: Tensor | None = None

    def append(self, part: Tensor) -> None:
        """Put features [M, g] beside those before."""
        ends = self._store.ends
        ends.append(ends[-1] + part.shape[1])
        self._store.features[:, ends[-2] : ends[-1]] = part.detach()
        self._last, self._count = part, self._count + 1

    def now(self) -> Self:
        """Return what is held now, whatever is appended later."""
        return copy.copy(self)

    def map(self, scale: Tensor, shift: Tensor, weight: Tensor, *, last: bool = False) -> Tensor:
        """Return relu(features * scale + shift) weight^T [M, D'] of all features so far.

        weight [D', f] may be float32 beside bfloat16 features. `last` says that nothing else
        will read the features.
        """
        kind = self._store.features.dtype
        mapped: Tensor = _Map.apply(  # type: ignore[no-untyped-call]
            self._last, scale, shift, weight.to(kind), self._store, self._count, last
        )
        return mapped

    def whole(self) -> Tensor:
        """Return all features [M, f_L]; nothing else may read them."""
        found: Tensor = _Whole.apply(self._last, self._store)  # type: ignore[no-untyped-call]
        return found


def plain_dense_map(parts: list[Tensor], scale: Tensor, shift: Tensor, weight: Tensor) -> Tensor:
    """Return relu(features * scale + shift) weight^T [M, D'] for parts [M, g]: the plain twin."""
    features = torch.cat(parts, -1)
    return torch.relu(features * scale + shift) @ weight.t()


class _Map(torch.autograd.Function):
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
        of_weight = product(gradient.t(), rectified.t())
        of_rectified = product(gradient, weight.t())
        torch.ops.aten.threshold_backward.grad_input(
            of_rectified, rectified, 0, grad_input=of_rectified
        )
        zero, one = torch.zeros_like(scale), torch.ones_like(scale)
        # The library's one pass for scale, shift and input: batch norm of known moments, which on
        # CUDA it wants as those of a batch too.
        of_features, of_scale, of_shift = torch.ops.aten.native_batch_norm_backward(
            of_rectified, features, scale, zero, one, zero, one, False, 0.0, [True, True, True]
        )
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
    zero, one = torch.zeros_like(scale), torch.ones_like(scale)
    moved: Tensor = torch.native_batch_norm(features, scale, shift, zero, one, False, 0.0, 0.0)[0]
    return moved.relu_()
