"""What each exit's loss counts in training: five weightings, and the ratio of gradients."""

from __future__ import annotations

from typing import Literal

Weighting = Literal["uniform", "linear", "root", "inverse-root", "inverse"]
"""Weights of the exits' losses, in proportion to 1, n, n^1/2, n^-1/2 and n^-1."""

_POWERS: dict[Weighting, float] = {
    "uniform": 0.0, "linear": 1.0, "root": 0.5, "inverse-root": -0.5, "inverse": -1.0,
}  # fmt: skip


def exit_weights(weighting: Weighting, count: int) -> list[float]:
    """Return omega_1 .. omega_N for `count` exits, which sum to 1 (section 5.2.4)."""
    powers = [n ** _POWERS[weighting] for n in range(1, count + 1)]
    return [power / sum(powers) for power in powers]


def gradient_scales(ratio: float, count: int) -> list[float]:
    """Return gamma_1 .. gamma_N, gamma_n = ratio (N - n), for `count` exits (section 5.2.4).

    Under uniform weights block n's own gradient then stands to the sum of the N - n later ones as
    `ratio` to 1, if all are of one size.

    Departs: gamma_N is 1, for the last block's only loss must not vanish.
    """
    return [ratio * (count - n) for n in range(1, count)] + [1.0]
