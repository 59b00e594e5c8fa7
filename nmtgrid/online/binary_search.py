"""Paths by binary search (Guo et al., ACL 2023): how much source each target token is worth.

Another z* than the oracle's (online/oracle), found for each target token apart: an interval of its
row is halved, towards the half in which reading raises the probability of the token more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.online.paths import continue_paths


def binary_search_paths(
    write_costs: Tensor,
    predictions: Tensor,
    source_lengths: Tensor,
    target_lengths: Tensor,
    search_from: int,
    search_to: int,
) -> Tensor:
    """Return paths z* [B, T], for costs -log p(y_t) and likeliest types [B, T, S] at every cell.

    Token t (from 0) is searched for between l = `search_from` and r = `search_to` source tokens, to
    both of which floor(t |x| / |y|) is added; |x| at most. With m = floor((l + r) / 2), the left
    half is kept if the token gains no less by reading up to m than beyond, p(m) - p(l) >= p(r) -
    p(m), or nothing by reading up to r, p(l) >= p(r); else the right half. Of two neighbours it is
    the left one if the model predicts the same type at both. So where p rises in one step the
    search ends at it. Positions beyond |y| have the whole source.

    Departs: where reads would fall they stay. The authors' code does so for the agent alone, and
    trains the translation model where the search ended.
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
    # An interval of w columns is at most ceil(w / 2) wide after a step, and one of 1 ends.
    for _ in range((search_to - search_from).bit_length() + 1):
        middle = (left + right) // 2
        first, half, last = (at(probabilities, reads) for reads in (left, middle, right))
        is_wide = right - left > 1
        gains_left = (first >= last) | (first + last <= 2 * half)
        is_same = at(predictions, left) == at(predictions, right)
        keeps_left = torch.where(is_wide, gains_left, is_same)
        # Of two neighbours the middle is the left one: the right half is the right one alone.
        beyond = torch.where(is_wide, middle, right)
        left, right = torch.where(keeps_left, left, beyond), torch.where(keeps_left, middle, right)
    return continue_paths(left.cummax(1).values, source_lengths, target_lengths, size)
