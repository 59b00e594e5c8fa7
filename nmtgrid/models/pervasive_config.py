"""What a Pervasive Attention model is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.aggregation import Aggregation
from nmtgrid.layers.embedding import Positions
from nmtgrid.layers.grid_network import Accumulate, AccumulateScale, NetworkPlan, Skip
from nmtgrid.models.bounds import LARGEST_DEPTH, no_kernels, no_rates, too_large, too_small
from nmtgrid.models.first_symbol import FirstSymbol


@dataclasses.dataclass(frozen=True)
class PervasiveConfig:
    """What a Pervasive Attention model is built from; the defaults are the thesis' base model.

    depth is N in blocks (2N layers), size is d, kernels are in cells (odd). `embedding_size` None
    means d. The `printed` preset follows the text, the others what the published checkpoint does.

    With `source_causal` no filter sees to the right, so the model can go online (section 4.3.2).
    `online_features` says what a prediction is made of (fig. 4.4): the row of cells so far,
    aggregated; the last cell alone, whatever `aggregation` says; or the grid, all cells of this
    row and those above, aggregated as one.

    `reader` decides when to read on: "own" is the thesis' network over a grid of its own (4.4.2),
    as deep as `reader_depth` says (0: as the translation network); "shared" reads the translation
    network's cells, at next to no cost, and `reader_detached` keeps its gradient out of them.
    """

    depth: int = 14
    size: int = 256
    embedding_size: int | None = None
    feed_forward_size: int = 1024
    target_kernel: int = 11
    source_kernel: int = 11
    source_causal: bool = False
    online_features: Literal["cell", "row", "grid"] = "row"
    reader: Literal["none", "own", "shared"] = "none"
    reader_depth: int = 0
    reader_detached: bool = False
    skip: Skip = "residual-cumulative"
    aggregation: Aggregation = "attention"
    attention_activation: Literal["none", "tanh"] = "none"
    accumulate: Accumulate = "blocks"
    accumulate_scale: AccumulateScale = "count"
    growth: int = 48
    bottleneck: int = 4
    dense_norm: bool = True
    positions: Positions = "sinusoidal"
    scale_embeddings: bool = True
    grid_bias: bool = True
    output_map: bool = False
    output_bias: bool = True
    tie: Literal["none", "target", "all"] = "target"
    first_symbol: FirstSymbol = "begin"
    """What the target begins with: `<s>`, or `</s>` as in fairseq."""
    dropout: float = 0.2
    embedding_dropout: float = 0.2
    output_dropout: float = 0.2
    checkpoint_activations: bool = False

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
