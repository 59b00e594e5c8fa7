"""What a Pervasive Attention model is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.embedding import Positions
from nmtgrid.layers.grid.aggregation import Aggregation
from nmtgrid.layers.grid.grid_network import Accumulate, AccumulateScale, NetworkPlan, Skip
from nmtgrid.models.config_checks import LARGEST_DEPTH, no_kernels, no_rates, too_large, too_small
from nmtgrid.models.first_symbol import FirstSymbol


@dataclasses.dataclass(frozen=True)
class PervasiveConfig:
    """What a Pervasive Attention model is built from; the defaults are the thesis' base model.

    The `printed` preset follows the text, the others what the published checkpoint does.
    """

    depth: int = 14
    """N, blocks of the network over the grid: 2N layers."""
    size: int = 256
    """d, features of a cell."""
    embedding_size: int | None = None
    """Features of an embedding; none: `size`."""
    feed_forward_size: int = 1024
    """d_FF, features between the two maps of a block."""
    target_kernel: int = 11
    """Cells that a filter spans along the target (odd), those to come counted, which it never
    sees."""
    source_kernel: int = 11
    """Cells that a filter spans along the source (odd)."""
    source_causal: bool = False
    """Whether no filter sees to the right, so that the model can go online (section 4.3.2)."""
    online_features: Literal["cell", "row", "grid"] = "row"
    """What a prediction is made of (fig. 4.4): the row of cells so far, aggregated; the last cell
    alone, whatever `aggregation` says; or the grid, all cells of this row and those above,
    aggregated as one."""
    reader: Literal["none", "own", "shared"] = "none"
    """What decides when to read on: `own`, the thesis' network over a grid of its own (4.4.2), or
    `shared`, which reads the translation network's cells, at next to no cost."""
    reader_depth: int = 0
    """Blocks of a reader of its own; 0: as many as the translation network has."""
    reader_detached: bool = False
    """Whether a shared reader's gradient stays out of the translation network."""
    skip: Skip = "residual-cumulative"
    """How layers are connected (section 3.2.4, table 3.4)."""
    aggregation: Aggregation = "attention"
    """From a row of cells to one vector (section 3.2.5, table 3.5)."""
    attention_activation: Literal["none", "tanh"] = "none"
    """Between the two maps by which cells are scored: nothing, as printed, or tanh."""
    accumulate: Accumulate = "blocks"
    """What residual-cumulative sums up: all 2N + 1 layers' outputs, as printed, or one for each
    block."""
    accumulate_scale: AccumulateScale = "count"
    """What that sum is divided by: the square root of its number of terms, as printed, or that
    number."""
    growth: int = 48
    """g, features that a layer adds (skip dense)."""
    bottleneck: int = 4
    """The layer's 1 x 1 map makes so many times g features (skip dense)."""
    dense_norm: bool = True
    """Whether a dense layer normalises what it reads."""
    positions: Positions = "sinusoidal"
    """Added to the embeddings of both sides."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the square root of their size."""
    grid_bias: bool = True
    """Whether the first cells have a bias."""
    output_map: bool = False
    """Whether a map stands before the classifier even where sizes agree without one."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Matrices that are one: none; the target embeddings and the classifier; or, of a joint
    vocabulary, the source embeddings too."""
    first_symbol: FirstSymbol = "begin"
    """What the target begins with: `<s>`, or `</s>` as in fairseq."""
    dropout: float = 0.2
    """On what each layer adds."""
    embedding_dropout: float = 0.2
    """On embeddings: a row or a column of the grid has one mask."""
    output_dropout: float = 0.2
    """On what the classifier reads."""
    checkpoint_activations: bool = False
    """Whether layers are computed again in the backward pass: less memory, more time."""

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        found = [
            *too_small(self, "depth", "size", "feed_forward_size", "growth", "bottleneck"),
            *no_kernels(self, "target_kernel", "source_kernel"),
            *too_large(self, LARGEST_DEPTH, "depth", "reader_depth"),
            *no_rates(self, "dropout", "embedding_dropout", "output_dropout"),
            *too_small(self, "embedding_size"),
        ]
        if self.reader_depth < 0:
            found.append(
                "`model.reader_depth` must be at least 1, or 0 for that of the translation "
                f"network, but is {self.reader_depth}."
            )
        if self.reader != "none" and not self.source_causal:
            found.append(
                f"`model.reader={self.reader}` needs `model.source_causal=true`: a reader knows "
                "only what has been read."
            )
        return found


def network_plan(config: PervasiveConfig, depth: int | None = None) -> NetworkPlan:
    """Return what a grid network needs to know of `config`; it may have a depth of its own."""
    return NetworkPlan(
        depth=config.depth if depth is None else depth,
        size=config.size,
        feed_forward_size=config.feed_forward_size,
        target_kernel=config.target_kernel,
        source_kernel=config.source_kernel,
        source_causal=config.source_causal,
        dropout=config.dropout,
        accumulate=config.accumulate,
        accumulate_scale=config.accumulate_scale,
        growth=config.growth,
        bottleneck=config.bottleneck,
        normalise=config.dense_norm,
        checkpoint_activations=config.checkpoint_activations,
    )
