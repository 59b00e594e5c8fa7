"""What the models over the source-target grid share: pooling, caches, by-product alignments.

A subclass makes rows [B, T, D] of the target and columns [B, S, D] of the source, and says how the
two join in a cell. `features` runs all rows at once over the valid cells of a batch; `step` adds
one row from caches. Both go through the same modules, so neither depends on padding.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.masks import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.aggregation import Aggregator
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.grid import AllRows, OneRow, RowCache, StepWeights
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.models.api import Classifier, Sites, Step, TranslationModel


@dataclasses.dataclass(frozen=True)
class GridState:
    """What decoding keeps: projected source columns [R, S, D], caches of each convolution.

    is_source [R, S] is None when no row is padded; `position` counts the rows written.
    """

    columns: Tensor
    is_source: Tensor | None
    caches: tuple[RowCache, ...]
    weights: StepWeights
    position: int


class GridModel(TranslationModel):
    """A network over the grid, pooled over the source; subclasses set the parts named here."""

    source_embedding: Embedding
    target_embedding: Embedding
    network: nn.Module
    aggregator: Aggregator
    output_map: nn.Module
    output_weight: nn.Parameter | None
    output_bias: nn.Parameter | None

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

    def begin(self, source: Tensor, source_lengths: Tensor) -> GridState:
        """Return the state before the first row, for source [R, S] and lengths [R]."""
        real = is_token(source_lengths, source.shape[1])
        padded = int(source_lengths.min()) < source.shape[1]
        return GridState(self._columns(source), real if padded else None, (), StepWeights(), 0)

    def step(self, tokens: Tensor, state: GridState, *, align: bool = False) -> Step:
        """Add the row of the last written tokens [R] and return logits [R, V]."""
        row = self._rows(tokens[:, None], state.position)
        real = state.is_source
        cells = OneRow(list(state.caches), state.weights, None if real is None else real[..., None])
        features = self.network(self._join(row, state.columns), cells)
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

    def _columns(self, source: Tensor) -> Tensor:
        """Return [B, S, D]: the source's part of the grid."""
        raise NotImplementedError

    def _rows(self, target: Tensor, first_position: int = 0) -> Tensor:
        """Return [B, T, D]: the target's part of the grid."""
        raise NotImplementedError

    def _join(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the cells of rows and columns that broadcast to each other."""
        return rows + columns

    def _run(self, batch: Batch) -> tuple[Tensor, GridLayout]:
        """Return the network's output on the valid cells [cells, D] and where they lie."""
        layout = GridLayout.make(batch.target_lengths, batch.source_lengths)
        rows, columns = self._rows(batch.target_input), self._columns(batch.source)
        cells = layout.pack(self._join(rows[:, :, None, :], columns[:, None, :, :]))
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


def output_map(input_size: int, output_size: int) -> nn.Linear:
    """Return the map before the classifier, so small that the first loss is log V."""
    made = nn.Linear(input_size, output_size)
    nn.init.normal_(made.weight, std=0.003)
    nn.init.zeros_(made.bias)
    return made


def grid_embedding(config: Any, count: int, size: int, *, scale: bool, padding: int) -> Embedding:
    """Return embeddings as `config` says: `positions` and `embedding_dropout`."""
    return Embedding(
        count,
        size,
        positions=config.positions,
        scale=scale,
        dropout_rate=config.embedding_dropout,
        padding=padding,
    )
