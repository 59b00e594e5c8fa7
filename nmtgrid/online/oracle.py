"""The oracle: the cheapest decoding path through a grid of writing costs, by dynamic programming.

Costs [B, T, S]: cell (b, t, j) (0-based) is the cost of writing target token t with j + 1 source
tokens read. Lengths count what the caller counts, the end symbols included or not.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.masks import is_token
from nmtgrid.online.paths import continue_paths, is_cell

ReadingCost = Literal["delay", "printed"]
"""What reading costs: see `oracle_paths`."""


def oracle_paths(
    write_costs: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    delay_weight: float = 0.0,
    cost: ReadingCost = "delay",
) -> Tensor:
    """Return the paths z* [B, T] of least cost; where writing is no dearer, they write.

    `delay_weight` is the thesis' lambda. "delay" adds `lambda z_t / |x|` for each write, a penalty
    on average proportion, and is optimal. "printed" is the thesis' recursion to the letter, an
    ablation: every first token is written with one read, and lambda has next to no effect.
    Positions beyond |y| have the whole source. Eq. (4.38)-(4.42).

    Departs: "delay" has another reading cost, `R_tj = lambda (|y| - t) / |x|`, and a row 0, in
    which the first token's reads are chosen.

    Raises ConfigError for a weight that is negative or not finite.
    """
    if not 0 <= delay_weight < math.inf:
        raise ConfigError(f"`lambda` must be at least 0 and finite, but is {delay_weight}.")
    size, columns = write_costs.shape[1:]
    if cost == "printed":
        writes = _printed_decisions(write_costs, source_lengths, target_lengths, delay_weight)
        start = torch.ones_like(source_lengths)[:, None]
        paths = torch.cat([start, _follow(writes)], 1)
    else:
        penalty = _penalty(delay_weight, source_lengths, columns)
        costs = _by_rows(write_costs + penalty, source_lengths, target_lengths)
        totals, best = _cheapest_ends(costs)
        paths = _follow(totals == best[:-1])
    # Costs that are not numbers must not lead beyond the source.
    paths = torch.minimum(paths, source_lengths[:, None])
    return continue_paths(paths, source_lengths, target_lengths, size)


def path_costs(
    write_costs: Tensor,
    paths: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    delay_weight: float = 0.0,
) -> Tensor:
    """Return [B]: what paths [B, T] cost, writes and reads after the first, which is free."""
    penalty = _penalty(delay_weight, source_lengths, write_costs.shape[2])
    costs = (write_costs + penalty).gather(2, paths[..., None] - 1)[..., 0]
    return costs.masked_fill(~is_token(target_lengths, paths.shape[1]), 0.0).sum(1)


def _penalty(delay_weight: float, source_lengths: Tensor, columns: int) -> Tensor:
    """Return [B, 1, S]: the share of the delay cost that each write with j + 1 reads pays."""
    reads = torch.arange(columns, dtype=torch.float64, device=source_lengths.device)
    return delay_weight * reads / source_lengths[:, None, None]


def _by_rows(costs: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Return costs [T, B, S] with the columns from last to first, so that `cummin` looks ahead.

    Rows beyond the target cost nothing, columns beyond the source can never be had.
    """
    size, columns = costs.shape[1:]
    cells = is_cell(source_lengths, target_lengths, size, columns)
    costs = costs.double().masked_fill(~cells, 0.0)
    costs = costs.masked_fill(~is_token(source_lengths, columns)[:, None], torch.inf)
    return costs.transpose(0, 1).flip(-1).contiguous()


def _cheapest_ends(costs: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is left to pay, for costs [T, B, S] with the columns from last to first.

    totals [T, B, S]: from here, if token t is written with these reads. best [T + 1, B, S]: from
    the state before that, reading on or not (Eq. 4.42, where reading itself is free).
    """
    totals = torch.empty_like(costs)
    best = costs.new_zeros(len(costs) + 1, *costs.shape[1:])
    for t in range(len(costs) - 1, -1, -1):
        torch.add(best[t + 1], costs[t], out=totals[t])
        best[t] = totals[t].cummin(-1).values
    return totals, best


def _follow(writes: Tensor) -> Tensor:
    """Return the paths [B, T] that read until `writes` [T, B, S], columns from last to first."""
    columns = writes.shape[-1]
    places = torch.arange(columns, device=writes.device)
    # Looking from a column towards more reads, the nearest one that writes.
    nearest = torch.where(writes, places, 0).cummax(-1).values
    place = nearest.new_full((writes.shape[1], 1), columns - 1)
    paths = nearest.new_empty(writes.shape[1], len(writes))
    for t, row in enumerate(nearest):
        place = row.gather(1, place)
        paths[:, t : t + 1] = columns - place
    return paths


def _printed_decisions(
    write_costs: Tensor, source_lengths: Tensor, target_lengths: Tensor, delay_weight: float
) -> Tensor:
    """Return [T - 1, B, S], columns from last to first: True where the print writes token t + 1.

    The printed reading costs of a column are the same in every row. So F(t, j) less what the
    columns up to j cost, and B(t, j) less what those after it cost, obey recursions in which
    reading is free; only the first column's cost stays, in F(t, 1).
    """
    costs = _by_rows(write_costs, source_lengths, target_lengths)
    before = torch.zeros_like(costs)
    # Columns run from last to first: the one with a single read is the last.
    before[0, :, -1] = costs[0, :, -1] - delay_weight / source_lengths
    for t in range(1, len(costs)):
        arrived = before[t - 1] + costs[t]
        before[t] = arrived.flip(-1).cummin(-1).values.flip(-1)
    through = before + _cheapest_ends(costs)[1][1:]
    reading = through.new_full(through.shape, torch.inf)
    reading[..., 1:] = through[..., :-1]
    return ~(reading[:-1] < through[1:])
