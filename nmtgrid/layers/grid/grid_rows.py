"""A network over the grid, run over a whole batch, over one more row, or over one more column.

Rows [B, T, D] of the target and columns [B, S, D] of the source meet in cells; what decoding keeps
of one network is a `GridState`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmtgrid.base.masks import is_token
from nmtgrid.base.rows import take
from nmtgrid.layers.grid.convolution import AllRows, OneRow, RowCache, StepWeights
from nmtgrid.layers.grid.prefix_pooling import Parts
from nmtgrid.layers.grid.state import GridStream
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.static_cache import RingCache
from nmtgrid.layers.static_position import Place

Join = Callable[[Tensor, Tensor], Tensor]
"""Makes cells of rows and columns that broadcast to each other."""


@dataclasses.dataclass(frozen=True)
class GridState:
    """What decoding keeps: projected source columns [R, S, D], caches of each convolution.

    is_source [R, S] is None when no row is padded; `position` counts the rows written; `above` is
    the aggregate of all rows for each column, where predictions are made of it; `stream` has the
    caches while the source still arrives.

    logits [R, S] of reading belong to the row last considered; `considered` [R, S, D] are that
    row's features while no prediction has been made of them; `reader` is the state of a reader
    with a grid of its own.
    """

    columns: Tensor
    is_source: Tensor | None
    caches: tuple[RowCache | RingCache, ...]
    weights: StepWeights
    position: int | Place
    above: Parts | None = None
    stream: GridStream | None = None
    considered: Tensor | None = None
    logits: Tensor | None = None
    reader: GridState | None = None

    @classmethod
    def begin(cls, columns: Tensor, lengths: Tensor) -> GridState:
        """Return the state before the first row, for columns [R, S, D] of these lengths [R]."""
        size = columns.shape[1]
        padded = bool(size) and int(lengths.min()) < size
        return cls(columns, is_token(lengths, size) if padded else None, (), StepWeights(), 0)

    def streaming(self, span: int | None) -> GridState:
        """Return this state, of no columns yet, for a stream whose cells see `span` rows."""
        stream = GridStream(self.columns, (), self.weights, span)
        nothing = self.columns.new_zeros(self.columns.shape[:2], dtype=torch.bool)
        return dataclasses.replace(self, is_source=nothing, stream=stream)

    def add_row(
        self, network: nn.Module, row: Tensor, join: Join = torch.add
    ) -> tuple[Tensor, GridState]:
        """Return the features [R, S, D] of a new row [R, 1, D], and the state with it."""
        caches, stream, real = list(self.caches), self.stream, self.is_source
        if stream is None:
            cells = OneRow(caches, self.weights, None if real is None else real[..., None])
            features = network(join(row, self.columns), cells)
        else:
            features, stream = stream.write(network, row, self.columns)
        # A place is moved by whoever runs the step.
        position = self.position + 1 if isinstance(self.position, int) else self.position
        state = dataclasses.replace(self, caches=tuple(caches), position=position, stream=stream)
        return features, state

    def fixed(self, place: Place, rows: Tensor, width: int) -> GridState | None:
        """Return the fixed form (layers/static_cache.py) of `rows` [R], each for itself.

        None before the first row, in streams and where more than the caches grows.
        """
        position = self.position
        grows = (self.above, self.stream, self.considered)
        if not isinstance(position, int) or not self.caches or grows != (None, None, None):
            return None
        place.move(position)
        taken = take(dataclasses.replace(self, logits=None, reader=None), rows)
        rings = (
            RingCache.of(cache, place) for cache in taken.caches if isinstance(cache, RowCache)
        )
        return dataclasses.replace(taken, caches=tuple(rings), position=place)

    def with_room(self, position: int) -> GridState:
        """Return the same state: rings have room for every position."""
        return self

    def add_column(
        self, network: nn.Module, column: Tensor, is_source: Tensor
    ) -> tuple[Tensor | None, GridState]:
        """Return a new column's [R, 1, D] features [R, h, D] in the last rows, and the state.

        Only those of the last row are exact; without rows there are none. is_source [R] is False
        where a row has no such column.
        """
        if self.stream is None or self.is_source is None:
            raise ValueError("a stream begins with a source of no columns")
        features = self.stream.read(network, column)
        state = dataclasses.replace(
            self,
            columns=torch.cat([self.columns, column], 1),
            is_source=torch.cat([self.is_source, is_source[:, None]], 1),
        )
        return features, state


def run_grid(
    network: nn.Module,
    rows: Tensor,
    columns: Tensor,
    target_lengths: Tensor,
    source_lengths: Tensor,
    join: Join = torch.add,
) -> tuple[Tensor, GridLayout]:
    """Return the network's output on the valid cells [cells, D] and where they lie."""
    layout = GridLayout.make(target_lengths, source_lengths)
    cells = layout.pack(join(rows[:, :, None, :], columns[:, None, :, :]))
    return network(cells, AllRows(layout)), layout
