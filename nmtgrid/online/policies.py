"""Reading probabilities: what a path is worth under them, the agent's loss, and its decisions.

Logits [B, T, S]: cell (b, t, j) (0-based) stands for the state with t target tokens written and
j + 1 source tokens read; its sigmoid rho is the probability of reading one more before target
token t is written. In the last column nothing is left to read: rho is 0 there, whatever the logit.
Lengths count what the caller counts, the end symbols included or not. Probabilities are given as
`torch.logit(rho)`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nmtgrid.base.errors import ConfigError
from nmtgrid.online.paths import is_cell

Area = Literal["grid", "path"]
"""Where an agent is trained: on the whole grid or on the states that the path visits."""


def read_probabilities(paths: Tensor, source_lengths: Tensor, columns: int) -> Tensor:
    """Return rho [B, T, columns] of agents that follow paths [B, T]: 1 left of them, 0 elsewhere.

    Eq. (4.26). Departs: row t decides about the write of token t + 1, where the print has t.
    """
    reads = torch.arange(1, columns + 1, device=paths.device)
    return (reads < torch.minimum(paths, source_lengths[:, None])[..., None]).float()


def path_log_probabilities(
    logits: Tensor, paths: Tensor, source_lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    """Return log p(z | x, y) [B] of paths [B, T]. Eq. (4.12).

    Departs: the first token's reads count too, from a start with one token read, and the last
    column always writes; with that the probabilities of all paths sum to 1.
    """
    return _scores(logits, paths, source_lengths, target_lengths, "path").sum((1, 2))


def agent_loss(
    logits: Tensor,
    paths: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    area: Area = "grid",
) -> Tensor:
    """Return the agent's loss, a sum over the cells of all sentences, for the oracle's paths.

    "grid": read left of the path, write on it and right of it, at every cell (Eq. 4.44, 4.46);
    "path": only at the states that the path visits (Eq. 4.43).

    Departs: as `path_log_probabilities`.
    """
    return -_scores(logits, paths, source_lengths, target_lengths, area).sum()


def agent_cells(
    paths: Tensor, source_lengths: Tensor, target_lengths: Tensor, columns: int, area: Area = "grid"
) -> Tensor:
    """Return [B, T, columns], True where the agent decides: in no last column, nor on padding.

    "path" leaves the states that paths [B, T] visit.
    """
    reads = torch.arange(1, columns + 1, device=paths.device)
    counts = is_cell(source_lengths - 1, target_lengths, paths.shape[1], columns)
    if area == "path":
        start = torch.cat([torch.ones_like(paths[:, :1]), paths[:, :-1]], 1)
        counts = counts & (reads >= start[..., None]) & (reads <= paths[..., None])
    return counts


def agent_hits(
    logits: Tensor,
    paths: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    area: Area = "grid",
) -> Tensor:
    """Return [B, T, S], True at `agent_cells` that are decided right at a threshold of one half."""
    columns = logits.shape[2]
    counts = agent_cells(paths, source_lengths, target_lengths, columns, area)
    reads = torch.arange(1, columns + 1, device=logits.device)
    return ((logits > 0) == (reads < paths[..., None])) & counts


def _scores(
    logits: Tensor, paths: Tensor, source_lengths: Tensor, target_lengths: Tensor, area: Area
) -> Tensor:
    """Return [B, T, S]: the log-probability of each cell's right action, 0 where none counts."""
    columns = logits.shape[2]
    counts = agent_cells(paths, source_lengths, target_lengths, columns, area)
    # Cells that do not count may hold anything; filled first, they give no gradient either.
    held = logits.float().masked_fill(~counts, 0.0)
    reads = torch.arange(1, columns + 1, device=logits.device)
    right = torch.where(reads < paths[..., None], held, -held)
    return logsigmoid(right).masked_fill(~counts, 0.0)


def check_threshold(threshold: float) -> None:
    """Raise ConfigError unless the threshold lies strictly between 0 and 1."""
    if not 0 < threshold < 1:
        raise ConfigError(f"`threshold` must be above 0 and below 1, but is {threshold}.")


def next_reads(rho: Tensor, reads: Tensor, threshold: float, source_lengths: Tensor) -> Tensor:
    """Return [R]: the reads with which each row writes next, given those so far, `reads` [R].

    rho [R, S] is one row of the grid: column j has j + 1 tokens read. The first column from
    `reads` on whose rho is below the threshold writes; if there is none, the last one does. A
    stream that goes on gives a length of one more than the columns it has: getting that length
    back means that it must read.
    """
    columns = torch.arange(1, rho.shape[1] + 1, device=rho.device)
    writes = (rho < threshold) & (columns >= reads[:, None])
    first = torch.where(writes, columns, source_lengths[:, None]).amin(1)
    return torch.minimum(first, source_lengths)


def threshold_paths(rho: Tensor, threshold: float, source_lengths: Tensor) -> Tensor:
    """Return the paths [B, T] that an agent with rho [B, T, S] takes at this threshold."""
    reads = torch.ones_like(source_lengths)
    found = []
    for row in rho.unbind(1):
        reads = next_reads(row, reads, threshold, source_lengths)
        found.append(reads)
    return torch.stack(found, 1)
