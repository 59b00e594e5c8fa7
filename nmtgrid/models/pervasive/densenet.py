"""Pervasive Attention of the CoNLL paper: a masked DenseNet with batch norm over the grid.

Cell (i, j) of the initial grid holds [y_i x_j], Eq. (1); dense layers of full masked convolutions
re-encode the source given the target so far; pooling over the source, Eq. (2)-(3) or (8)-(9), gives
the vector that is projected to the target embeddings, Eq. (4).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmtgrid.base.config import from_attributes
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.grid.aggregation import scaled_aggregator
from nmtgrid.layers.grid.densenet import DenseConvolutionalNetwork, DensePlan
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.static_cache import Position
from nmtgrid.models.api import Report, Traits, numbered
from nmtgrid.models.cost_report import table_report
from nmtgrid.models.pervasive.densenet_config import (
    PervasiveDensenetConfig,
    dense_cell_flops,
)
from nmtgrid.models.pervasive.grid_model import GridModel, output_map
from nmtgrid.text.vocabulary import PAD


class PervasiveDensenet(GridModel):
    """The CoNLL paper's model with every option of the tables in both versions."""

    architecture = "pervasive-densenet"

    def __init__(
        self, config: PervasiveDensenetConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        size = config.embedding_size
        self.source_embedding = self._embedding(source_vocab_size)
        self.target_embedding = (
            self.source_embedding if config.tie == "all" else self._embedding(target_vocab_size)
        )
        # The order of construction is that of the random draws and of the optimiser's parameters.
        self.grid_map: nn.Linear | None = None
        if config.halve_input:
            self.grid_map = nn.Linear(2 * size, config.input_size)
            nn.init.xavier_uniform_(self.grid_map.weight)
            nn.init.zeros_(self.grid_map.bias)
        self.grid_norm = PositionNorm(config.input_size) if config.normalise_input else None
        plan = from_attributes(DensePlan, config)
        self.network: DenseConvolutionalNetwork = DenseConvolutionalNetwork(plan)
        self.aggregator = scaled_aggregator(config.aggregation, plan.output_size)
        pooled = self.aggregator.output_size
        self.output_map = nn.Identity() if config.tie == "none" else output_map(pooled, size)
        # As small as in `output_map`, so that the first loss is log V.
        own, bias = config.tie == "none", config.output_bias
        self.make_classifier(target_vocab_size, pooled, own=own, bias=bias, std=0.003)
        self.traits = Traits(
            # Filters see both sides of the source, but only the past of the target.
            source_receptive_field=1 + config.depth * (config.kernel - 1),
            target_receptive_field=1 + config.depth * (config.kernel // 2),
            aligns=True,
            batch_statistics=config.normalisation == "batch",
        )

    def report(self, source_length: float, target_length: float) -> Report:
        sides = 0.0
        if self.grid_map is not None:
            sides = float(self.grid_map.weight.numel()) * (source_length + target_length)
        cells = source_length * target_length * dense_cell_flops(self.config)
        classified = 2.0 * self.classifier().weight.numel() * target_length
        return table_report(
            "Pervasive Attention",
            3.0 * (sides + cells + classified),
            f"{self.traits.source_receptive_field} source and "
            f"{self.traits.target_receptive_field} target tokens",
            (source_length, target_length),
            (self.config.depth, self.config.depth),
            self.config.kernel,
            # With L layers of g features, each reading all before it, d = f_0 + L g.
            computation="O(L² g² |x||y| + L k² g² |x||y|)",
        )

    def stages(self) -> dict[str, nn.Module]:
        """Return the initial grid and all dense layers, whose outputs are the appended features."""
        return numbered(network=[self.network.statistics, *self.network.layers])

    def _embedding(self, count: int) -> Embedding:
        config = self.config
        return Embedding(
            count,
            config.embedding_size,
            positions=config.positions,
            # Unscaled vectors, of variance 1/d, would be negligible next to positions of size one.
            scale=config.positions != "none",
            dropout_rate=config.embedding_dropout,
            padding=PAD,
        )

    def _columns(self, source: Tensor) -> Tensor:
        """Return the source's part [B, S, D], halved separately from the target's.

        W [y; x] is W_y y + W_x x, so the concatenation of 2d features in every cell is not built.
        """
        embedded: Tensor = self.source_embedding(source)
        if self.grid_map is None:
            return embedded
        weight = self.grid_map.weight[:, embedded.shape[-1] :]
        return nn.functional.linear(embedded, weight, self.grid_map.bias)

    def _rows(self, target: Tensor, first_position: Position = 0) -> Tensor:
        """Return the target's part [B, T, D], halved separately from the source's."""
        embedded: Tensor = self.target_embedding(target, first_position)
        if self.grid_map is None:
            return embedded
        return nn.functional.linear(embedded, self.grid_map.weight[:, : embedded.shape[-1]])

    def _join(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the initial grid, Eq. (1), of rows and columns that broadcast to each other."""
        if self.grid_map is not None:
            cells = rows + columns
        else:
            # The two sides are not projected, so the input is the concatenation itself.
            grid = torch.broadcast_shapes(rows.shape[:-1], columns.shape[:-1])
            cells = torch.cat([rows.expand(*grid, -1), columns.expand(*grid, -1)], -1)
        return cells if self.grid_norm is None else self.grid_norm(cells)
