"""The densely connected grid network of the CoNLL paper (Huang et al., 2017, masked).

Each layer reads the features of all earlier ones side by side and appends g more. As published, a
layer is batch norm, ReLU, 1 x 1 map to 4 g features, batch norm, ReLU, masked convolution to g
features, dropout. The convolution itself is left to `Cells` (layers/grid.py), so that training and
decoding share one network.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmtgrid.layers.batch_norm import Affine, BatchNorm, BatchStatistics
from nmtgrid.layers.grid import Cells, FullConvolution
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.normalisation import PositionNorm

Normalisation = Literal["batch", "layer", "none"]
Gates = Literal["none", "convolution", "both"]


@dataclasses.dataclass(frozen=True)
class DensePlan:
    """What a densely connected grid network is built from."""

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
        """Features of the network's output."""
        return self.grown_size // 2 if self.halve_output else self.grown_size


class DenseLayer(nn.Module):
    """From the features of all earlier layers to g more."""

    def __init__(self, input_size: int, plan: DensePlan) -> None:
        super().__init__()
        middle, growth = plan.bottleneck * plan.growth, plan.growth
        self.first_norm = _shared_norm(plan.normalisation, input_size)
        self.narrow = _map(input_size, middle * (2 if plan.gates == "both" else 1), plan)
        self.second_norm = _own_norm(plan.normalisation, middle)
        self.convolution = FullConvolution(
            middle, growth if plan.gates == "none" else 2 * growth, plan.kernel
        )
        self.statistics = _statistics(plan.normalisation, growth)
        self.gates, self.dropout_rate = plan.gates, plan.dropout

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., g]; with batch norm they are standardised, for all layers that follow."""
        narrowed = self.narrow(torch.relu(self.first_norm(features)))
        if self.gates == "both":
            narrowed = nn.functional.glu(narrowed, -1)
        grown = cells.convolve(self.convolution, torch.relu(self.second_norm(narrowed)))
        if self.gates != "none":
            grown = nn.functional.glu(grown, -1)
        grown = dropout(grown, self.dropout_rate, self.training)
        standard: Tensor = self.statistics(grown)
        return standard


class DenseConvolutionalNetwork(nn.Module):
    """L dense layers, a map to half the features if asked, and a last norm and ReLU.

    Departs: the text does not mention the last norm and ReLU, nor that the output is halved; with
    both, and the input halved as its revised version says, all counts of tables 1 and 2 fit to a
    tenth of a percent (with |V| as printed).
    """

    def __init__(self, plan: DensePlan) -> None:
        super().__init__()
        self.plan = plan
        widths = [plan.input_size + place * plan.growth for place in range(plan.depth)]
        self.layers = nn.ModuleList(DenseLayer(width, plan) for width in widths)
        # Every layer normalises the same features: their statistics are taken once.
        self.statistics = _statistics(plan.normalisation, plan.input_size)
        self.halve: nn.Module = nn.Identity()
        if plan.halve_output:
            self.halve = nn.Sequential(
                _shared_norm(plan.normalisation, plan.grown_size),
                nn.ReLU(),
                _map(plan.grown_size, plan.output_size, plan),
            )
        final = _own_norm if plan.halve_output else _shared_norm
        self.final_norm = final(plan.normalisation, plan.output_size)

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., F] for the initial grid [..., f_0]."""
        held = [self.statistics(features)]
        for layer in self.layers:
            held.append(self._run(layer, held, cells))
        return torch.relu(self.final_norm(self.halve(torch.cat(held, -1))))

    def _run(self, layer: nn.Module, held: list[Tensor], cells: Cells) -> Tensor:
        """Return what `layer` grows, recomputed in the backward pass if the plan says so."""

        def grow(*before: Tensor) -> Tensor:
            grown: Tensor = layer(torch.cat(before, -1), cells)
            return grown

        if self.plan.checkpoint_activations and self.training and torch.is_grad_enabled():
            return checkpoint(grow, *held, use_reentrant=False)  # type: ignore[no-any-return]
        return grow(*held)


def _statistics(kind: Normalisation, size: int) -> nn.Module:
    """Return what standardises features for all layers that read them."""
    return BatchStatistics(size) if kind == "batch" else nn.Identity()


def _shared_norm(kind: Normalisation, size: int) -> nn.Module:
    """Return the norm of features whose statistics, if any, are taken elsewhere."""
    if kind == "batch":
        return Affine(size)
    return PositionNorm(size) if kind == "layer" else nn.Identity()


def _own_norm(kind: Normalisation, size: int) -> nn.Module:
    """Return a norm that takes statistics of its own."""
    return BatchNorm(size) if kind == "batch" else _shared_norm(kind, size)


def _map(input_size: int, output_size: int, plan: DensePlan) -> nn.Linear:
    """Return a 1 x 1 map that reads rectified features; a norm behind it makes a bias idle."""
    made = nn.Linear(input_size, output_size, bias=plan.normalisation == "none")
    nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
    if made.bias is not None:
        nn.init.zeros_(made.bias)
    return made
