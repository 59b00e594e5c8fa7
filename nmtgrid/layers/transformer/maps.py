"""Affine maps with the initial values of the published attention models."""

from __future__ import annotations

import math

from torch import Tensor, nn

from nmtgrid.layers.kernels.linear import linear


class Map(nn.Linear):
    """An affine map whose product takes the fastest way in its type."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [..., N] for input [..., K]."""
        return linear(input, self.weight, self.bias)


def inward_map(size: int, parts: int) -> Map:
    """Return a map from d to `parts` x d features, each d with the variance of one of three."""
    made = Map(size, parts * size)
    bound = inward_bound(size)
    nn.init.uniform_(made.weight, -bound, bound)
    nn.init.zeros_(made.bias)
    return made


def outward_map(input_size: int, output_size: int) -> Map:
    """Return a map with Xavier-uniform weights and a zero bias."""
    made = Map(input_size, output_size)
    nn.init.xavier_uniform_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def inward_bound(size: int) -> float:
    """Return the bound of Xavier's uniform distribution for a map from d to 3d features."""
    return math.sqrt(6.0 / (4 * size))
