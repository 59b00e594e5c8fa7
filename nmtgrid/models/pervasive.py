"""Pervasive Attention (chapter 3): source and target meet in a grid that a convolutional net reads.

Cell (t, j) of the grid holds what the model knows of the target prefix up to y_t and the source
around x_j. `features` runs all rows at once over the valid cells of a batch; `step` adds one row
from caches. Both go through the same modules, so neither depends on padding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from nmtgrid.layers.aggregation import LastCell, aggregator
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.grid_stream import GridStream
from nmtgrid.layers.running import running
from nmtgrid.layers.skips import NETWORKS
from nmtgrid.models.api import Report, Traits
from nmtgrid.models.grid_model import GridModel, GridState, grid_embedding, output_map
from nmtgrid.models.pervasive_config import PervasiveConfig, network_plan
from nmtgrid.models.properties import pervasive_report
from nmtgrid.text.vocabulary import PAD


class PervasiveAttention(GridModel):
    """The thesis' model with every skip connection, aggregator and option of its tables."""

    architecture = "pervasive"

    def __init__(
        self, config: PervasiveConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        embedded = config.embedding_size or config.size
        self.source_embedding = self._embedding(source_vocab_size, embedded)
        self.target_embedding = (
            self.source_embedding
            if config.tie == "all"
            else self._embedding(target_vocab_size, embedded)
        )
        self.grid_map = nn.Parameter(torch.empty(config.size, 2 * embedded))
        self.grid_bias = nn.Parameter(torch.zeros(config.size)) if config.grid_bias else None
        nn.init.xavier_uniform_(self.grid_map)
        self.network = NETWORKS[config.skip](network_plan(config))
        self.area = config.online_features
        self.aggregator = (
            LastCell(config.size)
            if self.area == "cell"
            else aggregator(config.aggregation, config.size, config.attention_activation)
        )
        pooled = self.aggregator.output_size
        classified = embedded if config.tie != "none" else config.size
        # The map starts near zero: the first loss is log V, which lets large learning rates work.
        self.output_map = (
            output_map(pooled, classified)
            if config.output_map or pooled != classified
            else nn.Identity()
        )
        self.output_weight = (
            nn.Parameter(torch.randn(target_vocab_size, classified) * classified**-0.5)
            if config.tie == "none"
            else None
        )
        self.output_bias = (
            nn.Parameter(torch.zeros(target_vocab_size)) if config.output_bias else None
        )
        # Nothing is to the right of a cell that is the last one read.
        one_side = config.source_causal or self.area == "cell"
        seen = config.source_kernel // 2 if one_side else config.source_kernel - 1
        self.traits = Traits(
            prefix_safe=config.source_causal,
            every_cell=config.source_causal,
            source_receptive_field=1 + config.depth * seen,
            target_receptive_field=1 + config.depth * (config.target_kernel // 2),
            aligns=True,
        )

    def begin(self, source: Tensor, source_lengths: Tensor) -> GridState:
        """Return the state before the first row; a source of no columns begins a stream."""
        state = super().begin(source, source_lengths)
        if source.shape[1] or not self.config.source_causal:
            return state
        # Where a prediction is made of all rows, a new column is wanted in all of them.
        span = None if self.area == "grid" else self.traits.target_receptive_field
        stream = GridStream(state.columns, (), state.weights, span)
        return dataclasses.replace(state, is_source=source.bool(), stream=stream)

    def extend(self, tokens: Tensor, state: GridState) -> GridState:
        """Return the state with one more source column [R]; `<pad>` adds nothing to its row."""
        if not self.config.source_causal:
            raise self.refusal()
        if state.stream is None or state.is_source is None:
            raise ValueError("a stream begins with a source of no columns")
        column = self._columns(tokens[:, None], state.columns.shape[1])
        features = state.stream.read(self.network, column)
        above = state.above
        if above is not None and features is not None:
            running_form = running(self.aggregator)
            new = tuple(part[:, -1:] for part in running_form.scan(features))
            merged = running_form.merge(tuple(part[:, -1:] for part in above), new)
            above = tuple(torch.cat(pair, 1) for pair in zip(above, merged, strict=True))
        return dataclasses.replace(
            state,
            columns=torch.cat([state.columns, column], 1),
            is_source=torch.cat([state.is_source, (tokens != PAD)[:, None]], 1),
            above=above,
        )

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths."""
        return pervasive_report(
            self.config,
            self.traits,
            self.classifier().weight.shape[0],
            source_length,
            target_length,
        )

    def _embedding(self, count: int, size: int) -> Embedding:
        scale = self.config.scale_embeddings
        return grid_embedding(self.config, count, size, scale=scale, padding=PAD)

    def _columns(self, source: Tensor, first_position: int = 0) -> Tensor:
        """Return [B, S, D]: the source's part of Eq. (3.1), with the bias.

        W_0 [E y; E x] is W_y E y + W_x E x: the two sides are projected apart and added in the
        grid, so the concatenation of 2d features in every cell is never built.
        """
        embedded = self.source_embedding(source, first_position)
        weight = self.grid_map[:, embedded.shape[-1] :]
        return nn.functional.linear(embedded, weight, self.grid_bias)

    def _rows(self, target: Tensor, first_position: int = 0) -> Tensor:
        """Return [B, T, D]: the target's part of Eq. (3.1)."""
        embedded = self.target_embedding(target, first_position)
        return nn.functional.linear(embedded, self.grid_map[:, : embedded.shape[-1]])


def build(config: Any, source_vocab_size: int, target_vocab_size: int) -> PervasiveAttention:
    """Return a new model with drawn weights."""
    return PervasiveAttention(config, source_vocab_size, target_vocab_size)
