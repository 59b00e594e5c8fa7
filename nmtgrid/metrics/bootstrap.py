"""Resampling of sentences, with replacement or by swaps; intervals of statistics and p-values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
from numpy.typing import NDArray

from nmtgrid.metrics.latency import Numbers

RESAMPLES = 1000
_MOST_WEIGHTS = 1 << 24
"""Number of sentences times resamples that are drawn at a time."""
ROUNDING = 1e-9
"""Scores that differ by less count as equal."""


def weights(count: int, samples: int, seed: int) -> Iterator[Numbers]:
    """Yield how often each of `count` sentences is drawn [block, count], `samples` rows in all.

    The draws are those of sacreBLEU's paired bootstrap with the same seed.
    """
    generator = numpy.random.default_rng(seed)
    size = max(1, _MOST_WEIGHTS // max(count, 1))
    for first in range(0, samples, size):
        rows = min(size, samples - first)
        indices = generator.integers(0, count, (rows, count)) + count * numpy.arange(rows)[:, None]
        drawn = numpy.bincount(indices.reshape(-1), minlength=rows * count)
        yield drawn.reshape(rows, count).astype(float)


def swaps(count: int, samples: int, seed: int) -> Iterator[Numbers]:
    """Yield which of `count` sentences two systems swap: 0 or 1 [block, count], `samples` rows.

    The draws are those of sacreBLEU's approximate randomisation with the same seed.
    """
    generator = numpy.random.default_rng(seed)
    # Booleans are drawn as bits of 32-bit words, of which each block must use whole ones.
    size = 32 * max(1, _MOST_WEIGHTS // (32 * max(count, 1)))
    for first in range(0, samples, size):
        shape = min(size, samples - first), count
        yield generator.integers(2, size=shape, dtype=bool).astype(float)


def p_value(statistics: Numbers, real: float) -> float:
    """Return the p-value of the `real` difference, given those of random samples.

    Departs: SacreBLEU counts samples whose difference is greater than the real one. Here samples
    with an equal difference count too, as the test requires: systems that differ in only a few
    sentences have few possible differences, the greatest of which would get the least p-value.
    """
    return (int((statistics > real - ROUNDING).sum()) + 1) / (len(statistics) + 1)


def interval(values: NDArray[numpy.float64]) -> tuple[float, float]:
    """Return the interval of the middle 95 % of resampled values: percentiles 2.5 and 97.5."""
    low, high = numpy.percentile(values, [2.5, 97.5]).tolist()
    return low, high
