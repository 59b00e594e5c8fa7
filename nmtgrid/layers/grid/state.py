"""Decoding state of a grid network, and its three runs: a whole batch, a new row, a new column.

Rows [B, T, D] of the target and columns [B, S, D] of the source meet in cells. `run_grid` is
teacher forcing; a `GridState` grows by a row for each written token (fig. 3.7) and, in streams, by
a column for each source token that arrives. Used by models/pervasive.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtgrid.base.masks import is_token
from nmtgrid.base.rows import take
from nmtgrid.layers.grid.convolution import (
    AllRows,
    DepthwiseConvolution,
    GridConvolution,
    OneRow,
    RingCache,
    RowCache,
    StepWeights,
)
from nmtgrid.layers.grid.prefix_pooling import Partial
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.static_cache import StaticPosition


class CellCache:
    """The inputs of one convolution in a stream: [R, T, S, D], of which the last `keep` rows stay.

    The buffer has zero cells above and to the left of the grid, which the filters read there, and
    grows by doubling in both directions; `keep` None keeps all rows.
    """

    def __init__(self, layer: DepthwiseConvolution, keep: int | None) -> None:
        self.above, self.left = layer.live_rows - 1, layer.live_columns - 1
        self.keep = keep
        self.rows, self.columns = self.above, self.left
        self.buffer: Tensor | None = None

    def push_row(self, row: Tensor) -> Tensor:
        """Append `row` [R, S, D] and return the window [R, live rows, S, D] of its filters."""
        self.columns = self.left + row.shape[1]
        buffer = self._with_room(row, self.rows + 1)
        buffer[:, self.rows, self.left : self.columns] = row
        self.rows += 1
        # Without the left margin: `newest_row` pads columns by itself.
        return buffer[:, self.rows - 1 - self.above : self.rows, self.left : self.columns]

    def push_column(self, column: Tensor) -> Tensor:
        """Append cells [R, n, 1, D] to the last n rows and return the window of their filters."""
        self.columns += 1
        buffer = self._with_room(column[:, 0], self.rows)
        first = self.rows - column.shape[1]
        buffer[:, first : self.rows, self.columns - 1] = column[:, :, 0]
        across = slice(self.columns - 1 - self.left, self.columns)
        return buffer[:, first - self.above : self.rows, across]

    def take_rows(self, rows: Tensor) -> CellCache:
        """Return the cache of the sentences `rows`."""
        # Counters are copied: the old cache may be read again by another branch of a search.
        taken = copy.copy(self)
        if self.buffer is not None:
            taken.buffer = self.buffer.index_select(0, rows)
        return taken

    def _with_room(self, like: Tensor, rows: int) -> Tensor:
        """Return the buffer with room for `rows` rows and the columns, zero where not written."""

        def rounded_up(count: int) -> int:
            return max(16, 1 << (2 * count - 1).bit_length())

        if self.buffer is None:
            self.buffer = like.new_zeros(
                like.shape[0], self.above + 16, rounded_up(self.columns), like.shape[-1]
            )
        height, width = self.buffer.shape[1:3]
        if rows > height and self.keep is not None and self.keep + self.above <= height // 2:
            # Rows beyond what any cell can see are dropped, so long streams stay small.
            kept = self.keep + self.above
            self.buffer[:, :kept] = self.buffer[:, self.rows - kept : self.rows].clone()
            self.rows, rows = kept, kept + 1
        if rows > height or self.columns > width:
            taller = rounded_up(rows) if rows > height else height
            wider = rounded_up(self.columns) if self.columns > width else width
            grown = self.buffer.new_zeros(len(self.buffer), taller, wider, like.shape[-1])
            grown[:, :height, :width] = self.buffer
            self.buffer = grown
        return self.buffer


@dataclasses.dataclass(frozen=True)
class GridStream:
    """State of a grid network in a stream: the last rows [R, h, D] and each layer's inputs.

    `span` is how many rows one cell sees (None: all rows are kept). Columns [R, S, D] are the
    caller's, who adds a new one first.
    """

    rows: Tensor
    caches: tuple[CellCache, ...]
    weights: StepWeights
    span: int | None

    def add_row(
        self, network: nn.Module, row: Tensor, columns: Tensor
    ) -> tuple[Tensor, GridStream]:
        """Return the features [R, S, D] of a new row [R, 1, D], and the stream with it."""
        caches = list(self.caches)
        features = network(row + columns, _NewRow(caches, self.weights, self.span))
        rows = torch.cat([self.rows, row], 1)
        # A later column makes the last `span` rows new: no cell reaches further up.
        if self.span is not None:
            rows = rows[:, -self.span :]
        return features, dataclasses.replace(self, rows=rows, caches=tuple(caches))

    def add_column(self, network: nn.Module, column: Tensor) -> Tensor | None:
        """Add a new column [R, 1, D]; return its features [R, h, D], or None without rows.

        Only the last row's are exact: those above it see rows that have been dropped.
        """
        if not self.caches:
            return None
        cells = self.rows[:, :, None] + column[:, None]
        features: Tensor = network(cells, _NewColumn(self.caches, self.weights))
        return features[:, :, 0]


class _NewRow:
    """Runs a network over a new row [R, S, D]; caches are used in call order."""

    def __init__(self, caches: list[CellCache], weights: StepWeights, span: int | None) -> None:
        self.caches, self.weights, self.span = caches, weights, span
        self._next = 0

    def convolve(self, layer: GridConvolution, features: Tensor) -> Tensor:
        """Return [R, S, D']."""
        assert isinstance(layer, DepthwiseConvolution) and layer.source_causal
        if self._next == len(self.caches):
            self.caches.append(CellCache(layer, self.span))
        window = self.caches[self._next].push_row(features)
        self._next += 1
        return layer.newest_row(window, self.weights.get(layer, features.dtype))


class _NewColumn:
    """Runs a network over a new column [R, n, 1, D] of the last n rows."""

    def __init__(self, caches: tuple[CellCache, ...], weights: StepWeights) -> None:
        self.caches, self.weights = caches, weights
        self._next = 0

    def convolve(self, layer: GridConvolution, features: Tensor) -> Tensor:
        """Return [R, n, 1, D']."""
        window = self.caches[self._next].push_column(features).permute(0, 3, 1, 2)
        self._next += 1
        # The window has its margins, so the filters need no padding and yield one column.
        prepared = self.weights.get(layer, features.dtype)
        with torch.autocast(features.device.type, enabled=False):
            convolved = F.conv2d(window, prepared, groups=features.shape[-1])
        return convolved.permute(0, 2, 3, 1)


Join = Callable[[Tensor, Tensor], Tensor]
"""Combines rows and columns, which broadcast to each other, into cells."""


@dataclasses.dataclass(frozen=True)
class GridState:
    """Decoding state: projected source columns [R, S, D], caches of each convolution.

    is_source [R, S] is None when no row is padded; `position` counts the rows written; `above` is
    the partial aggregate of all rows for each column, if predictions use it; `stream` has the
    caches while the source still arrives.

    logits [R, S] of reading belong to the row last considered; `considered` [R, S, D] are that
    row's features while no prediction has been made of them; `reader` is the state of a reader
    with a grid of its own.
    """

    columns: Tensor
    is_source: Tensor | None
    caches: tuple[RowCache | RingCache, ...]
    weights: StepWeights
    position: int | StaticPosition
    above: Partial | None = None
    stream: GridStream | None = None
    considered: Tensor | None = None
    logits: Tensor | None = None
    reader: GridState | None = None

    @classmethod
    def begin(cls, columns: Tensor, lengths: Tensor) -> GridState:
        """Return the state before the first row, for columns [R, S, D] of these lengths [R]."""
        # Without padding no step has to mask: decided once, as looking synchronises the device.
        size = columns.shape[1]
        padded = bool(size) and int(lengths.min()) < size
        return cls(columns, is_token(lengths, size) if padded else None, (), StepWeights(), 0)

    def streaming(self, span: int | None) -> GridState:
        """Return this state, of no columns yet, for a stream whose cells see `span` rows."""
        stream = GridStream(self.columns, (), self.weights, span)
        is_source = self.columns.new_zeros(self.columns.shape[:2], dtype=torch.bool)
        return dataclasses.replace(self, is_source=is_source, stream=stream)

    def add_row(
        self, network: nn.Module, row: Tensor, join: Join = torch.add
    ) -> tuple[Tensor, GridState]:
        """Return the features [R, S, D] of a new row [R, 1, D], and the state with it."""
        caches, stream, is_source = list(self.caches), self.stream, self.is_source
        if stream is None:
            is_source = None if is_source is None else is_source[..., None]
            cells = OneRow(caches, self.weights, is_source)
            features = network(join(row, self.columns), cells)
        else:
            features, stream = stream.add_row(network, row, self.columns)
        # A static position is moved by search/cuda_graphs.py, outside the recorded step.
        position = self.position + 1 if isinstance(self.position, int) else self.position
        state = dataclasses.replace(self, caches=tuple(caches), position=position, stream=stream)
        return features, state

    def to_static(self, position: StaticPosition, rows: Tensor, width: int) -> GridState | None:
        """Return the static form (layers/static_cache.py) of `rows` [R], each for itself.

        None before the first row, in streams and where more than the caches grows.
        """
        # These are tensors that change their shape or start as None: no recording could hold them.
        growing = (self.above, self.stream, self.considered)
        if not isinstance(self.position, int) or not self.caches or growing != (None, None, None):
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

    def add_column(
        self, network: nn.Module, column: Tensor, is_source: Tensor
    ) -> tuple[Tensor | None, GridState]:
        """Return a new column's [R, 1, D] features [R, h, D] in the last rows, and the state.

        Only those of the last row are exact; without rows there are none. is_source [R] is False
        where a row has no such column.
        """
        if self.stream is None or self.is_source is None:
            raise ValueError("a stream begins with a source of no columns")
        features = self.stream.add_column(network, column)
        columns = torch.cat([self.columns, column], 1)
        is_source = torch.cat([self.is_source, is_source[:, None]], 1)
        return features, dataclasses.replace(self, columns=columns, is_source=is_source)


def run_grid(
    network: nn.Module,
    rows: Tensor,
    columns: Tensor,
    target_lengths: Tensor,
    source_lengths: Tensor,
    join: Join = torch.add,
) -> tuple[Tensor, GridLayout]:
    """Return the network's output on the valid cells [cells, D] and where they lie."""
    # Position-wise layers run on valid cells only: `gain of valid cells` under twins in
    # benchmarks/results/cpu-1-thread.md says what padding would cost.
    layout = GridLayout.make(target_lengths, source_lengths)
    cells = layout.pack(join(rows[:, :, None, :], columns[:, None, :, :]))
    return network(cells, AllRows(layout)), layout
