"""Memory layout of a batch of grids without padding: flat valid cells.

A batch of B grids, T_b target by S_b source positions each, is stored flat: x [M, D] holds the
valid cells only, sentence after sentence, row-major in (t, s). Position-wise layers then cost
nothing for padding, and a full batch (all sentences equally long) is a free view of [B, T, S, D].
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmtgrid.base.rows import host_values
from nmtgrid.layers.kernels.linear import apply


class Run(NamedTuple):
    """Consecutive sentences of one shape, whose flat cells are a full grid."""

    offset: int
    """Their first row of a flat tensor [M, D]."""
    sentences: int
    rows: int
    columns: int

    def of(self, x: Tensor) -> Tensor:
        """Return the view [sentences, rows, columns, D] of their cells in flat cells x [M, D]."""
        size = self.sentences * self.rows * self.columns
        return x.narrow(0, self.offset, size).view(self.sentences, self.rows, self.columns, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class GridLayout:
    """Positions of the valid cells of B grids; built by `make`, shared by all layers of a model.

    target_lengths, source_lengths, offsets: [B] int64, sentence b owning the rows
    offsets[b] .. offsets[b] + T_b * S_b of a flat tensor [M, D].
    """

    target_lengths: Tensor
    source_lengths: Tensor
    offsets: Tensor
    shapes: tuple[tuple[int, int], ...]
    """(T_b, S_b) of each sentence as plain numbers, to avoid further synchronisation."""
    target_size: int
    """T, the longest target."""
    source_size: int
    """S, the longest source."""
    cell_count: int
    """M, the number of valid cells."""

    @classmethod
    def make(cls, target_lengths: Tensor, source_lengths: Tensor) -> GridLayout:
        """Return the layout for lengths [B] of both sides.

        Raises: ValueError for no sentence, unequal shapes or a length below 1.
        """
        targets, sources = target_lengths.long(), source_lengths.long()
        if targets.dim() != 1 or targets.shape != sources.shape or not len(targets):
            raise ValueError("target_lengths and source_lengths must both be [B] with B >= 1")
        shapes = tuple(zip(host_values(targets), host_values(sources), strict=True))
        if min(min(shape) for shape in shapes) < 1:
            raise ValueError("every grid needs at least one row and one column")
        areas = targets * sources
        return cls(
            target_lengths=targets,
            source_lengths=sources,
            offsets=areas.cumsum(0) - areas,
            shapes=shapes,
            target_size=max(rows for rows, _ in shapes),
            source_size=max(columns for _, columns in shapes),
            cell_count=sum(rows * columns for rows, columns in shapes),
        )

    @property
    def batch_size(self) -> int:
        """B, the number of sentences."""
        return len(self.shapes)

    @property
    def is_full(self) -> bool:
        """True when there is no padding, so that flat and padded forms share memory."""
        return self.cell_count == self.batch_size * self.target_size * self.source_size

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs of sentences of one shape, in order."""
        runs, offset = [], 0
        for (rows, columns), group in itertools.groupby(self.shapes):
            runs.append(Run(offset, len(list(group)), rows, columns))
            offset += runs[-1].sentences * rows * columns
        return tuple(runs)

    @cached_property
    def sentence(self) -> Tensor:
        """[M] int64: the sentence that each cell belongs to."""
        # With the output size, repeat_interleave does not synchronise with the device to find it.
        areas = self.target_lengths * self.source_lengths
        numbers = torch.arange(self.batch_size, device=areas.device)
        return numbers.repeat_interleave(areas, output_size=self.cell_count)

    @cached_property
    def _positions(self) -> tuple[Tensor, Tensor]:
        index = torch.arange(self.cell_count, device=self.offsets.device)
        index = index - self.offsets[self.sentence]
        width = self.source_lengths[self.sentence]
        row = torch.div(index, width, rounding_mode="floor")
        return row, index - row * width

    @property
    def target_position(self) -> Tensor:
        """[M] int64: t of each cell."""
        return self._positions[0]

    @property
    def source_position(self) -> Tensor:
        """[M] int64: s of each cell."""
        return self._positions[1]

    @cached_property
    def cells(self) -> Tensor:
        """[M] int64: (b * T + t) * S + s of each cell, its row in a flattened [B, T, S, D]."""
        rows = self.sentence * self.target_size + self.target_position
        return rows * self.source_size + self.source_position

    def pad(self, x: Tensor) -> Tensor:
        """Spread flat cells x [M, D] over a grid [B, T, S, D] whose padding is zero.

        A view of `x` when the layout is full.
        """
        if self.is_full:
            return x.reshape(self.batch_size, self.target_size, self.source_size, x.shape[1])
        return apply(_Pad, x, self)

    def pack(self, grid: Tensor) -> Tensor:
        """Collect the valid cells [M, D] of a grid [B, T, S, D].

        A view of `grid` when the layout is full; otherwise padding gets a zero gradient.
        """
        if self.is_full:
            return grid.reshape(self.cell_count, grid.shape[-1])
        return apply(_Pack, grid, self)


def scatter_cells(
    x: Tensor,
    layout: GridLayout,
    margins: tuple[int, int, int, int] = (0, 0, 0, 0),
    runs: Sequence[Run] | None = None,
) -> Tensor:
    """Write flat cells x [M, D] into new grids, zero elsewhere, without gradient.

    margins: rows above and below, columns left and right of the T x S cells that stay empty, as
    a convolution needs them; runs: only these (on a CPU), T and S being the largest among them.
    Returns [B, above + T + below, left + S + right, D].
    """
    above, below, left, right = margins
    if runs is None and x.device.type != "cpu" and not layout.is_full:
        rows, columns = layout.target_size, layout.source_size
        shape = (layout.batch_size, above + rows + below, left + columns + right, x.shape[1])
        grid = x.new_zeros(shape)
        row = layout.target_position + above + layout.sentence * shape[1]
        cell = row * shape[2] + layout.source_position + left
        grid.view(-1, shape[3]).index_copy_(0, cell, x)
        return grid
    runs = layout.runs if runs is None else runs
    rows, columns = max(run.rows for run in runs), max(run.columns for run in runs)
    count = sum(run.sentences for run in runs)
    shape = (count, above + rows + below, left + columns + right, x.shape[1])
    if len(runs) == 1 and not (left or right):
        # Zeros everywhere would be one more pass over memory.
        grid = x.new_empty(shape)
        grid[:, :above].zero_()
        grid[:, above + rows :].zero_()
    else:
        grid = x.new_zeros(shape)
    # Whole blocks copy four times faster than an index_copy_ row by row.
    for block, run in _of_runs(grid[:, above:, left:], runs):
        block.copy_(run.of(x))
    return grid


def _of_runs(grid: Tensor, runs: Sequence[Run]) -> Iterator[tuple[Tensor, Run]]:
    """Yield the valid cells [count, rows, columns, D] of each run in grids [B, T', S', D]."""
    for part, run in zip(grid.split([run.sentences for run in runs]), runs, strict=True):
        yield part[:, : run.rows, : run.columns], run


def collect_cells(grid: Tensor, runs: Sequence[Run], result: Tensor) -> None:
    """Write the valid cells of grids [B', T', S', D] of some runs into flat cells [M, D]."""
    for block, run in _of_runs(grid, runs):
        run.of(result).copy_(block)


def gather_cells(grid: Tensor, layout: GridLayout) -> Tensor:
    """Collect the valid cells [M, D] of a grid [B, T, S, D], without gradient: see `pack`."""
    if layout.is_full:
        return grid.reshape(layout.cell_count, grid.shape[-1])
    if grid.device.type == "cpu":
        flat = grid.new_empty(layout.cell_count, grid.shape[-1])
        collect_cells(grid, layout.runs, flat)
        return flat
    return grid.reshape(-1, grid.shape[-1]).index_select(0, layout.cells)


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: GridLayout) -> Tensor:
        ctx.layout = layout
        return scatter_cells(x, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        layout: GridLayout = ctx.layout
        return layout.pack(gradients[0]), None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, layout: GridLayout) -> Tensor:
        ctx.layout = layout
        return gather_cells(grid, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        layout: GridLayout = ctx.layout
        return layout.pad(gradients[0]), None
