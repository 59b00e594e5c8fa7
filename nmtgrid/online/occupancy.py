"""How often a grid's cells are used: weights for training on all cells right of a path."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from nmtgrid.base.masks import is_padding
from nmtgrid.online.paths import is_right_of


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

    Each row of a sentence sums to 1; padding is 0. For wait-k paths this is Eq. (4.35), computed
    in logarithms by counting the ways that lead to a cell and from it. Lengths count what the
    caller counts.

    Departs: the printed closed form is not the share of paths, see `occupancy`.
    """
    allowed = is_right_of(paths, source_lengths, target_lengths, columns).transpose(0, 1)
    barred = torch.full_like(allowed, -torch.inf, dtype=torch.float64).masked_fill(allowed, 0.0)
    size = len(barred)
    leading, following = barred.clone(), barred.clone()
    for t in range(1, size):
        leading[t] += leading[t - 1].logcumsumexp(-1)
    # The first row after a sentence's end starts its count: nothing follows the last write.
    ended = is_padding(target_lengths, size + 1).T[..., None]
    for t in range(size - 2, -1, -1):
        ways = following[t + 1].flip(-1).logcumsumexp(-1).flip(-1)
        following[t] += ways.masked_fill(ended[t + 1], 0.0)
    # Padding rows have no way through; any finite number will do there.
    through = (leading + following).masked_fill(ended[:size], 0.0)
    weights = through.softmax(-1).masked_fill(~allowed, 0.0)
    return weights.transpose(0, 1).float()


def occupancy(t: int, j: int, k: int, target_length: int, source_length: int) -> Fraction:
    """Return the exact share of the paths nowhere left of wait-k that write token t with j reads.

    Both count from 1. Eq. (4.35), the closed form; `exact_weights` is the one for batches.

    Departs: the print multiplies no count of the paths from the cell to the end.
    """
    k = min(k, source_length)
    if not min(k + t - 1, source_length) <= j <= source_length:
        return Fraction(0)
    leading = _count(t - 1, j - k, 1)
    following = _count(target_length - t, source_length - j, j - k - t + 1)
    return Fraction(leading * following, _count(target_length, source_length - k, 1))


def _count(writes: int, reads: int, margin: int) -> int:
    """Return N(m, n, c): ways to order the writes and reads that never cross the diagonal."""
    if reads == 0:
        return 1
    writes = min(writes, reads + margin)
    crossing = writes - margin - 1
    barred = math.comb(writes + reads, crossing) if crossing >= 0 else 0
    return math.comb(writes + reads, writes) - barred
