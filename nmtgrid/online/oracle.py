"""The oracle (section 4.4.1): the cheapest decoding path through a grid of writing costs.

Costs [B, T, S]: cell (b, t, j) (0-based) is the cost -log p of writing target token t with j + 1
source tokens read; dynamic programming finds the path. Lengths include the end symbols or not, as
the caller chooses.

The recursions run over the rows of a batch at once. Within a row reading is free, so the best of
all columns from the current one on is a running minimum: columns are stored from last to first, and
one `cummin` per row replaces the printed loop over columns.

`binary_search_paths` finds another z*, by a binary search for each target token.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_padding
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear_loss import linear_nll
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.search.paths import continue_paths


def refuse_oracle(model: TranslationModel) -> str:
    """Return why the oracle cannot be computed with this model; an empty string if it can."""
    if model.traits.every_cell:
        return ""
    if not model.traits.prefix_safe:
        return str(model.refusal())
    return (
        "The oracle needs the cost of writing at every cell of the grid, but a prediction of "
        f"`{model.architecture}` depends on the path to the cell: use a `pervasive` with `--set "
        "model.source_causal=true`."
    )


@torch.no_grad()
def writing_costs(model: TranslationModel, batch: Batch) -> Tensor:
    """Return [B, T, S]: -log p of true token t with j + 1 source tokens read; padding is 0.

    For models with `traits.every_cell`, in evaluation mode.
    """
    sites = PredictionSites.everywhere(batch)
    return cell_costs(model, batch, sites, model.features(batch, sites))


def cell_costs(
    model: TranslationModel,
    batch: Batch,
    sites: PredictionSites,
    features: Tensor,
    predictions: Tensor | None = None,
) -> Tensor:
    """Return `writing_costs` from the features [M, D] of the sites `PredictionSites.everywhere`.

    Runs only the classifier, without gradient. The most likely type at each cell is written to
    `predictions` [B, T, S] (int64) unless that is None.
    """
    classifier = model.classifier()
    targets = batch.target_output[sites.sentence, sites.position]
    # The fused loss computes -log p cell by cell in chunks: the logits [M, V] of a whole grid of
    # cells would not fit into memory.
    arguments = features, classifier.weight, classifier.bias, targets
    types = None if predictions is None else torch.empty_like(targets)
    costs = features.new_zeros(grid_shape(batch), dtype=torch.float32)
    costs[sites.cells] = linear_nll(*arguments, predictions=types).float()
    if predictions is not None and types is not None:
        predictions[sites.cells] = types
    return costs


def grid_shape(batch: Batch) -> tuple[int, int, int]:
    """Return (B, T, S)."""
    return *batch.target_output.shape, batch.source.shape[1]


ReadingCost = Literal["delay", "printed"]
"""The cost of reading: see `oracle_paths`."""


def oracle_paths(
    write_costs: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    delay_weight: float = 0.0,
    cost: ReadingCost = "delay",
) -> Tensor:
    """Return the paths z* [B, T] of least cost; on ties they write.

    `delay_weight` is the thesis' lambda. "delay" adds `lambda z_t / |x|` for each write, a penalty
    on average proportion, and finds the optimum. "printed" is the recursion exactly as printed, for
    an ablation: every first token is written with one read, and lambda has almost no effect. Beyond
    |y| the whole source is read. Eq. (4.38)-(4.42).

    Departs: As printed, the reading cost is the same for every path, and the boundary conditions
    contradict each other. "delay" has the cost `R_tj = lambda (|y| - t) / |x|`, and a row 0 in
    which the reads before the first token are chosen.

    Raises ConfigError for a weight that is negative or not finite.
    """
    if not 0 <= delay_weight < math.inf:
        raise ConfigError(f"`lambda` must be at least 0 and finite, but is {delay_weight}.")
    if cost == "printed":
        choices = _printed_choices(write_costs, source_lengths, target_lengths, delay_weight)
    else:
        costs = _by_rows(write_costs, source_lengths, target_lengths, delay_weight)
        choices = _cheapest_ends(costs)[1]
    # Start with one token read (the last column, in reverse order) and follow each row's choice.
    columns = choices.shape[-1]
    column = choices.new_full((choices.shape[1], 1), columns - 1)
    columns_of_writes = [column := row.gather(1, column) for row in choices]
    paths = columns - torch.cat(columns_of_writes, 1)
    return continue_paths(paths, source_lengths, target_lengths, write_costs.shape[1])


def binary_search_paths(
    write_costs: Tensor,
    predictions: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    search_from: int,
    search_to: int,
) -> Tensor:
    """Return paths z* [B, T], for costs -log p(y_t) and most likely types [B, T, S] at every cell.

    The labels of BS-SiMT (Guo et al., ACL 2023), by the rule of the authors' code. The reads of
    token t (from 0) are searched between l = `search_from` and r = `search_to`, both increased by
    floor(t |x| / |y|) and at most |x|. With m = floor((l + r) / 2), the left half is kept if
    reading up to m improves the token no less than reading on, p(m) - p(l) >= p(r) - p(m), or if
    reading up to r does not improve it, p(l) >= p(r); otherwise the right half. Between two
    neighbours the left one is taken if the model predicts the same type at both. If p rises in one
    step, the search ends at it. Beyond |y| the whole source is read.

    Departs: If the search would lower the number of reads, this keeps that of the previous token.
    The authors' code does so only for the reader's labels, and trains the translation model where
    the search ended.
    """
    size = write_costs.shape[1]
    probabilities = write_costs.double().neg().exp()

    def at(values: Tensor, reads: Tensor) -> Tensor:
        return values.gather(2, reads[..., None] - 1)[..., 0]

    steps = torch.arange(size, device=source_lengths.device)
    diagonal = steps * source_lengths[:, None] // target_lengths[:, None]
    left, right = (
        torch.minimum(diagonal + bound, source_lengths[:, None])
        for bound in (search_from, search_to)
    )
    # A step reduces an interval of width w to at most ceil(w / 2), and one of width 1 to 0.
    for _ in range((search_to - search_from).bit_length() + 1):
        middle = (left + right) // 2
        first, half, last = (at(probabilities, reads) for reads in (left, middle, right))
        is_wide = right - left > 1
        gains_left = (first >= last) | (first + last <= 2 * half)
        is_same = at(predictions, left) == at(predictions, right)
        keeps_left = torch.where(is_wide, gains_left, is_same)
        # For two neighbours the middle equals the left one, so the right half is the right one.
        beyond = torch.where(is_wide, middle, right)
        left, right = torch.where(keeps_left, left, beyond), torch.where(keeps_left, middle, right)
    return continue_paths(left.cummax(1).values, source_lengths, target_lengths, size)


def path_costs(
    write_costs: Tensor,
    paths: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    delay_weight: float,
) -> Tensor:
    """Return [B]: the cost of paths [B, T]: writes, and reads after the first, which is free."""
    penalty = delay_penalty(delay_weight, source_lengths, write_costs.shape[2])
    costs = (write_costs + penalty).gather(2, paths[..., None] - 1)[..., 0]
    return costs.masked_fill(is_padding(target_lengths, paths.shape[1]), 0.0).sum(1)


def delay_penalty(delay_weight: float, source_lengths: Tensor, columns: int) -> Tensor:
    """Return [B, 1, S]: the delay cost that is added to each write with j + 1 reads."""
    # The first token's reads are free: column 0 pays nothing.
    reads = torch.arange(columns, dtype=torch.float64, device=source_lengths.device)
    return delay_weight * reads / source_lengths[:, None, None]


def _by_rows(
    costs: Tensor, source_lengths: Tensor, target_lengths: Tensor, delay_weight: float = 0.0
) -> Tensor:
    """Return costs [T, B, S] with the columns from last to first, so that `cummin` looks ahead.

    Rows beyond the target cost nothing; columns beyond the source are never chosen.
    """
    # In float64: sums over long sentences decide between paths of nearly equal cost.
    size, columns = costs.shape[1:]
    reversed_costs = costs.detach().transpose(0, 1).flip(-1).double()
    if delay_weight:
        reversed_costs += delay_penalty(delay_weight, source_lengths, columns)[:, 0].flip(-1)
    reversed_costs.masked_fill_(is_padding(target_lengths, size).T[..., None], 0.0)
    return reversed_costs.masked_fill_(is_padding(source_lengths, columns).flip(-1), torch.inf)


def _cheapest_ends(costs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the remaining costs and the writes of the best paths, for costs [T, B, S].

    best [T + 1, B, S] is the least cost from a state to the end, reading being free (Eq. 4.42);
    choices [T, B, S] is the column in which the next token is then written, the earliest on ties.
    """
    best = costs.new_zeros(len(costs) + 1, *costs.shape[1:])
    choices = torch.empty_like(costs, dtype=torch.int64)
    for t in range(len(costs) - 1, -1, -1):
        # On ties `cummin` returns the last index, here the column with the fewest reads.
        torch.cummin(best[t + 1] + costs[t], -1, out=(best[t], choices[t]))
    return best, choices


def _printed_choices(
    write_costs: Tensor, source_lengths: Tensor, target_lengths: Tensor, delay_weight: float
) -> Tensor:
    """Return [T, B, S]: the column, from last to first, of the next write in the printed recursion.

    The printed reading cost of a column is the same in every row. So F(t, j) minus the costs of
    reading the columns up to j, and B(t, j) minus those of the columns after it, obey recursions in
    which reading is free; only the first column's cost remains, in F(t, 1).
    """
    costs = _by_rows(write_costs, source_lengths, target_lengths)
    before = torch.zeros_like(costs)
    # Columns run from last to first: the one with a single read is the last.
    before[0, :, -1] = costs[0, :, -1] - delay_weight / source_lengths
    for t in range(1, len(costs)):
        arrived = before[t - 1] + costs[t]
        before[t] = arrived.flip(-1).cummin(-1).values.flip(-1)
    through = before + _cheapest_ends(costs)[0][1:]
    # At each state the thesis compares the best path through the next column with the best through
    # the next row, and writes unless reading is cheaper.
    reading = torch.full_like(through, torch.inf)
    reading[..., 1:] = through[..., :-1]
    writes = ~(reading[:-1] < through[1:])
    columns = torch.arange(costs.shape[-1], device=costs.device)
    # The next column that writes, at or after each one: a running maximum over the reversed
    # columns. Row 0 stays at one token read: the error in the thesis that "delay" corrects.
    choices = torch.full_like(costs, len(columns) - 1, dtype=torch.int64)
    choices[1:] = (writes * columns).cummax(-1).values
    return choices
