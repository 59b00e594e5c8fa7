"""The convolutional networks of Pervasive Attention: one class for each skip connection.

Sections 3.2.3 and 3.2.4. N blocks are 2N layers: a depthwise separable convolution and a
position-wise feed-forward map take turns, Eq. (3.15). Every network maps [..., D] to [..., D] and
leaves the convolution itself to `Cells` (layers/grid/convolution.py), so that training and decoding
share it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmtgrid.layers.grid.convolution import Cells, DepthwiseConvolution
from nmtgrid.layers.kernels.dropout import dropout, residual_dropout
from nmtgrid.layers.kernels.linear import rectified_map
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.probes import ProbePoint

Skip = Literal["residual", "residual-norm", "residual-cumulative", "residual-gated", "dense"]
Accumulate = Literal["layers", "blocks"]
AccumulateScale = Literal["square-root", "count"]


@dataclasses.dataclass(frozen=True)
class NetworkPlan:
    """What a grid network is built from; sizes in features, kernels in cells."""

    depth: int
    size: int
    feed_forward_size: int
    target_kernel: int
    source_kernel: int
    source_causal: bool
    dropout: float
    accumulate: Accumulate
    accumulate_scale: AccumulateScale
    growth: int
    bottleneck: int
    normalise: bool
    checkpoint_activations: bool


class SeparableConvolution(nn.Module):
    """1 x 1 map, then the depthwise causal convolution, with no ReLU between, Eq. (3.15)."""

    def __init__(self, input_size: int, size: int, plan: NetworkPlan) -> None:
        super().__init__()
        self.map = linear_map(input_size, size)
        self.convolution = DepthwiseConvolution(
            size, plan.target_kernel, plan.source_kernel, source_causal=plan.source_causal
        )

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., size]."""
        return cells.convolve(self.convolution, self.map(features))


class FeedForward(nn.Module):
    """Two maps with a ReLU between, the same at every cell, Eq. (2.41)."""

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__()
        self.widen = linear_map(plan.size, plan.feed_forward_size)
        self.narrow = linear_map(plan.feed_forward_size, plan.size)

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., D]; `cells` is not needed, all layers share one form."""
        narrowed: Tensor = self.narrow(rectified_map(self.widen, features))
        return narrowed


class GridNetwork(nn.Module):
    """The 2N layers that alternate convolution and feed-forward map; subclasses connect them."""

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__()
        self.plan = plan
        self.layers = nn.ModuleList()
        for _ in range(plan.depth):
            self.layers.append(SeparableConvolution(plan.size, plan.size, plan))
            self.layers.append(FeedForward(plan))
        # H^0 and what stands behind each layer pass here, where they can be watched.
        self.states = nn.ModuleList(nn.Identity() for _ in range(len(self.layers) + 1))

    def stages(self) -> list[nn.Module]:
        """Return the parts whose outputs are H^0 and h_n behind each layer, all of use."""
        return list(self.states)

    def points(self) -> dict[str, ProbePoint]:
        """Return where activations can be watched, in order, named "3.change" for layer 3."""
        found = {"0.state": ProbePoint(self.states[0])}
        for place, layer in enumerate(self.layers, 1):
            inner = layer.map if isinstance(layer, SeparableConvolution) else layer.widen
            assert isinstance(inner, nn.Module)
            found[f"{place}.inner"] = ProbePoint(inner, "inside")
            found[f"{place}.change"] = ProbePoint(layer, "change")
            found[f"{place}.state"] = ProbePoint(self.states[place])
        return found

    def run(self, deed: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return `deed(*inputs)`, recomputed in the backward pass if the plan says so."""
        if self.plan.checkpoint_activations and self.training and torch.is_grad_enabled():
            return checkpoint(deed, *inputs, use_reentrant=False)  # type: ignore[no-any-return]
        return deed(*inputs)


def linear_map(input_size: int, output_size: int) -> nn.Linear:
    """Return a map with Xavier-uniform weights and a zero bias."""
    made = nn.Linear(input_size, output_size)
    nn.init.xavier_uniform_(made.weight)
    nn.init.zeros_(made.bias)
    return made


class ResidualNetwork(GridNetwork):
    """h_n = h_{n-1} + F_n(h_{n-1}); the last h is the output, Eq. (3.3).

    Nothing scales the sums, so what the 2N layers add is drawn smaller by the square root of 2N:
    the variance at the end is about that of the beginning, and the first loss log V.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__(plan)
        with torch.no_grad():
            for layer in self.layers:
                last = "narrow" if isinstance(layer, FeedForward) else "convolution"
                weight = layer.get_submodule(last).get_parameter("weight")
                weight.div_(math.sqrt(len(self.layers)))

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., D]."""
        features = self.states[0](features)
        for layer, state in zip(self.layers, self.states[1:], strict=True):

            def connect(before: Tensor, layer: nn.Module = layer) -> Tensor:
                return residual_dropout(
                    before, layer(before, cells), self.plan.dropout, 1.0, self.training
                )

            features = state(self.run(connect, features))
        return features


class ResidualNormNetwork(GridNetwork):
    """h_n = LN(h_{n-1} + F_n(h_{n-1})); the last h is the output.

    Departs: Eq. (3.4) does not say what H_conv is; it is the last normalised sum.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__(plan)
        self.norms = nn.ModuleList(PositionNorm(plan.size) for _ in self.layers)

    def points(self) -> dict[str, ProbePoint]:
        """Return where activations can be watched: "3.sum" is what is normalised in layer 3."""
        found: dict[str, ProbePoint] = {}
        for name, point in super().points().items():
            place, _, what = name.partition(".")
            if what == "state" and place != "0":
                found[f"{place}.sum"] = ProbePoint(self.norms[int(place) - 1], "inside", "input")
            found[name] = point
        return found

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., D]."""
        features = self.states[0](features)
        for layer, norm, state in zip(self.layers, self.norms, self.states[1:], strict=True):

            def connect(before: Tensor, layer: nn.Module = layer, norm: nn.Module = norm) -> Tensor:
                after = layer(before, cells)
                normed: Tensor = norm(
                    residual_dropout(before, after, self.plan.dropout, 1.0, self.training)
                )
                return normed

            features = state(self.run(connect, features))
        return features


class ResidualCumulativeNetwork(GridNetwork):
    """h_n = sqrt(1/2) (h_{n-1} + F_n(h_{n-1})); the output accumulates the h's, Eq. (3.6)-(3.7).

    `accumulate="layers"` sums all 2N+1 of them as printed, "blocks" H^0 and one per block as the
    published checkpoint; the sum is divided by the square root of its number of terms as printed,
    or by that number as the checkpoint does. It is kept in fp32.
    """

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., D]."""
        every = 1 if self.plan.accumulate == "layers" else 2
        features = self.states[0](features)
        total, terms = _widened(features), 1
        for place, layer in enumerate(self.layers, 1):

            def connect(before: Tensor, layer: nn.Module = layer) -> Tensor:
                return residual_dropout(
                    before, layer(before, cells), self.plan.dropout, 0.5**0.5, self.training
                )

            features = self.states[place](self.run(connect, features))
            if place % every == 0:
                total, terms = total + features, terms + 1
        power = 0.5 if self.plan.accumulate_scale == "square-root" else 1.0
        scale: float = terms**-power
        return (total * scale).to(features.dtype)


class ResidualGatedNetwork(GridNetwork):
    """h_n = f_n (h_{n-1} + H^n), H^n = F_n(h_{n-1}); output: sum of s_n H^n, Eq. (3.10)-(3.12).

    The gates are vectors in R^d. Departs: n starts at 1 for f, and s_0, which the print leaves
    undefined, is a snapshot gate on H^0.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__(plan)
        count = len(self.layers)
        self.forward_gates = nn.Parameter(torch.full((count, plan.size), 0.5**0.5))
        self.snapshot_gates = nn.Parameter(torch.full((count + 1, plan.size), (count + 1) ** -0.5))

    def stages(self) -> list[nn.Module]:
        """Return the parts whose outputs are H^0 .. H^2N: nothing reads the last h_n."""
        return [self.states[0], *self.layers]

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., D]."""
        features = self.states[0](features)
        total = self.snapshot_gates[0] * _widened(features)
        for place, layer in enumerate(self.layers):

            def connect(before: Tensor, layer: nn.Module = layer) -> Tensor:
                return dropout(layer(before, cells), self.plan.dropout, self.training)

            after = self.run(connect, features)
            gate = self.forward_gates[place].to(features.dtype)
            total = total + self.snapshot_gates[place + 1] * after
            features = self.states[place + 1](gate * (features + after))
        return total.to(features.dtype)


class DenseLayer(nn.Module):
    """Norm, ReLU, map to the bottleneck, norm, ReLU, separable causal convolution to g features.

    Fig. 3.5. The convolution is depthwise separable as in the residual layers: with full filters
    one layer alone would have more parameters than table 3.4 gives to four.
    """

    def __init__(self, input_size: int, plan: NetworkPlan) -> None:
        super().__init__()
        middle = plan.bottleneck * plan.growth
        self.first_norm = PositionNorm(input_size) if plan.normalise else nn.Identity()
        self.narrow = linear_map(input_size, middle)
        self.second_norm = PositionNorm(middle) if plan.normalise else nn.Identity()
        self.convolution = SeparableConvolution(middle, plan.growth, plan)
        self.dropout_rate = plan.dropout

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., g]."""
        narrowed = self.narrow(torch.relu(self.first_norm(features)))
        narrowed = dropout(narrowed, self.dropout_rate, self.training)
        grown = self.convolution(torch.relu(self.second_norm(narrowed)), cells)
        return dropout(grown, self.dropout_rate, self.training)


class DenseNetwork(GridNetwork):
    """Each layer reads all earlier ones side by side and adds g features, Eq. (3.13)-(3.14).

    A stack of linear maps (d + N g -> d_FF -> d) brings the features back to d.
    Departs: H_conv holds H^0 too, as the text's d + N g says. The stack's widths are not printed;
    through d_FF they give the published 7.1M parameters.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        nn.Module.__init__(self)
        self.plan = plan
        self.layers = nn.ModuleList(
            DenseLayer(plan.size + place * plan.growth, plan) for place in range(plan.depth)
        )
        self.states = nn.ModuleList([nn.Identity()])
        self.compress = nn.Sequential(
            linear_map(plan.size + plan.depth * plan.growth, plan.feed_forward_size),
            linear_map(plan.feed_forward_size, plan.size),
        )

    def stages(self) -> list[nn.Module]:
        """Return the parts whose outputs are H^0 and the features that each layer adds."""
        return [self.states[0], *self.layers]

    def points(self) -> dict[str, ProbePoint]:
        """Return where activations can be watched; a state is all that the next layer reads."""
        found = {"0.state": ProbePoint(self.states[0])}
        readers = [*self.layers[1:], self.compress]
        for place, (layer, reader) in enumerate(zip(self.layers, readers, strict=True), 1):
            assert isinstance(layer, DenseLayer)
            found[f"{place}.normalised"] = ProbePoint(layer.first_norm, "inside")
            found[f"{place}.narrowed"] = ProbePoint(layer.narrow, "inside")
            found[f"{place}.normalised-narrowed"] = ProbePoint(layer.second_norm, "inside")
            found[f"{place}.change"] = ProbePoint(layer, "change")
            found[f"{place}.state"] = ProbePoint(reader, "state", "input")
        return found

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., D]."""
        held = [self.states[0](features)]
        for layer in self.layers:

            def connect(*before: Tensor, layer: nn.Module = layer) -> Tensor:
                grown: Tensor = layer(torch.cat(before, -1), cells)
                return grown

            held.append(self.run(connect, *held))
        compressed: Tensor = self.compress(torch.cat(held, -1))
        return compressed


NETWORKS: dict[Skip, type[GridNetwork]] = {
    "residual": ResidualNetwork,
    "residual-norm": ResidualNormNetwork,
    "residual-cumulative": ResidualCumulativeNetwork,
    "residual-gated": ResidualGatedNetwork,
    "dense": DenseNetwork,
}


def _widened(features: Tensor) -> Tensor:
    """Return `features` in fp32 at least: long sums lose too much in bf16."""
    return features.to(torch.promote_types(features.dtype, torch.float32))
