"""Causal convolutions over the grid, run over all rows at once or row by row (section 3.2.1).

A grid network is written once over `[..., D]` and calls `cells.convolve(layer, features)`:
`AllRows` runs teacher-forced over the flat valid cells of a batch, `OneRow` runs one decoding
step from caches of the last rows (fig. 3.7), `OneColumn` a new column of a stream. All give the
same values, which tests/invariants checks for every architecture.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtgrid.layers.kernels.densenet import (
    dense_grid_convolution,
    dense_grid_convolution_step,
    prepare_dense_step_weight,
)
from nmtgrid.layers.kernels.grid_conv import (
    grid_convolution,
    grid_convolution_step,
    in_order,
    prepare_step_weight,
)
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.static_cache import RingIndex, StaticPosition


class DepthwiseConvolution(nn.Module):
    """A depthwise k_y x k_x convolution, causal in the target and, if requested, in the source.

    The parameter has the printed shape [k_y, k_x, D], as in the published parameter counts; the
    weights that Eq. (3.2) masks are zero and unused.

    Departs: The mask of Eq. (3.2) as printed also removes the current row. Here the current row is
    kept, since it holds the source and the previous target word.
    """

    vector_parameters = ("weight",)

    def __init__(
        self, size: int, target_kernel: int, source_kernel: int, *, source_causal: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(target_kernel, source_kernel, size))
        self.source_causal = source_causal
        self.live_rows = target_kernel // 2 + 1
        self.live_columns = source_kernel // 2 + 1 if source_causal else source_kernel
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the live taps uniformly with variance 1 / (number of live taps)."""
        # The taps masked by Eq. (3.2) are zero and get no gradient, so they remain zero.
        bound = (3.0 / (self.live_rows * self.live_columns)) ** 0.5
        with torch.no_grad():
            self.weight.zero_()
            self.weight[: self.live_rows, : self.live_columns].uniform_(-bound, bound)

    @property
    def masked_taps(self) -> int:
        """Number of entries of the parameter that are zero and never read."""
        return self.weight.numel() - self.weight[: self.live_rows, : self.live_columns].numel()

    def all_rows(self, features: Tensor, layout: GridLayout) -> Tensor:
        """Return [M, D] for the flat valid cells [M, D] of `layout`."""
        return grid_convolution(features, self.weight, layout, source_causal=self.source_causal)

    def prepare(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in the form that `newest_row` takes."""
        return prepare_step_weight(self.weight, dtype, source_causal=self.source_causal)

    def newest_row(self, window: Tensor, prepared: Tensor, order: Tensor | None = None) -> Tensor:
        """Return [R, S, D] for a window [R, live_rows, S, D] of the last rows.

        Rows are oldest first, or those of a ring; `order` then has the row of taps of each.
        """
        return grid_convolution_step(window, prepared, order, source_causal=self.source_causal)


class FullConvolution(nn.Module):
    """A k x k convolution from all features to all features, causal in the target.

    The parameter has the printed shape [D', D, k, k]; the taps below the current row are zero and
    are never read, so k x ceil(k/2) of them are live.
    """

    def __init__(self, input_size: int, output_size: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_size, input_size, kernel, kernel))
        self.live_rows = kernel // 2 + 1
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the live taps for inputs after a rectifier: variance 2 / (number of inputs)."""
        # He initialisation counts only the live taps: the masked ones add no variance.
        inputs = self.weight.shape[1] * self.live_rows * self.weight.shape[3]
        with torch.no_grad():
            self.weight.zero_()
            self.weight[:, :, : self.live_rows].normal_(std=(2.0 / inputs) ** 0.5)

    @property
    def masked_taps(self) -> int:
        """Number of entries of the parameter that are zero and never read."""
        return self.weight.numel() - self.weight[:, :, : self.live_rows].numel()

    def all_rows(self, features: Tensor, layout: GridLayout) -> Tensor:
        return dense_grid_convolution(features, self.weight, layout)

    def prepare(self, dtype: torch.dtype) -> Tensor:
        return prepare_dense_step_weight(self.weight, dtype)

    def newest_row(self, window: Tensor, prepared: Tensor, order: Tensor | None = None) -> Tensor:
        return dense_grid_convolution_step(window, in_order(prepared, order))


@dataclasses.dataclass(frozen=True, eq=False)
class FoldedConvolution:
    """A full convolution that includes the standardisation of its output, for decoding steps."""

    weight: Tensor
    shift: Tensor
    live_rows: int

    def prepare(self, dtype: torch.dtype) -> Tensor:
        return prepare_dense_step_weight(self.weight, dtype)

    def newest_row(self, window: Tensor, prepared: Tensor, order: Tensor | None = None) -> Tensor:
        return dense_grid_convolution_step(window, in_order(prepared, order), self.shift)


GridConvolution = DepthwiseConvolution | FullConvolution
StepConvolution = GridConvolution | FoldedConvolution


class Cells(Protocol):
    """Applies the convolutions of a grid network to a set of cells."""

    def convolve(self, layer: GridConvolution, features: Tensor) -> Tensor:
        """Return the convolution of `features` [..., D]: [..., D'] at the same cells."""
        ...


@dataclasses.dataclass(frozen=True)
class AllRows:
    """Teacher forcing: features are the flat valid cells [M, D] of `layout`."""

    layout: GridLayout

    def convolve(self, layer: GridConvolution, features: Tensor) -> Tensor:
        return layer.all_rows(features, self.layout)


class RowCache:
    """The last input rows of one convolution: a buffer [R, capacity, S, D].

    New rows are written in place after the old ones; when the buffer is full, the rows still
    needed move to its front.
    """

    # A step copies one row, not the window: with 16 spare rows the move to the front is rare.

    def __init__(self, buffer: Tensor, filled: int, span: int) -> None:
        self.buffer, self.filled, self.span = buffer, filled, span

    @classmethod
    def empty(cls, like: Tensor, span: int, spare: int = 16) -> RowCache:
        """Return a cache of `span - 1` zero rows for features shaped as `like` [R, S, D]."""
        rows, width, size = like.shape
        buffer = like.new_empty(rows, span - 1 + spare, width, size)
        buffer[:, : span - 1] = 0
        return cls(buffer, span - 1, span)

    def push(self, row: Tensor) -> Tensor:
        """Append `row` [R, S, D] and return the last `span` rows [R, span, S, D], oldest first."""
        keep = self.span - 1
        if self.filled == self.buffer.shape[1]:
            self.buffer[:, :keep] = self.buffer[:, self.filled - keep : self.filled].clone()
            self.filled = keep
        self.buffer[:, self.filled] = row
        self.filled += 1
        return self.buffer[:, self.filled - self.span : self.filled]

    def take_rows(self, rows: Tensor) -> RowCache:
        """Return the cache of `rows`, copying only what a later step will read."""
        # A beam takes rows at each step, when most of the buffer is no longer needed.
        keep = self.span - 1
        count, capacity = rows.shape[0], self.buffer.shape[1]
        buffer = self.buffer.new_empty(count, capacity, *self.buffer.shape[2:])
        live = self.buffer[:, self.filled - keep : self.filled]
        buffer[:, :keep] = live.index_select(0, rows)
        return RowCache(buffer, keep, self.span)


class RingCache:
    """The last input rows of one convolution, in a ring [R, span, S, D] that never moves.

    The static form of `RowCache`: rows stay where they were written, and the taps are rotated.
    """

    def __init__(self, buffer: Tensor, ring: RingIndex) -> None:
        self.buffer, self.ring = buffer, ring

    @classmethod
    def of(cls, cache: RowCache, position: StaticPosition) -> RingCache:
        """Return a ring of the rows of `cache`; the next row is that of `position`."""
        keep = cache.span - 1
        # Row p of the target is in slot p mod span; the slot of the next row is still free.
        rows = F.pad(cache.buffer[:, cache.filled - keep : cache.filled], (0, 0, 0, 0, 0, 1))
        rows = rows.roll((position.position - keep) % cache.span, 1)
        return cls(rows, position.ring(cache.span))

    def push(self, row: Tensor) -> Tensor:
        """Overwrite the oldest row with `row` [R, S, D]; return the ring [R, span, S, D]."""
        self.buffer.index_copy_(1, self.ring.slot, row[:, None])
        return self.buffer

    def take_rows(self, rows: Tensor) -> RingCache:
        return RingCache(self.buffer.index_select(0, rows), self.ring)

    def static_tensors(self) -> tuple[Tensor, ...]:
        return (self.buffer,)


class CellCache:
    """The inputs of one convolution in a stream: the last `keep` rows (None: all) of [R, T, S, D].

    The buffer has zero cells above and to the left of the grid, which the filters read there, and
    grows by doubling in both directions.
    """

    def __init__(self, layer: StepConvolution, keep: int | None) -> None:
        assert isinstance(layer, DepthwiseConvolution) and layer.source_causal
        self.above, self.left = layer.live_rows - 1, layer.live_columns - 1
        self.keep = keep
        self.rows, self.columns = self.above, self.left
        self.buffer: Tensor | None = None

    def push(self, row: Tensor) -> Tensor:
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
        # Counters are copied: the old cache may be read again by another branch of a search.
        taken = copy.copy(self)
        if self.buffer is not None:
            taken.buffer = self.buffer.index_select(0, rows)
        return taken

    def _with_room(self, like: Tensor, rows: int) -> Tensor:
        """Return the buffer with room for `rows` rows and all columns; unwritten cells are zero."""

        def rounded_up(count: int) -> int:
            return max(16, 1 << (2 * count - 1).bit_length())

        if self.buffer is None:
            self.buffer = like.new_zeros(
                like.shape[0], self.above + 16, rounded_up(self.columns), like.shape[-1]
            )
        height, width = self.buffer.shape[1:3]
        if rows > height and self.keep is not None and self.keep + self.above <= height // 2:
            # Rows that no cell can see any more are dropped, so that long streams stay small.
            alive = self.keep + self.above
            self.buffer[:, :alive] = self.buffer[:, self.rows - alive : self.rows].clone()
            self.rows, rows = alive, alive + 1
        if rows > height or self.columns > width:
            taller = rounded_up(rows) if rows > height else height
            wider = rounded_up(self.columns) if self.columns > width else width
            grown = self.buffer.new_zeros(len(self.buffer), taller, wider, like.shape[-1])
            grown[:, :height, :width] = self.buffer
            self.buffer = grown
        return self.buffer


GridCache = RowCache | RingCache | CellCache

Prepared = TypeVar("Prepared")


class StepWeights:
    """Weights in the form used by steps, prepared once and shared by all rows."""

    # Otherwise each step would cast and transpose every weight again: benchmarks/kernels.py times
    # a step with a prepared weight. Keyed by identity: the model outlives the state with this.

    def __init__(self) -> None:
        self._prepared: dict[int, Any] = {}

    def get(self, layer: StepConvolution, dtype: torch.dtype) -> Tensor:
        return self.once(layer, lambda: layer.prepare(dtype))

    def once(self, owner: object, prepare: Callable[[], Prepared]) -> Prepared:
        """Return the result of `prepare`, computed once for each `owner`, which must live on."""
        key = id(owner)
        if key not in self._prepared:
            self._prepared[key] = prepare()
        prepared: Prepared = self._prepared[key]
        return prepared


class OneRow:
    """One decoding step: features are one grid row [R, S, D]; caches are used in call order."""

    def __init__(
        self,
        caches: list[GridCache],
        weights: StepWeights,
        is_source: Tensor | None,
        new_cache: Callable[[StepConvolution], GridCache] | None = None,
    ) -> None:
        """`is_source` [R, S, 1] is False on padded columns; None when there is no padding.

        `new_cache` creates the cache of a layer (None: a `RowCache`).
        """
        self.caches, self.weights = caches, weights
        self._is_source, self._new_cache = is_source, new_cache
        self._next = 0

    def convolve(self, layer: StepConvolution, features: Tensor) -> Tensor:
        """Return [R, S, D'] for the newest row."""
        # The filters of real columns must read zeros on padding, as without a batch.
        if self._is_source is not None:
            features = features * self._is_source.to(features.dtype)
        # A network calls its convolutions in the same order at each step: the first step creates
        # the caches, and later steps find them by counting.
        if self._next == len(self.caches):
            make = self._new_cache
            empty = RowCache.empty(features, layer.live_rows) if make is None else make(layer)
            self.caches.append(empty)
        cache = self.caches[self._next]
        self._next += 1
        window, taps = cache.push(features), self.weights.get(layer, features.dtype)
        # In a ring the rows stay where they were written, and the taps rotate instead.
        order = cache.ring.taps if isinstance(cache, RingCache) else None
        return layer.newest_row(window, taps, order)


class OneColumn:
    """A new source column of a stream: features are [R, n, 1, D] in the last n rows."""

    def __init__(self, caches: Sequence[GridCache], weights: StepWeights) -> None:
        self.weights, self._caches = weights, iter(caches)

    def convolve(self, layer: GridConvolution, features: Tensor) -> Tensor:
        cache = next(self._caches)
        assert isinstance(cache, CellCache)
        window = cache.push_column(features).permute(0, 3, 1, 2)
        # The window has its margins, so the filters need no padding and yield one column.
        prepared = self.weights.get(layer, features.dtype)
        with torch.autocast(features.device.type, enabled=False):
            convolved = F.conv2d(window, prepared, groups=features.shape[-1])
        return convolved.permute(0, 2, 3, 1)
