"""The convolutional networks of Pervasive Attention: one class for each skip connection.

Sections 3.2.3 and 3.2.4. N blocks are 2N layers: a depthwise separable convolution and a
position-wise feed-forward layer take turns, Eq. (3.15). Every network maps [..., D] to [..., D] and
leaves the convolution itself to `Cells` (layers/grid/convolution.py), so that training and decoding
share it. models/pervasive/model.py chooses one of `NETWORKS`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmtgrid.layers.grid.aggregation import widened
from nmtgrid.layers.grid.convolution import Cells, DepthwiseConvolution
from nmtgrid.layers.kernels.dropout import dropout, residual_branches, residual_dropout
from nmtgrid.layers.kernels.linear import Projection, feed_forward, is_watched
from nmtgrid.layers.kernels.scaled_sum import scaled_sum
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.probes import ProbePoint

Skip = Literal["residual", "residual-norm", "residual-cumulative", "residual-gated", "dense"]
Accumulate = Literal["layers", "blocks"]
AccumulateScale = Literal["square-root", "count"]
Output = TypeVar("Output")


@dataclasses.dataclass(frozen=True)
class NetworkPlan:
    """The sizes (in features) and kernels (in cells) of a grid network."""

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
    dense_norm: bool
    checkpoint_activations: bool


class SeparableConvolution(nn.Module):
    """1 x 1 projection, then the depthwise causal convolution, with no ReLU between, Eq. (3.15)."""

    def __init__(self, input_size: int, size: int, plan: NetworkPlan) -> None:
        super().__init__()
        self.map = Projection.xavier(input_size, size)
        self.convolution = DepthwiseConvolution(
            size, plan.target_kernel, plan.source_kernel, source_causal=plan.source_causal
        )

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        return cells.convolve(self.convolution, self.map(features))


class FeedForward(nn.Module):
    """Two projections with a ReLU between, the same at every cell, Eq. (2.41)."""

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__()
        self.widen = Projection.xavier(plan.size, plan.feed_forward_size)
        self.narrow = Projection.xavier(plan.feed_forward_size, plan.size)

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        """Return [..., D]; `cells` is unused, since all layers have the same signature."""
        return feed_forward(self.widen, self.narrow, features)


class GridNetwork(nn.Module):
    """The 2N layers that alternate convolution and feed-forward; subclasses connect them.

    This class is the plain chain, h_n = s (h_{n-1} + F_n(h_{n-1})); the last h is the output.
    """

    residual_scale = 1.0
    """The factor s."""

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__()
        self.plan = plan
        self.layers = nn.ModuleList()
        for _ in range(plan.depth):
            self.layers.append(SeparableConvolution(plan.size, plan.size, plan))
            self.layers.append(FeedForward(plan))
        # H^0 and each layer's state pass through these, for hooks (`points`).
        self.states = nn.ModuleList(nn.Identity() for _ in range(len(self.layers) + 1))

    def checkpointed(self, method: Callable[..., Output], *inputs: Any) -> Output:
        """Return `method(*inputs)`, recomputed in the backward pass if the plan says so."""
        # A method, not a closure: in a loop, a closure could recompute another layer later.
        if self.plan.checkpoint_activations and self.training and torch.is_grad_enabled():
            output: Output = checkpoint(method, *inputs, use_reentrant=False)
            return output
        return method(*inputs)

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        return self.sums(features, cells, len(self.layers))[-1]

    def sums(self, features: Tensor, cells: Cells, every: int) -> list[Tensor]:
        """Return H^0 and the h_n of every `every`-th layer."""
        features = self.states[0](features)
        branches: tuple[Tensor, ...] = (features, features)
        terms = [features]
        for n, state in enumerate(self.states[1:]):
            is_term = (n + 1) % every == 0
            # The next layer and the next sum read the state, and perhaps the caller. On a GPU each
            # reader gets its own output, so that one kernel adds their gradients.
            count = 2 * (n + 1 < len(self.layers)) + is_term
            if is_watched(state):
                # As one tensor, so that a hook sees the whole gradient.
                (features,) = self.checkpointed(self.branch, n, cells, 1, *branches[:2])
                branches = (state(features),) * count
            else:
                branches = self.checkpointed(self.branch, n, cells, count, *branches[:2])
            if is_term:
                terms.append(branches[-1])
        return terms

    def branch(
        self, n: int, cells: Cells, count: int, for_layer: Tensor, for_sum: Tensor, /
    ) -> tuple[Tensor, ...]:
        """Return h_n of layer `n` (from 0) for `count` readers, given two copies of h_{n-1}."""
        change = self.layers[n](for_layer, cells)
        return residual_branches(
            for_sum, change, self.plan.dropout, self.residual_scale, self.training, count
        )

    def stages(self) -> list[nn.Module]:
        """Return the modules whose outputs are H^0 and each layer's h_n, all of which are used."""
        return list(self.states)

    def points(self) -> dict[str, ProbePoint]:
        """Return the probe points in order, with names such as "3.change" for layer 3."""
        points = {"0.state": ProbePoint(self.states[0])}
        for n, layer in enumerate(self.layers, 1):
            inner = layer.map if isinstance(layer, SeparableConvolution) else layer.widen
            assert isinstance(inner, nn.Module)
            points[f"{n}.inner"] = ProbePoint(inner, "inside")
            points[f"{n}.change"] = ProbePoint(layer, "change")
            points[f"{n}.state"] = ProbePoint(self.states[n])
        return points


class ResidualNetwork(GridNetwork):
    """h_n = h_{n-1} + F_n(h_{n-1}); the last h is the output, Eq. (3.3).

    The sums are not scaled, so the weights of the 2N layers are initialised smaller by the square
    root of 2N: the output has about the variance of the input, and the initial loss is log V.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__(plan)
        # Only the last weight of each layer is scaled: biases are zero, so the whole change is.
        with torch.no_grad():
            for layer in self.layers:
                last = "narrow" if isinstance(layer, FeedForward) else "convolution"
                weight = layer.get_submodule(last).get_parameter("weight")
                weight.div_(math.sqrt(len(self.layers)))


class ResidualNormNetwork(GridNetwork):
    """h_n = LN(h_{n-1} + F_n(h_{n-1})); the last h is the output.

    Departs: Eq. (3.4) does not define the output H_conv. Here it is the last normalised sum.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__(plan)
        self.norms = nn.ModuleList(PositionNorm(plan.size) for _ in self.layers)

    def points(self) -> dict[str, ProbePoint]:
        """Return the probe points: "3.sum" is the input of the normalisation in layer 3."""
        points: dict[str, ProbePoint] = {}
        for name, point in super().points().items():
            layer, _, kind = name.partition(".")
            if kind == "state" and layer != "0":
                points[f"{layer}.sum"] = ProbePoint(self.norms[int(layer) - 1], "inside", "input")
            points[name] = point
        return points

    def connect(self, n: int, cells: Cells, before: Tensor, /) -> Tensor:
        """Return h_n of layer `n` (from 0), given h_{n-1}."""
        change = self.layers[n](before, cells)
        added = residual_dropout(before, change, self.plan.dropout, 1.0, self.training)
        normed: Tensor = self.norms[n](added)
        return normed

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        features = self.states[0](features)
        for n, state in enumerate(self.states[1:]):
            features = state(self.checkpointed(self.connect, n, cells, features))
        return features


class ResidualCumulativeNetwork(GridNetwork):
    """h_n = sqrt(1/2) (h_{n-1} + F_n(h_{n-1})); the output accumulates the h's, Eq. (3.6)-(3.7).

    `accumulate="layers"` sums all 2N+1 of them as printed, "blocks" H^0 and one per block as in
    the published checkpoint; the sum is divided by the square root of its number of terms as
    printed, or by that number as in the checkpoint. It is computed in fp32.
    """

    residual_scale = 0.5**0.5

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        # "blocks": only after feed-forward layers, which are every second one.
        terms = self.sums(features, cells, 1 if self.plan.accumulate == "layers" else 2)
        power = 0.5 if self.plan.accumulate_scale == "square-root" else 1.0
        return scaled_sum(terms, len(terms) ** -power)


class ResidualGatedNetwork(GridNetwork):
    """h_n = f_n (h_{n-1} + H^n), H^n = F_n(h_{n-1}); output: sum of s_n H^n, Eq. (3.10)-(3.12).

    The gates are vectors in R^d.

    Departs: The print starts the gates f_n too early and uses a snapshot gate s_0 that it does not
    define. Here f_n starts at n = 1, and s_0 is a snapshot gate on the input grid H^0.
    """

    vector_parameters = ("forward_gates", "snapshot_gates")

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__(plan)
        count = len(self.layers)
        self.forward_gates = nn.Parameter(torch.full((count, plan.size), 0.5**0.5))
        self.snapshot_gates = nn.Parameter(torch.full((count + 1, plan.size), (count + 1) ** -0.5))

    def stages(self) -> list[nn.Module]:
        """Return the modules whose outputs are H^0 .. H^2N: the last h_n is not used."""
        return [self.states[0], *self.layers]

    def connect(self, n: int, cells: Cells, before: Tensor, /) -> Tensor:
        """Return H^{n+1} of layer `n` (from 0), given h_n: only the change."""
        return dropout(self.layers[n](before, cells), self.plan.dropout, self.training)

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        features = self.states[0](features)
        total = self.snapshot_gates[0] * widened(features)
        for n, state in enumerate(self.states[1:]):
            change = self.checkpointed(self.connect, n, cells, features)
            gate = self.forward_gates[n].to(features.dtype)
            total = total + self.snapshot_gates[n + 1] * change
            features = state(gate * (features + change))
        return total.to(features.dtype)


class DenseLayer(nn.Module):
    """Norm, ReLU, linear layer to the bottleneck, norm, ReLU, separable convolution to g features.

    Fig. 3.5. The convolution is depthwise separable as in the residual layers: with full filters a
    single layer would have more parameters than four layers in table 3.4.
    """

    def __init__(self, input_size: int, plan: NetworkPlan) -> None:
        super().__init__()
        middle = plan.bottleneck * plan.growth
        self.first_norm = PositionNorm(input_size) if plan.dense_norm else nn.Identity()
        self.narrow = Projection.xavier(input_size, middle)
        self.second_norm = PositionNorm(middle) if plan.dense_norm else nn.Identity()
        self.convolution = SeparableConvolution(middle, plan.growth, plan)
        self.dropout_rate = plan.dropout

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        narrowed = self.narrow(torch.relu(self.first_norm(features)))
        narrowed = dropout(narrowed, self.dropout_rate, self.training)
        grown = self.convolution(torch.relu(self.second_norm(narrowed)), cells)
        return dropout(grown, self.dropout_rate, self.training)


class DenseNetwork(GridNetwork):
    """Each layer reads the outputs of all earlier ones and adds g features, Eq. (3.13)-(3.14).

    Linear layers (d + N g -> d_FF -> d) reduce the result to d features.

    Departs: Eq. (3.14) as printed leaves the input grid H^0 out of the output. Here it is included,
    as the d + N g of the text implies. The sizes of the final linear layers are not printed; those
    that follow from d_FF give the published 7.1M parameters.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        nn.Module.__init__(self)
        self.plan = plan
        self.layers = nn.ModuleList(
            DenseLayer(plan.size + n * plan.growth, plan) for n in range(plan.depth)
        )
        self.states = nn.ModuleList([nn.Identity()])
        self.compress = nn.Sequential(
            Projection.xavier(plan.size + plan.depth * plan.growth, plan.feed_forward_size),
            Projection.xavier(plan.feed_forward_size, plan.size),
        )

    def stages(self) -> list[nn.Module]:
        """Return the modules whose outputs are H^0 and the features that each layer adds."""
        return [self.states[0], *self.layers]

    def points(self) -> dict[str, ProbePoint]:
        """Return the probe points; a state is the whole input of the next layer."""
        points = {"0.state": ProbePoint(self.states[0])}
        readers = [*self.layers[1:], self.compress]
        for n, (layer, reader) in enumerate(zip(self.layers, readers, strict=True), 1):
            assert isinstance(layer, DenseLayer)
            points[f"{n}.normalised"] = ProbePoint(layer.first_norm, "inside")
            points[f"{n}.narrowed"] = ProbePoint(layer.narrow, "inside")
            points[f"{n}.normalised-narrowed"] = ProbePoint(layer.second_norm, "inside")
            points[f"{n}.change"] = ProbePoint(layer, "change")
            points[f"{n}.state"] = ProbePoint(reader, "state", "input")
        return points

    def connect(self, n: int, cells: Cells, /, *before: Tensor) -> Tensor:
        """Return the g features that layer `n` (from 0) adds to those before it."""
        grown: Tensor = self.layers[n](torch.cat(before, -1), cells)
        return grown

    def forward(self, features: Tensor, cells: Cells) -> Tensor:
        parts = [self.states[0](features)]
        # All parts are passed as inputs: a checkpoint saves these, not the concatenation.
        for n in range(len(self.layers)):
            parts.append(self.checkpointed(self.connect, n, cells, *parts))
        compressed: Tensor = self.compress(torch.cat(parts, -1))
        return compressed


NETWORKS: dict[Skip, type[GridNetwork]] = {
    "residual": ResidualNetwork,
    "residual-norm": ResidualNormNetwork,
    "residual-cumulative": ResidualCumulativeNetwork,
    "residual-gated": ResidualGatedNetwork,
    "dense": DenseNetwork,
}
