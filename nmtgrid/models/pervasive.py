"""Pervasive Attention (chapter 3): source and target meet in a grid that a convolutional net reads.

Cell (t, j) of the grid holds what the model knows of the target prefix up to y_t and the source
around x_j. `features` runs all rows at once over the valid cells of a batch; `step` adds one row
from caches. Both go through the same modules, so neither depends on padding.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.masks import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.aggregation import aggregator
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.grid import AllRows, OneRow, RowCache, StepWeights
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.skips import NETWORKS
from nmtgrid.models.api import Classifier, Report, Sites, Step, Traits, TranslationModel
from nmtgrid.models.pervasive_config import PervasiveConfig, network_plan
from nmtgrid.models.properties import pervasive_report
from nmtgrid.text.vocabulary import PAD


@dataclasses.dataclass(frozen=True)
class PervasiveState:
    """What decoding keeps: projected source columns [R, S, D], caches of each convolution.

    is_source [R, S] is None when no row is padded; `position` counts the rows written.
    """

    columns: Tensor
    is_source: Tensor | None
    caches: tuple[RowCache, ...]
    weights: StepWeights
    position: int


class PervasiveAttention(TranslationModel):
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
        self.aggregator = aggregator(config.aggregation, config.size, config.attention_activation)
        pooled = self.aggregator.output_size
        classified = embedded if config.tie != "none" else config.size
        # Starting near zero makes the first loss log V, which lets large learning rates work.
        self.output_map = (
            _output_map(pooled, classified)
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
        self.traits = Traits(
            source_receptive_field=1 + config.depth * (config.source_kernel - 1),
            target_receptive_field=1 + config.depth * (config.target_kernel // 2),
            aligns=True,
        )

    def features(self, batch: Batch, sites: Sites) -> Tensor:
        """Return [M, D]: the pooled features of each site's row of the grid."""
        if sites.reads is not None or sites.depth is not None:
            raise NotImplementedError(
                "the offline model reads the whole source and has one exit; it serves no other site"
            )
        pooled = self._pool(*self._run(batch))
        places = sites.sentence * pooled.shape[1] + sites.position
        return self._finish(pooled.flatten(0, 1).index_select(0, places))

    def classifier(self) -> Classifier:
        """Return the output map, tied to the target embeddings unless `tie` is none."""
        weight = self.target_embedding.weight if self.output_weight is None else self.output_weight
        return Classifier(weight, self.output_bias)

    def begin(self, source: Tensor, source_lengths: Tensor) -> PervasiveState:
        """Return the state before the first row, for source [R, S] and lengths [R]."""
        real = is_token(source_lengths, source.shape[1])
        padded = int(source_lengths.min()) < source.shape[1]
        return PervasiveState(self._columns(source), real if padded else None, (), StepWeights(), 0)

    def step(self, tokens: Tensor, state: PervasiveState, *, align: bool = False) -> Step:
        """Add the row of the last written tokens [R] and return logits [R, V]."""
        row = self._rows(tokens[:, None], state.position)
        real = state.is_source
        cells = OneRow(list(state.caches), state.weights, None if real is None else real[..., None])
        features = self.network(row + state.columns, cells)
        pooled = self.aggregator(features, real)
        state = dataclasses.replace(state, caches=tuple(cells.caches), position=state.position + 1)
        alignment = self.aggregator.weights(features, real) if align else None
        return Step(self.classify(self._finish(pooled)), state, alignment)

    @torch.no_grad()
    def alignments(self, batch: Batch, kind: Literal["weights", "energies"] = "weights") -> Tensor:
        """Return [B, T, S]: by-product alignments of the true target, zero on padding.

        "weights" are attention weights, Eq. (3.22), or the shares of channels that max-pooling
        took from each source token, Eq. (3.23); "energies" what each source token adds to the
        score of the true token, CoNLL Eq. (5)-(7).
        """
        features, real = self._grid(*self._run(batch))
        if kind == "weights":
            scores = self.aggregator.weights(features, real)
        else:
            held = self.classifier()
            readout = held.weight[batch.target_output]
            if isinstance(self.output_map, nn.Linear):
                readout = readout @ self.output_map.weight
            scores = self.aggregator.contributions(features.to(readout.dtype), real, readout)
        present = batch.is_target[:, :, None] & batch.is_source[:, None, :]
        return scores.float().masked_fill(~present, 0.0)

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
        return Embedding(
            count,
            size,
            positions=self.config.positions,
            scale=self.config.scale_embeddings,
            dropout_rate=self.config.embedding_dropout,
            padding=PAD,
        )

    def _columns(self, source: Tensor) -> Tensor:
        """Return [B, S, D]: the source's part of Eq. (3.1), with the bias.

        W_0 [E y; E x] is W_y E y + W_x E x: the two sides are projected apart and added in the
        grid, so the concatenation of 2d features in every cell is never built.
        """
        embedded = self.source_embedding(source)
        weight = self.grid_map[:, embedded.shape[-1] :]
        return nn.functional.linear(embedded, weight, self.grid_bias)

    def _rows(self, target: Tensor, first_position: int = 0) -> Tensor:
        """Return [B, T, D]: the target's part of Eq. (3.1)."""
        embedded = self.target_embedding(target, first_position)
        return nn.functional.linear(embedded, self.grid_map[:, : embedded.shape[-1]])

    def _run(self, batch: Batch) -> tuple[Tensor, GridLayout]:
        """Return the network's output on the valid cells [cells, D] and where they lie."""
        layout = GridLayout.make(batch.target_lengths, batch.source_lengths)
        rows, columns = self._rows(batch.target_input), self._columns(batch.source)
        cells = layout.pack(rows[:, :, None, :] + columns[:, None, :, :])
        return self.network(cells, AllRows(layout)), layout

    def _grid(self, features: Tensor, layout: GridLayout) -> tuple[Tensor, Tensor | None]:
        """Return padded cells [B, T, S, D] and which columns are real [B, 1, S]."""
        real = None
        if not layout.is_full:
            real = is_token(layout.source_lengths, layout.source_size)[:, None, :]
        return layout.pad(features), real

    def _pool(self, features: Tensor, layout: GridLayout) -> Tensor:
        """Return [B, T, D'] aggregated features; rows of padding hold anything."""
        pooled: Tensor = self.aggregator(*self._grid(features, layout))
        return pooled

    def _finish(self, pooled: Tensor) -> Tensor:
        """Return what the classifier reads, for aggregated features [..., D']."""
        mapped: Tensor = self.output_map(pooled)
        return dropout(mapped, self.config.output_dropout, self.training)


def build(config: Any, source_vocab_size: int, target_vocab_size: int) -> PervasiveAttention:
    """Return a new model with drawn weights."""
    return PervasiveAttention(config, source_vocab_size, target_vocab_size)


def _output_map(input_size: int, output_size: int) -> nn.Linear:
    made = nn.Linear(input_size, output_size)
    nn.init.normal_(made.weight, std=0.003)
    nn.init.zeros_(made.bias)
    return made
