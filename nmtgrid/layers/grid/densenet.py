"""The densely connected grid network of the CoNLL paper (Huang et al., 2017, masked).

Each layer reads the concatenated features of all earlier ones and appends g more. As published, a
layer is batch norm, ReLU, 1 x 1 projection to 4 g features, batch norm, ReLU, masked convolution to
g features, dropout. The convolution itself is left to `Cells` (layers/grid/convolution.py), so that
training and decoding share one network. Used by models/pervasive/densenet.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmtgrid.layers.grid.convolution import Cells, FoldedConvolution, FullConvolution, OneRow
from nmtgrid.layers.kernels.densenet import DensePrefix
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import product, working_dtype
from nmtgrid.layers.normalisation import (
    EPSILON,
    Affine,
    BatchNorm,
    BatchStatistics,
    PositionNorm,
    still_statistics,
)

Normalisation = Literal["batch", "layer", "none"]
Gates = Literal["none", "convolution", "both"]


@dataclasses.dataclass(frozen=True)
class DensePlan:
    """The sizes and options of a densely connected grid network."""

    depth: int
    input_size: int
    growth: int
    bottleneck: int
    kernel: int
    gates: Gates
    normalisation: Normalisation
    halve_output: bool
    dropout: float
    checkpoint_activations: bool

    @property
    def grown_size(self) -> int:
        """f_L: the input's features and those of all layers."""
        return self.input_size + self.depth * self.growth

    @property
    def output_size(self) -> int:
        """Number of features of the network's output."""
        return self.grown_size // 2 if self.halve_output else self.grown_size


class FeatureList:
    """Features [..., g] of each layer in a list: for decoding, and norms other than batch norm."""

    def __init__(self, parts: Sequence[Tensor] = ()) -> None:
        self.parts = [*parts]

    def append(self, part: Tensor) -> None:
        """Append `part` to the features."""
        self.parts.append(part)

    def snapshot(self) -> FeatureList:
        """Return the features so far, without those appended later."""
        return FeatureList(self.parts)

    def narrow(self, norm: nn.Module, linear: nn.Linear, *, last: bool = False) -> Tensor:
        """Return linear(relu(norm(features))); `last` says that nothing else will read them."""
        narrowed: Tensor = linear(torch.relu_(norm(self.whole())))
        return narrowed

    def whole(self) -> Tensor:
        """Return all features [..., f], copied into one tensor."""
        return torch.cat(self.parts, -1)


class FeatureMatrix(DensePrefix):
    """The same for flat cells with batch norm: one matrix of features, and one gradient."""

    def narrow(self, norm: nn.Module, linear: nn.Linear, *, last: bool = False) -> Tensor:
        assert isinstance(norm, Affine)
        return self.project(norm.weight, norm.bias, linear.weight, last=last)


class DenseLayer(nn.Module):
    """Maps the features of all earlier layers to g more."""

    def __init__(self, input_size: int, plan: DensePlan) -> None:
        super().__init__()
        middle, growth = plan.bottleneck * plan.growth, plan.growth
        self.first_norm = _norm(plan, input_size, Affine)
        self.narrow = _projection(input_size, middle * (2 if plan.gates == "both" else 1), plan)
        self.second_norm = _norm(plan, middle, BatchNorm)
        self.convolution = FullConvolution(
            middle, growth if plan.gates == "none" else 2 * growth, plan.kernel
        )
        self.statistics = _statistics(plan, growth)
        self.gates, self.dropout_rate = plan.gates, plan.dropout

    def forward(self, features: FeatureList | FeatureMatrix, cells: Cells) -> Tensor:
        """Return [..., g]; with batch norm they are already standardised for all later layers."""
        narrowed = features.narrow(self.first_norm, self.narrow)
        if self.gates == "both":
            narrowed = nn.functional.glu(narrowed, -1)
        grown = cells.convolve(self.convolution, torch.relu_(self.second_norm(narrowed)))
        if self.gates != "none":
            grown = nn.functional.glu(grown, -1)
        # Standardised only here, not in each layer that reads them: the statistics are the same.
        grown = dropout(grown, self.dropout_rate, self.training)
        standard: Tensor = self.statistics(grown)
        return standard

    @torch.no_grad()
    def fold(self, dtype: torch.dtype) -> tuple[FoldedProjection, FoldedConvolution]:
        """Return the layer with the running statistics of batch norm folded into its weights."""
        first, second, statistics = self.first_norm, self.second_norm, self.statistics
        assert isinstance(first, Affine) and isinstance(second, BatchNorm)
        assert isinstance(statistics, BatchStatistics)
        scale, shift = standardisation(statistics)
        convolution = FoldedConvolution(
            self.convolution.weight * scale[:, None, None, None],
            shift.to(dtype),
            self.convolution.live_rows,
        )
        return FoldedProjection.of(first, self.narrow.weight, second, dtype), convolution


class DenseConvolutionalNetwork(nn.Module):
    """L dense layers, an optional projection to half the features, a final normalisation and ReLU.

    Departs: The text mentions neither the final normalisation and ReLU nor that the output is
    halved. With both, and with the halved input of the revised version, the parameter counts agree
    with tables 1 and 2 to 0.3 % (to 0.9 % for attention only), for the printed vocabulary sizes.
    """

    def __init__(self, plan: DensePlan) -> None:
        super().__init__()
        self.plan = plan
        widths = [plan.input_size + n * plan.growth for n in range(plan.depth)]
        self.layers = nn.ModuleList(DenseLayer(width, plan) for width in widths)
        # Every layer normalises the same features: their statistics are computed once.
        self.statistics = _statistics(plan, plan.input_size)
        self.halving_norm = self.halve = None
        if plan.halve_output:
            self.halving_norm = _norm(plan, plan.grown_size, Affine)
            self.halve = _projection(plan.grown_size, plan.output_size, plan)
        self.final_norm = _norm(plan, plan.output_size, BatchNorm if plan.halve_output else Affine)

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., F] for the initial grid [..., f_0]."""
        features = features.to(working_dtype(features))
        is_batch = self.plan.normalisation == "batch"
        folds = is_batch and self.plan.gates == "none" and not self.training
        # In evaluation the norms are constant scales and shifts, which fold into the weights.
        if folds and isinstance(cells, OneRow):
            dtype = features.dtype
            folded = cells.weights.once(self, lambda: FoldedNetwork.of(self, dtype))
            return folded.newest_row(features, cells)
        features = self.statistics(features)
        parts: FeatureList | FeatureMatrix = FeatureList()
        # The matrix saves memory in training; decoding rows and other norms do not need it.
        if is_batch and features.dim() == 2:
            parts = FeatureMatrix(features, self.plan.grown_size)
        parts.append(features)
        # A snapshot for each layer: its backward pass must not see what is appended later.
        for layer in self.layers:
            parts.append(self._grow(layer, parts.snapshot(), cells))
        if self.halve is None or self.halving_norm is None:
            features = parts.whole()
        else:
            features = parts.narrow(self.halving_norm, self.halve, last=True)
        return torch.relu_(self.final_norm(features))

    def _grow(
        self, layer: nn.Module, features: FeatureList | FeatureMatrix, cells: Cells
    ) -> Tensor:
        grown: Tensor
        if self.plan.checkpoint_activations and self.training and torch.is_grad_enabled():
            # The parameter shows `checkpoint` the device whose random state dropout needs again.
            # The running statistics were updated in the forward pass and must not be again.
            grown = checkpoint(
                lambda _, *inputs: layer(*inputs), next(layer.parameters()), features, cells,
                use_reentrant=False,
                context_fn=lambda: (contextlib.nullcontext(), still_statistics(layer)),
            )  # fmt: skip
        else:
            grown = layer(features, cells)
        return grown


@dataclasses.dataclass(frozen=True, eq=False)
class FoldedProjection:
    """relu(features * scale + shift) weight^T + bias, for features [..., f]."""

    scale: Tensor
    shift: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls, affine: Affine, weight: Tensor, norm: BatchNorm, dtype: torch.dtype
    ) -> FoldedProjection:
        """Return the projection by `weight` [D', f] between `affine` and `norm`."""
        scale, shift = standardisation(norm)
        weight = weight * (scale * norm.weight)[:, None]
        bias = shift * norm.weight + norm.bias
        parts = affine.weight.detach(), affine.bias.detach(), weight, bias
        return cls(*(tensor.to(dtype) for tensor in parts))

    def __call__(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            rectified = torch.addcmul(self.shift, features, self.scale).relu_()
            return product(rectified, self.weight, self.bias)


@dataclasses.dataclass(frozen=True, eq=False)
class FoldedNetwork:
    """A dense network with batch norm, for one row of cells [R, S, f_0] at a time.

    `first` standardises the initial grid; `last` is the final norm, unless it is folded into
    `halve`. With the norms folded into weights a step has one product and one convolution per
    layer: see `pervasive-densenet` under decoding in benchmarks/results/cpu-1-thread.md.
    """

    first: tuple[Tensor, Tensor]
    layers: tuple[tuple[FoldedProjection, FoldedConvolution], ...]
    halve: FoldedProjection | None
    last: tuple[Tensor, Tensor] | None
    plan: DensePlan

    @classmethod
    def of(cls, network: DenseConvolutionalNetwork, dtype: torch.dtype) -> FoldedNetwork:
        """Return `network` with its running statistics folded into its weights."""
        final, halve, last = network.final_norm, None, None
        assert isinstance(network.statistics, BatchStatistics)
        scale, shift = standardisation(network.statistics)
        if network.halve is not None:
            assert isinstance(network.halving_norm, Affine) and isinstance(final, BatchNorm)
            halve = FoldedProjection.of(network.halving_norm, network.halve.weight, final, dtype)
        else:
            assert isinstance(final, Affine)
            last = final.weight.detach().to(dtype), final.bias.detach().to(dtype)
        layers = tuple(
            layer.fold(dtype) for layer in network.layers if isinstance(layer, DenseLayer)
        )
        return cls((scale.to(dtype), shift.to(dtype)), layers, halve, last, network.plan)

    @torch.no_grad()
    def newest_row(self, features: Tensor, cells: OneRow) -> Tensor:
        """Return [R, S, F] for the newest row, without gradient."""
        scale, shift = self.first
        grown = features.new_empty(*features.shape[:-1], self.plan.grown_size)
        end = features.shape[-1]
        torch.addcmul(shift, features, scale, out=grown[..., :end])
        for narrow, convolution in self.layers:
            middle = narrow(grown[..., :end]).relu_()
            grown[..., end : end + self.plan.growth] = cells.convolve(convolution, middle)
            end += self.plan.growth
        if self.halve is not None:
            return self.halve(grown).relu_()
        assert self.last is not None
        return torch.addcmul(self.last[1], grown, self.last[0]).relu_()


@torch.no_grad()
def standardisation(statistics: BatchStatistics) -> tuple[Tensor, Tensor]:
    """Return scale and shift [C] that standardise with the running statistics."""
    scale = (statistics.running_var + EPSILON).rsqrt()
    return scale, -statistics.running_mean * scale


def _statistics(plan: DensePlan, size: int) -> nn.Module:
    """Return the standardisation of features for all layers that read them."""
    return BatchStatistics(size) if plan.normalisation == "batch" else nn.Identity()


def _norm(plan: DensePlan, size: int, batch_norm: type[Affine | BatchNorm]) -> nn.Module:
    """Return a normalisation of `size` features: `Affine` if statistics are computed elsewhere."""
    if plan.normalisation == "batch":
        return batch_norm(size)
    return PositionNorm(size) if plan.normalisation == "layer" else nn.Identity()


def _projection(input_size: int, output_size: int, plan: DensePlan) -> nn.Linear:
    """Return a 1 x 1 projection of rectified features, without a bias if a norm follows."""
    layer = nn.Linear(input_size, output_size, bias=plan.normalisation == "none")
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
