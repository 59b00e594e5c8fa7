"""Oracles: which exit each token, or a whole sentence, ought to have taken (section 5.3).

Scores [B, T, N] are what an exit is worth for a token: log p(y_t | h^n) ("likelihood", 5.22), or 1
where the exit's likeliest token is y_t, else 0 ("correctness", 5.26). Exits count from 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nmtgrid.base.masks import is_token

OracleScore = Literal["likelihood", "correctness"]
"""What an oracle judges exits by."""
Kernel = Literal["plain", "normalised"]
"""Whether a kernel's weights are taken as printed or made to sum to 1 in each sentence."""

_TIE = 1e-9
"""Scores nearer to each other than this are equal: sums in another order differ so little."""


def sequence_oracle(scores: Tensor, lengths: Tensor, depth_penalty: float) -> Tensor:
    """Return [B] (int64): the exit of each sentence, for scores [B, T, N] of `lengths` [B] tokens.

    Eq. (5.12), (5.15), (5.16), (5.17). `depth_penalty` is lambda, what a block costs. Of equal
    exits the earliest is taken.

    Departs: (5.15) takes the best exit, where the print has arg min.
    """
    return _best(_present(scores, lengths).sum(1), depth_penalty)


def token_oracle(
    scores: Tensor,
    lengths: Tensor,
    depth_penalty: float,
    sigma: float = 0.0,
    kernel: Kernel = "plain",
) -> Tensor:
    """Return [B, T] (int64): the exit of each token, for scores [B, T, N]; anything on padding.

    Eq. (5.23), (5.25), (5.28): the best of smoothed score - lambda n, lambda being
    `depth_penalty`; of equal exits the earliest. `sigma` and `kernel` as in `smoothed`.

    Departs: (5.25) takes the best exit, where the print has arg min.
    """
    return _best(smoothed(scores, lengths, sigma, kernel), depth_penalty)


def smoothed(scores: Tensor, lengths: Tensor, sigma: float, kernel: Kernel = "plain") -> Tensor:
    """Return scores [B, T, N] (float64) with those of nearby tokens of the sentence added.

    Token t' counts exp(-(t - t')^2 / sigma) for token t, Eq. (5.24); sigma 0 leaves the scores.
    "plain" sums, so with a wide kernel a sentence's length multiplies the scores but not lambda;
    "normalised" takes the mean. Padding counts nothing.

    Departs: in (5.27) the scores summed are those of t', where the print has t.
    """
    present = _present(scores, lengths)
    if sigma == 0:
        return present
    places = torch.arange(scores.shape[1], device=scores.device, dtype=torch.float64)
    near = torch.exp(-((places[:, None] - places) ** 2) / sigma)
    summed = near @ present
    if kernel == "plain":
        return summed
    counted = is_token(lengths, scores.shape[1]).to(near.dtype) @ near
    return summed / counted[..., None].clamp(min=torch.finfo(near.dtype).tiny)


def _present(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the scores as float64, 0 on padding, whatever stood there."""
    is_real = is_token(lengths, scores.shape[1])
    return scores.double().masked_fill(~is_real[..., None], 0.0)


def _best(scores: Tensor, depth_penalty: float) -> Tensor:
    """Return the exit, from 1, of the best score - lambda n along the last axis; earliest first."""
    exits = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    values = scores - depth_penalty * exits
    is_best = values >= values.amax(-1, keepdim=True) - _TIE
    return is_best.to(torch.int8).argmax(-1) + 1
