"""A network over the grid, run over a whole batch, over one more row, or over one more column.

Rows [B, T, D] of the target and columns [B, S, D] of the source meet in cells; what decoding keeps
of one network is a `GridState`.
"""

from __future__ import annotations

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
    RowCache,
    StepWeights,
)
from nmtgrid.layers.grid.prefix_pooling import Parts
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.static_cache import RingCache
from nmtgrid.layers.static_position import StaticPosition


class CellCache:
    """The inputs of one convolution: rows [R, T, S, D], of which the last `keep` are sure to stay.

    The buffer has zero cells above and to the left of the grid, as the filters want them, and
    grows in place; `keep` None keeps all rows.
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
        taken = CellCache.__new__(CellCache)
        taken.__dict__.update(self.__dict__)
        if self.buffer is not None:
            taken.buffer = self.buffer.index_select(0, rows)
        return taken

    def _with_room(self, like: Tensor, rows: int) -> Tensor:
        """Return the buffer with room for `rows` rows and the columns, zero where not written."""
        if self.buffer is None:
            self.buffer = like.new_zeros(
                like.shape[0], self.above + 16, _roomy(self.columns), like.shape[-1]
            )
        height, width = self.buffer.shape[1:3]
        if rows > height and self.keep is not None and self.keep + self.above <= height // 2:
            kept = self.keep + self.above
            self.buffer[:, :kept] = self.buffer[:, self.rows - kept : self.rows].clone()
            self.rows, rows = kept, kept + 1
        if rows > height or self.columns > width:
            taller = _roomy(rows) if rows > height else height
            wider = _roomy(self.columns) if self.columns > width else width
            grown = self.buffer.new_zeros(len(self.buffer), taller, wider, like.shape[-1])
            grown[:, :height, :width] = self.buffer
            self.buffer = grown
        return self.buffer


def _roomy(count: int) -> int:
    """Return a size with room to grow."""
    return max(16, 1 << (2 * count - 1).bit_length())


@dataclasses.dataclass(frozen=True)
class GridStream:
    """What streaming keeps of a grid network: the last rows [R, h, D] and each layer's inputs.

    `span` is how many rows one cell sees (None: all of them are wanted for ever). Columns [R, S, D]
    are the caller's, who adds a new one first.
    """

    rows: Tensor
    caches: tuple[CellCache, ...]
    weights: StepWeights
    span: int | None

    def write(self, network: nn.Module, row: Tensor, columns: Tensor) -> tuple[Tensor, GridStream]:
        """Return the features [R, S, D] of a new row [R, 1, D], and the stream with it."""
        caches = list(self.caches)
        features = network(row + columns, _NewRow(caches, self.weights, self.span))
        rows = torch.cat([self.rows, row], 1)
        if self.span is not None:
            rows = rows[:, -self.span :]
        return features, dataclasses.replace(self, rows=rows, caches=tuple(caches))

    def read(self, network: nn.Module, column: Tensor) -> Tensor | None:
        """Take a new column [R, 1, D] in; return its features [R, h, D], or None without rows.

        Only the last row's are exact: those above it lack what they see beyond the span.
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
        prepared = self.weights.get(layer, features.dtype)
        with torch.autocast(features.device.type, enabled=False):
            found = F.conv2d(window, prepared, groups=features.shape[-1])
        return found.permute(0, 2, 3, 1)


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
    position: int | StaticPosition
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

    def to_static(self, place: StaticPosition, rows: Tensor, width: int) -> GridState | None:
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
