"""What the networks of Pervasive Attention are made of: layers over cells, and how to run them.

Section 3.2.3. N blocks are 2N layers: a depthwise separable convolution and a position-wise
feed-forward map take turns, Eq. (3.15); `skips` connects them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmtgrid.layers.grid.convolution import Cells, DepthwiseConvolution
from nmtgrid.layers.kernels.rectified import rectified_map
from nmtgrid.layers.probes import Point

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

    def points(self) -> dict[str, Point]:
        """Return where activations can be watched, in order, named "3.change" for layer 3."""
        found = {"0.state": Point(self.states[0])}
        for place, layer in enumerate(self.layers, 1):
            inner = layer.map if isinstance(layer, SeparableConvolution) else layer.widen
            assert isinstance(inner, nn.Module)
            found[f"{place}.inner"] = Point(inner, "inside")
            found[f"{place}.change"] = Point(layer, "change")
            found[f"{place}.state"] = Point(self.states[place])
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
