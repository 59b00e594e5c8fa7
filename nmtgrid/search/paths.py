"""Decoding paths z [B, T]: the number of source tokens read when each target token was written.

Wait-k paths and paths sampled for training (section 4.2), areas of grid cells to the right of a
path, and the share of all paths that pass through a cell (`exact_weights`), which weights training
on such an area (section 4.3). Reads count from 1; the caller decides whether they include the end
symbol.

Paths and grids index differently: a path has counts z_t >= 1, a grid has columns from 0, and column
j is the state with j + 1 tokens read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_padding, is_token
from nmtgrid.models.api import PredictionSites


def wait_k(k: int | float | Tensor, source_lengths: Tensor, size: int) -> Tensor:
    """Return the wait-k paths [B, size]: k tokens first, then one more before each later write.

    k is one number, or [B] with one for each sentence; infinity reads the whole source first, as
    does every k beyond it. Positions beyond the target continue in the same way. Eq. (4.25).

    Raises ConfigError for a k below 1 or not whole.
    """
    # Doubles, because k may be infinite; negated, so that NaN is invalid too.
    # A number is checked and filled in without synchronising with the device or copying to it.
    reads = torch.as_tensor(k, dtype=torch.float64)
    invalid = ~((reads >= 1) & ((reads == reads.floor()) | reads.isinf()))
    if bool(invalid.any()):
        value = reads[invalid].flatten()[0].item()
        raise ConfigError(f"`k` must be a whole number of at least 1, or inf, but is {value:g}.")
    if not isinstance(k, Tensor):
        reads = torch.full((), k, dtype=torch.float64, device=source_lengths.device)
    # Limited by the length before the cast: infinity has no integer.
    first_reads = torch.minimum(reads, source_lengths).long()
    steps = torch.arange(size, device=source_lengths.device)
    return torch.minimum(first_reads[:, None] + steps, source_lengths[:, None])


def sample_k(
    source_lengths: Tensor, paths_per_sentence: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Return k [B * M], drawn uniformly from [1..|x|] for each sentence, its M values adjacent.

    The order is that of `base.rows.repeat`, which repeats the sentences accordingly. Eq. (4.30).

    Departs: As printed, |x| is the same for the whole batch, that of its longest sentence. Here |x|
    is the length of each sentence.
    """
    device = source_lengths.device if generator is None else generator.device
    lengths = source_lengths.repeat_interleave(paths_per_sentence)
    # Drawn on the generator's device, so that validation draws the same numbers everywhere.
    uniform = torch.rand(len(lengths), dtype=torch.float64, device=device, generator=generator)
    # A product may be rounded up to the length itself.
    return torch.minimum((uniform.to(lengths.device) * lengths).long() + 1, lengths)


def finish_reading(paths: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Return paths [B, T] whose last write, and all positions after it, have the whole source.

    The thesis' condition in training (appendix C): `z_|y| = |x|`.
    """
    return continue_paths(paths, source_lengths, target_lengths - 1, paths.shape[1])


def continue_paths(
    paths: Tensor, source_lengths: Tensor, target_lengths: Tensor, size: int
) -> Tensor:
    """Return paths [B, size] that have the whole source from target position |y| on.

    For decoding along the paths of another target, which a hypothesis may outgrow. Algorithm 1.

    Departs: As printed, positions beyond |y| are undefined. Here the whole source is read there.
    """
    whole = source_lengths[:, None].expand(-1, size)
    extended = whole.clone()
    common = min(size, paths.shape[1])
    extended[:, :common] = paths[:, :common]
    return torch.where(is_padding(target_lengths, size), whole, extended)


def is_cell(source_lengths: Tensor, target_lengths: Tensor, rows: int, columns: int) -> Tensor:
    """Return [B, rows, columns], True where the grid has no padding."""
    return is_token(target_lengths, rows)[..., None] & is_token(source_lengths, columns)[:, None]


def is_right_of(
    paths: Tensor, source_lengths: Tensor, target_lengths: Tensor, columns: int
) -> Tensor:
    """Return [B, T, columns], True where writing with j + 1 reads is on the path or right of it.

    Column j (0-based) has j + 1 tokens read; padding is False.
    """
    reads = torch.arange(1, columns + 1, device=paths.device)
    right = reads >= paths[..., None]
    return right & is_cell(source_lengths, target_lengths, paths.shape[1], columns)


def area_sites(area: Tensor) -> PredictionSites:
    """Return one site for each True cell of an area [B, T, S], in the order of `area.nonzero()`.

    The site of cell (b, t, j) has j + 1 reads; `weights[area]` are weights in the same order.
    """
    cells = area.nonzero()
    return PredictionSites(cells[:, 0], cells[:, 1], cells[:, 2] + 1)


def binary_weights(
    paths: Tensor, source_lengths: Tensor, target_lengths: Tensor, columns: int
) -> Tensor:
    """Return [B, T, columns]: 1 on paths [B, T] and right of them, 0 left of them and on padding.

    The thesis' choice for training, `q_tj = [[j >= z_t]]`.
    """
    return is_right_of(paths, source_lengths, target_lengths, columns).float()


def exact_weights(
    paths: Tensor, source_lengths: Tensor, target_lengths: Tensor, columns: int
) -> Tensor:
    """Return [B, T, columns]: the share of all paths nowhere left of `paths` that write at a cell.

    Each row of a sentence sums to 1; padding is 0. For wait-k paths this is Eq. (4.35), computed in
    logarithms by counting the paths, Eq. (4.31), to a cell and from it. Lengths count the same
    symbols as the caller's.

    Departs: As printed, Eq. (4.31) counts a different set of paths, and Eq. (4.35) only the paths
    to a cell. Here they are multiplied by those from the cell to the end, so that the shares of a
    row sum to 1.
    """
    # Counts of paths overflow any integer for long sentences, so sums are of logarithms, in
    # float64: in float32 the shares of a row of 100 cells would not sum to 1.
    allowed = is_right_of(paths, source_lengths, target_lengths, columns).transpose(0, 1)
    barred = torch.full_like(allowed, -torch.inf, dtype=torch.float64).masked_fill(allowed, 0.0)
    size = len(barred)
    # A path to cell (t, j) comes from any cell of row t - 1 with at most its reads, so the sum over
    # predecessors is cumulative along the row; likewise backwards for paths from the cell.
    leading, following = barred.clone(), barred.clone()
    for t in range(1, size):
        leading[t] += leading[t - 1].logcumsumexp(-1)
    # The first row after a sentence's end starts its count: nothing follows the last write.
    ended = is_padding(target_lengths, size + 1).T[..., None]
    for t in range(size - 2, -1, -1):
        paths_on = following[t + 1].flip(-1).logcumsumexp(-1).flip(-1)
        following[t] += paths_on.masked_fill(ended[t + 1], 0.0)
    # Padding rows have no path through; any finite number avoids NaN, the mask removes it.
    through = (leading + following).masked_fill(ended[:size], 0.0)
    weights = through.softmax(-1).masked_fill(~allowed, 0.0)
    return weights.transpose(0, 1).float()
