"""The bootstrap over sentences: samples with replacement, and intervals of statistics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
from numpy.typing import NDArray

from nmtgrid.metrics.latency import Numbers

RESAMPLES = 1000
_MOST_WEIGHTS = 1 << 24
"""Sentences times resamples that are drawn at a time."""


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


def interval(values: NDArray[numpy.float64]) -> tuple[float, float]:
    """Return what the middle 95 % of resampled values lie between: percentiles 2.5 and 97.5."""
    low, high = numpy.percentile(values, [2.5, 97.5]).tolist()
    return low, high
