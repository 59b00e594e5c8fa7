"""Dense layers with batch norm as decoding wants them: statistics folded into the maps.

In evaluation mode batch norm is a scale and a shift. That behind a map becomes part of the map;
that before a rectifier stays, one for each layer that reads a feature.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.layers.batch_norm import EPSILON, Affine, BatchNorm, BatchStatistics
from nmtgrid.layers.grid.convolution import OneRow
from nmtgrid.layers.kernels.dense_conv import (
    dense_grid_convolution_step,
    prepare_dense_step_weight,
)
from nmtgrid.layers.kernels.linear import product


@dataclasses.dataclass(frozen=True, eq=False)
class FoldedMap:
    """relu(features * scale + shift) weight^T + bias, for features [..., f]."""

    scale: Tensor
    shift: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return [..., D']."""
        with torch.autocast(features.device.type, enabled=False):
            return product(
                torch.addcmul(self.shift, features, self.scale).relu_(), self.weight, self.bias
            )


@dataclasses.dataclass(frozen=True, eq=False)
class FoldedConvolution:
    """A masked convolution with the standardisation of its output."""

    weight: Tensor
    shift: Tensor
    live_rows: int

    def prepare(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in the form that `newest_row` wants."""
        return prepare_dense_step_weight(self.weight, dtype)

    def newest_row(self, window: Tensor, prepared: Tensor) -> Tensor:
        """Return [R, S, D'] for a window [R, live_rows, S, D] of the last rows."""
        return dense_grid_convolution_step(window, prepared, self.shift)


@dataclasses.dataclass(frozen=True, eq=False)
class FoldedNetwork:
    """A dense network with batch norm, for one row of cells [R, S, f_0] at a time.

    `first` standardises the initial grid; `last` is the last norm where it is in no map.
    """

    first: tuple[Tensor, Tensor]
    layers: tuple[tuple[FoldedMap, FoldedConvolution], ...]
    halve: FoldedMap | None
    last: tuple[Tensor, Tensor] | None
    growth: int
    grown_size: int

    @torch.no_grad()
    def newest_row(self, features: Tensor, cells: OneRow) -> Tensor:
        """Return [R, S, F] for the newest row, without gradient."""
        scale, shift = self.first
        room = features.new_empty(*features.shape[:-1], self.grown_size)
        end = features.shape[-1]
        torch.addcmul(shift, features, scale, out=room[..., :end])
        for narrow, convolution in self.layers:
            middle = narrow(room[..., :end]).relu_()
            room[..., end : end + self.growth] = cells.convolve(convolution, middle)
            end += self.growth
        if self.halve is not None:
            return self.halve(room).relu_()
        assert self.last is not None
        return torch.addcmul(self.last[1], room, self.last[0]).relu_()


@torch.no_grad()
def fold_map(affine: Affine, weight: Tensor, norm: BatchNorm, dtype: torch.dtype) -> FoldedMap:
    """Return the map of `weight` [D', f] between `affine` and `norm`."""
    scale, shift = folded_statistics(norm)
    weight = weight * (scale * norm.weight)[:, None]
    bias = shift * norm.weight + norm.bias
    held = affine.weight.detach(), affine.bias.detach(), weight, bias
    return FoldedMap(*(tensor.to(dtype) for tensor in held))


@torch.no_grad()
def fold_convolution(
    weight: Tensor, statistics: BatchStatistics, dtype: torch.dtype
) -> FoldedConvolution:
    """Return the convolution of `weight` [D', D, k, k] with its output standardised."""
    scale, shift = folded_statistics(statistics)
    return FoldedConvolution(
        weight * scale[:, None, None, None], shift.to(dtype), weight.shape[2] // 2 + 1
    )


@torch.no_grad()
def folded_statistics(statistics: BatchStatistics) -> tuple[Tensor, Tensor]:
    """Return scale and shift [C] that standardise by the running statistics."""
    scale = (statistics.running_var + EPSILON).rsqrt()
    return scale, -statistics.running_mean * scale
