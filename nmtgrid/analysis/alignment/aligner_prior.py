"""The aligner's prior over positions: the nearer to the diagonal, the likelier."""

from __future__ import annotations

from collections.abc import Mapping

import numpy
from numpy.typing import NDArray

Numbers = NDArray[numpy.float64]

_LEAST, _MOST = 0.1, 40.0
"""Within which the tension is sought."""
_STEPS = 12


def prior_table(m: int, n: int, tension: float) -> tuple[Numbers, Numbers]:
    """Return shares and -|t/m - j/n|, both [m, n]: of n given words for each of m written ones."""
    distance = -numpy.abs(numpy.arange(1, m + 1)[:, None] / m - numpy.arange(1, n + 1)[None, :] / n)
    shares = numpy.exp(tension * distance)
    shares /= shares.sum(1, keepdims=True)
    return shares, distance


def fitted_tension(
    expected: float, weights: Mapping[tuple[int, int], Numbers], start: float = 4.0
) -> float:
    """Return the tension whose mean closeness equals the `expected` sum: the likeliest.

    `weights` has, for each shape (m, n), how many words of each written position picked a given
    word [m]. The likelihood is concave in the tension: Newton's steps, kept within a bracket.
    """
    least, most, tension = _LEAST, _MOST, start
    for _ in range(_STEPS):
        mean, spread = _moments(weights, tension)
        gap = expected - mean
        if gap > 0:
            least = tension
        else:
            most = tension
        if abs(gap) < 1e-9 * max(1.0, abs(expected)) or spread <= 0:
            break
        step = tension + gap / spread
        tension = step if least < step < most else (least + most) / 2
    return tension


def _moments(weights: Mapping[tuple[int, int], Numbers], tension: float) -> tuple[float, float]:
    """Return the mean closeness under the prior, and its variance, summed over the words."""
    mean = spread = 0.0
    for (m, n), held in weights.items():
        shares, distance = prior_table(m, n, tension)
        first = (shares * distance).sum(1)
        second = (shares * distance * distance).sum(1)
        mean += float((held * first).sum())
        spread += float((held * (second - first * first)).sum())
    return mean, spread
