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


class Prior:
    """The strength of the diagonal, `tension`: 0 is uniform."""

    def __init__(self, tension: float) -> None:
        self.tension = tension

    def fit(self, expected: float, weights: Mapping[tuple[int, int], Numbers]) -> None:
        """Set the tension to what makes the prior's mean closeness equal the `expected` sum.

        `weights` has, for each shape (m, n), how many words of each written position picked a
        given word [m]. The likelihood is concave in the tension: Newton's steps, kept within a
        bracket.
        """
        least, most = _LEAST, _MOST
        for _ in range(_STEPS):
            mean, spread = self._moments(weights)
            gap = expected - mean
            if gap > 0:
                least = self.tension
            else:
                most = self.tension
            if abs(gap) < 1e-9 * max(1.0, abs(expected)) or spread <= 0:
                break
            step = self.tension + gap / spread
            self.tension = step if least < step < most else (least + most) / 2

    def _moments(self, weights: Mapping[tuple[int, int], Numbers]) -> tuple[float, float]:
        """Return the mean closeness under the prior, and its variance, summed over the words."""
        mean = spread = 0.0
        for (m, n), held in weights.items():
            shares, distance = prior_table(m, n, self.tension)
            first = (shares * distance).sum(1)
            second = (shares * distance * distance).sum(1)
            mean += float((held * first).sum())
            spread += float((held * (second - first * first)).sum())
        return mean, spread
