"""What the Pervasive Attention of the CoNLL paper is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.embedding import Positions
from nmtgrid.layers.grid.aggregation import Aggregation
from nmtgrid.layers.grid.densenet import DensePlan, Gates, Normalisation
from nmtgrid.models.config_checks import LARGEST_DEPTH, no_kernels, no_rates, too_large, too_small


@dataclasses.dataclass(frozen=True)
class PervasiveDensenetConfig:
    """What a densely connected Pervasive Attention is built from; defaults: CoNLL table 1, Max."""

    depth: int = 24
    """L, layers."""
    growth: int = 32
    """g, features that a layer adds."""
    bottleneck: int = 4
    """The 1 x 1 map before a layer's convolution makes so many times g features."""
    kernel: int = 5
    """k, cells that a filter spans along either side (odd); it never sees the target to come."""
    embedding_size: int = 128
    """d, features of an embedding of either side."""
    halve_input: bool = True
    """Whether a map to half the features stands before the dense layers."""
    halve_output: bool = True
    """Whether one stands behind them."""
    normalise_input: bool = False
    """Whether the first cells are normalised."""
    gates: Gates = "none"
    """Gated linear units: none, on the masked convolution alone (as the published count of the
    gated model says), or on both maps of a layer (as the text says)."""
    normalisation: Normalisation = "batch"
    """`batch` is the published one; with layer or none no prediction depends on its batch in
    training mode either."""
    aggregation: Aggregation = "max"
    """From a row of cells to one vector."""
    positions: Positions = "none"
    """Added to the embeddings of both sides."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Matrices that are one: none; the target embeddings and the classifier; or, of a joint
    vocabulary, the source embeddings too."""
    dropout: float = 0.2
    """On what each layer adds."""
    embedding_dropout: float = 0.2
    """On embeddings: a row or a column of the grid has one mask."""
    output_dropout: float = 0.2
    """On what the classifier reads."""
    checkpoint_activations: bool = False
    """Whether layers are computed again in the backward pass: less memory, more time."""

    @property
    def input_size(self) -> int:
        """f_0: features of the initial grid, halved or not."""
        return self.embedding_size if self.halve_input else 2 * self.embedding_size

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        return [
            *too_small(self, "depth", "growth", "bottleneck", "embedding_size"),
            *no_kernels(self, "kernel"),
            *too_large(self, LARGEST_DEPTH, "depth"),
            *no_rates(self, "dropout", "embedding_dropout", "output_dropout"),
        ]


def dense_plan(config: PervasiveDensenetConfig) -> DensePlan:
    """Return what the grid network needs to know of `config`."""
    return DensePlan(
        depth=config.depth,
        input_size=config.input_size,
        growth=config.growth,
        bottleneck=config.bottleneck,
        kernel=config.kernel,
        gates=config.gates,
        normalisation=config.normalisation,
        halve_output=config.halve_output,
        dropout=config.dropout,
        checkpoint_activations=config.checkpoint_activations,
    )


def dense_cell_flops(config: PervasiveDensenetConfig) -> float:
    """Return the FLOPs of the forward pass in one cell of the grid, aggregation included.

    Live taps alone are counted; products count as two.
    """
    plan, taps = dense_plan(config), (config.kernel // 2 + 1) * config.kernel
    middle = config.bottleneck * config.growth
    mapped = middle * (2 if config.gates == "both" else 1)
    grown = config.growth * (1 if config.gates == "none" else 2)
    total = 0
    for place in range(config.depth):
        total += 2 * (plan.input_size + place * config.growth) * mapped + 2 * taps * middle * grown
    if config.halve_output:
        total += 2 * plan.grown_size * plan.output_size
    pooled = {"max": 0, "average": 2, "attention": 4, "gated-max": 4 * plan.output_size}
    return float(total + pooled.get(config.aggregation, 4) * plan.output_size)
