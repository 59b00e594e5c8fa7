"""The common base of models over the source-target grid: pooling, caches, alignments.

A subclass computes rows [B, T, D] of the target and columns [B, S, D] of the source, and how the
two are combined in a cell. `features` runs all rows at once over the valid cells of a batch; `step`
adds one row from caches. Both use the same modules, so neither depends on padding.

A network that is causal in the source can predict at any cell (section 4.3.2): cell (t, j) depends
on the first j columns only, whatever path led to it.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.grid.aggregation import Aggregator
from nmtgrid.layers.grid.prefix_pooling import Partial, prefix_pooling
from nmtgrid.layers.grid.state import GridState, run_grid
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.probes import ProbePoint
from nmtgrid.layers.static_cache import Position
from nmtgrid.models.api import AlignmentKind, PredictionSites, Step, TranslationModel, check_reads


class GridModel(TranslationModel):
    """A network over the grid, pooled over the source; subclasses set these attributes."""

    source_embedding: Embedding
    network: nn.Module
    aggregator: Aggregator
    output_map: nn.Module
    online_features: Literal["cell", "row", "grid"] = "row"

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        """Return the features [M, D] of each site's row, pooled over the source read so far.

        Raises ConfigError for reads if the network sees the source in both directions.
        """
        self._check_sites(batch, sites)
        return self._at_sites(*self._run(batch), sites)

    def begin(self, source: Tensor, source_lengths: Tensor) -> GridState:
        return GridState.begin(self._columns(source), source_lengths)

    def step(
        self, tokens: Tensor, state: GridState, *, reads: Tensor | None = None, align: bool = False
    ) -> Step:
        if reads is not None and not self.traits.prefix_safe:
            raise self.refusal()
        # Without reads all real columns are visible. The caches always hold the row for all
        # columns, so a later step may see more of them.
        features, state = self._write(tokens, state)
        visible = state.is_source if reads is None else is_token(reads, features.shape[1])
        if self.online_features == "grid":
            above, width = self._partial(features, state.above), features.shape[1]
            shown = torch.full_like(tokens, width) if visible is None else visible.sum(-1)
            pooled = self._pool_prefixes(above, shown, state)
            state = dataclasses.replace(state, above=above)
        else:
            pooled = self.aggregator(features, visible)
        # With `grid` features this is the newest row's alignment: those of earlier rows are not
        # cached.
        alignment = self.aggregator.weights(features, visible) if align else None
        return Step(self.classify(self._finish(pooled)), state, alignment)

    def feed(self, tokens: Tensor, state: GridState) -> GridState:
        if not self.traits.prefix_safe:
            raise self.refusal()
        features, state = self._write(tokens, state)
        return dataclasses.replace(state, considered=features)

    def propose(
        self,
        state: GridState,
        reads: Tensor,
        *,
        rows: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        assert state.considered is not None, "no row has been fed"
        features = state.considered
        if state.partial is None:
            # All prefixes are aggregated at once, so that a READ only looks up the next column.
            state = dataclasses.replace(state, partial=self._partial(features, state.above))
        assert state.partial is not None
        pooled = self._pool_prefixes(state.partial, reads, state, rows)
        alignment = None
        if align:
            chosen = features if rows is None else features[rows]
            alignment = self.aggregator.weights(chosen, is_token(reads, features.shape[1]))
        return Step(self.classify(self._finish(pooled)), state, alignment)

    def accept(self, state: GridState) -> GridState:
        assert state.considered is not None, "no row has been fed"
        above = state.partial if self.online_features == "grid" else None
        return dataclasses.replace(state, considered=None, partial=None, above=above)

    @torch.no_grad()
    def alignments(self, batch: Batch, kind: AlignmentKind = "weights") -> Tensor:
        """Return alignments [B, T, S] of the true target as a by-product, zero on padding.

        "weights" are attention weights, Eq. (3.22), or the shares of channels that max-pooling
        took from each source token, Eq. (3.23); "energies" are the contributions of the source
        tokens to the score of the true token, CoNLL Eq. (5)-(7). If predictions use all rows so
        far, the alignments are those of the newest row.
        """
        features, real = self._grid(*self._run(batch))
        if kind == "weights":
            scores = self.aggregator.weights(features, real)
        else:
            classifier = self.classifier()
            # The output projection is linear, so a column's share of the true token's score is its
            # share of the pooled vector times the token's row of classifier and projection.
            readout = classifier.weight[batch.target_output]
            if isinstance(self.output_map, nn.Linear):
                readout = readout @ self.output_map.weight
            scores = self.aggregator.contributions(features.to(readout.dtype), real, readout)
        present = batch.is_target[:, :, None] & batch.is_source[:, None, :]
        return scores.float().masked_fill(~present, 0.0)

    def points(self) -> dict[str, ProbePoint]:
        """Return both embeddings, the points of the network, and those between it and the logits.

        "output.network" is the network's output, "output.pooled" its aggregate over the source.
        """
        points = {
            "embedding.target": ProbePoint(self.target_embedding),
            "embedding.source": ProbePoint(self.source_embedding),
            **self._network_points(),
            "output.network": ProbePoint(self.network),
            "output.pooled": ProbePoint(self.output_map, side="input"),
        }
        if isinstance(self.output_map, nn.Linear):
            points["output.mapped"] = ProbePoint(self.output_map)
        return points

    def _network_points(self) -> dict[str, ProbePoint]:
        return super().points()

    def _columns(self, source: Tensor) -> Tensor:
        raise NotImplementedError

    def _rows(self, target: Tensor, first_position: Position = 0) -> Tensor:
        """Return the target's part [B, T, D] of the grid."""
        raise NotImplementedError

    def _join(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the cells of rows and columns that broadcast to each other."""
        return rows + columns

    def check_prefixes(self) -> None:
        super().check_prefixes()
        if self.online_features != "cell":
            prefix_pooling(self.aggregator)

    def _check_sites(self, batch: Batch, sites: PredictionSites) -> None:
        if sites.depth is not None:
            raise self.no_exits()
        if sites.reads is not None and not self.traits.prefix_safe:
            raise self.refusal()
        check_reads(batch, sites)

    def _run(self, batch: Batch) -> tuple[Tensor, GridLayout]:
        sides = self._rows(batch.target_input), self._columns(batch.source)
        lengths = batch.target_lengths, batch.source_lengths
        return run_grid(self.network, *sides, *lengths, self._join)

    def _write(self, tokens: Tensor, state: GridState) -> tuple[Tensor, GridState]:
        """Return the features [R, S, D] of the row of `tokens` [R], and the state with it.

        The features of a row that was considered before are already in the state.
        """
        if state.considered is not None:
            return state.considered, dataclasses.replace(state, considered=None)
        row = self._rows(tokens[:, None], state.position)
        return state.add_row(self.network, row, self._join)

    def _at_sites(self, features: Tensor, layout: GridLayout, sites: PredictionSites) -> Tensor:
        """Return the classifier's input [M, D'] at the sites, for features [cells, D]."""
        # Whole rows are aggregated directly, which is cheaper than a scan over all prefixes
        # (benchmarks/training_speed.py measures the first, the online objectives use the second).
        if sites.reads is not None or self.online_features == "grid":
            return self._finish(self._pool_sites(features, layout, sites))
        pooled = self.aggregator(*self._grid(features, layout))
        rows = sites.sentence * pooled.shape[1] + sites.position
        return self._finish(pooled.flatten(0, 1).index_select(0, rows))

    def _grid(self, features: Tensor, layout: GridLayout) -> tuple[Tensor, Tensor | None]:
        """Return padded cells [B, T, S, D] and which columns are real [B, 1, S]."""
        real = None  # no mask at all for a batch without padding: the kernels are faster without
        if not layout.is_full:
            real = is_token(layout.source_lengths, layout.source_size)[:, None, :]
        return layout.pad(features), real

    def _pool_sites(self, features: Tensor, layout: GridLayout, sites: PredictionSites) -> Tensor:
        """Return the features [cells, D] aggregated over the area of each site, [M, D']."""
        lengths = layout.source_lengths[sites.sentence]
        reads = lengths if sites.reads is None else sites.reads
        if self.online_features == "cell":
            # Valid cells lie sentence after sentence, row after row of |x| cells, without padding.
            start = layout.offsets[sites.sentence] + sites.position * lengths
            return features.index_select(0, start + reads - 1)
        # The aggregates of all prefixes come from one scan along the source (and, for "grid", one
        # along the target); each site then picks its cell. Padding comes after the last read of
        # every site, so the scan needs no mask.
        prefix_form = prefix_pooling(self.aggregator)
        parts, counts = prefix_form.scan_source(layout.pad(features)), reads
        if self.online_features == "grid":
            parts, counts = prefix_form.scan_target(parts), reads * (sites.position + 1)
        rows = sites.sentence * layout.target_size + sites.position
        cells = rows * layout.source_size + reads - 1
        pooled = tuple(part.flatten(0, 2).index_select(0, cells) for part in parts)
        return prefix_form.finalize(pooled, counts)

    def _partial(self, features: Tensor, above: Partial | None) -> Partial:
        """Return the aggregates [R, S, .] of each prefix of the newest row [R, S, D].

        With `grid` features they cover all rows so far; `above` are those of the rows before it.
        """
        if self.online_features == "cell":
            return (features,)
        # `parts` stay mergeable (sums, maxima, not yet divided by a count), so the cache of the
        # rows above has the size of one row.
        prefix_form = prefix_pooling(self.aggregator)
        parts = prefix_form.scan_source(features)
        return parts if above is None else prefix_form.combine(above, parts)

    def _pool_prefixes(
        self, partial: Partial, reads: Tensor, state: GridState, rows: Tensor | None = None
    ) -> Tensor:
        """Return the aggregates [R', D'] of the first reads [R'] columns of `rows` (None: all)."""
        chosen = torch.arange(len(reads), device=reads.device) if rows is None else rows
        pooled = tuple(part[chosen, reads - 1] for part in partial)
        if self.online_features == "cell":
            return pooled[0]
        assert isinstance(state.position, int)
        counts = reads * state.position if self.online_features == "grid" else reads
        return prefix_pooling(self.aggregator).finalize(pooled, counts)

    def _finish(self, pooled: Tensor) -> Tensor:
        """Return the classifier's input for aggregated features [..., D']."""
        mapped: Tensor = self.output_map(pooled)
        return dropout(mapped, self.config.output_dropout, self.training)


def output_map(input_size: int, output_size: int) -> nn.Linear:
    """Return a linear map before a classifier, so small that the first loss is log V."""
    projection = nn.Linear(input_size, output_size)
    nn.init.normal_(projection.weight, std=0.003)
    nn.init.zeros_(projection.bias)
    return projection
