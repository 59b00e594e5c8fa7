"""Decoding state of a grid network, which runs on a whole batch, a new row or a new column.

Rows [B, T, D] of the target and columns [B, S, D] of the source are combined into cells. `run_grid`
is teacher forcing; a `GridState` grows by a row for each written token (fig. 3.7) and, in streams,
by a column for each source token that arrives. Used by models/pervasive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import host_values, is_token, take
from nmtgrid.layers.grid.convolution import (
    AllRows,
    CellCache,
    GridCache,
    OneColumn,
    OneRow,
    RingCache,
    RowCache,
    StepWeights,
)
from nmtgrid.layers.grid.prefix_pooling import Partial
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.static_cache import StaticPosition

Join = Callable[[Tensor, Tensor], Tensor]
"""Combines rows and columns, which broadcast to each other, into cells."""


@dataclasses.dataclass(frozen=True)
class GridState:
    """Decoding state: projected source columns [R, S, D], caches of each convolution.

    is_source [R, S] is None when no row is padded; `position` counts the rows written; `above` is
    the partial aggregate of all rows for each column, if predictions use it. While the source still
    arrives, `rows` [R, h, D] are the last ones, of which a cell sees `span` (None: all).

    `logits` [R, S] of READ belong to the row last considered; `considered` [R, S, D] are the
    features of that row as long as no final prediction has been made from them, and `partial` the
    aggregates of its prefixes; `reader` is the state of a reader with its own grid.
    """

    columns: Tensor
    is_source: Tensor | None
    caches: tuple[GridCache, ...]
    weights: StepWeights
    position: int | StaticPosition
    above: Partial | None = None
    rows: Tensor | None = None
    span: int | None = None
    considered: Tensor | None = None
    partial: Partial | None = None
    logits: Tensor | None = None
    reader: GridState | None = None

    @classmethod
    def begin(cls, columns: Tensor, lengths: Tensor) -> GridState:
        """Return the state before the first row, for columns [R, S, D] of these lengths [R]."""
        # Without padding no step has to mask. Checked only once, since this may synchronise.
        size = columns.shape[1]
        padded = bool(size) and min(host_values(lengths)) < size
        return cls(columns, is_token(lengths, size) if padded else None, (), StepWeights(), 0)

    def streaming(self, span: int | None) -> GridState:
        """Return this state, without columns yet, for a stream whose cells see `span` rows."""
        is_source = self.columns.new_zeros(self.columns.shape[:2], dtype=torch.bool)
        return dataclasses.replace(self, is_source=is_source, rows=self.columns, span=span)

    def add_row(
        self, network: nn.Module, row: Tensor, join: Join = torch.add
    ) -> tuple[Tensor, GridState]:
        """Return the features [R, S, D] of a new row [R, 1, D], and the state with it."""
        caches, rows, is_source = list(self.caches), self.rows, self.is_source
        if rows is None:
            is_source = None if is_source is None else is_source[..., None]
            cells = OneRow(caches, self.weights, is_source)
        else:
            # Filters reach only to the left, so in a stream no real column reads padding after it.
            cells = OneRow(caches, self.weights, None, lambda layer: CellCache(layer, self.span))
            # A later column is computed for the last `span` rows: no cell reaches further up.
            rows = torch.cat([rows, row], 1)
            rows = rows if self.span is None else rows[:, -self.span :]
        features = network(join(row, self.columns), cells)
        # A static position is advanced by search/cuda_graphs.py, outside the recorded step.
        position = self.position + 1 if isinstance(self.position, int) else self.position
        state = dataclasses.replace(self, caches=tuple(caches), position=position, rows=rows)
        return features, state

    def add_column(
        self, network: nn.Module, column: Tensor, is_source: Tensor
    ) -> tuple[Tensor | None, GridState]:
        """Return the features [R, h, D] of a new `column` [R, 1, D] in the last rows, and a state.

        Only the features of the last row are exact, since the rows above it would read dropped
        rows; without rows they are None. is_source [R] is False for rows without such a column.
        """
        if self.rows is None or self.is_source is None:
            raise ValueError("a stream begins with a source of no columns")
        features = None
        if self.caches:
            cells = self.rows[:, :, None] + column[:, None]
            features = network(cells, OneColumn(self.caches, self.weights))[:, :, 0]
        columns = torch.cat([self.columns, column], 1)
        is_source = torch.cat([self.is_source, is_source[:, None]], 1)
        return features, dataclasses.replace(self, columns=columns, is_source=is_source)

    def to_static(self, position: StaticPosition, rows: Tensor, width: int) -> GridState | None:
        """Return the static form (layers/static_cache.py) of `rows` [R], each for itself.

        None before the first row, in streams, and if more than the caches grows.
        """
        # Tensors that change their shape or start as None cannot be part of a recording.
        growing = self.above, self.rows, self.considered
        grows = any(value is not None for value in growing)
        if not isinstance(self.position, int) or not self.caches or grows:
            return None
        position.move(self.position)
        taken = take(dataclasses.replace(self, logits=None, reader=None), rows)
        rings = tuple(
            RingCache.of(cache, position) for cache in taken.caches if isinstance(cache, RowCache)
        )
        return dataclasses.replace(taken, caches=rings, position=position)

    def with_room(self, position: int) -> GridState:
        """Return this state: rings have room for every position."""
        return self


def run_grid(
    network: nn.Module,
    rows: Tensor,
    columns: Tensor,
    target_lengths: Tensor,
    source_lengths: Tensor,
    join: Join = torch.add,
) -> tuple[Tensor, GridLayout]:
    """Return the network's output on the valid cells [cells, D] and their layout."""
    # Position-wise layers run on valid cells only: `gain of valid cells` under twins in
    # benchmarks/results/cpu-1-thread.md says what padding would cost.
    layout = GridLayout.make(target_lengths, source_lengths)
    cells = layout.pack(join(rows[:, :, None, :], columns[:, None, :, :]))
    return network(cells, AllRows(layout)), layout
