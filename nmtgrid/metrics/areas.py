"""The area between two curves of BLEU over latency, and its paired bootstrap over sentences.

A curve is piecewise linear through its points, sorted by latency; points of the same latency count
as one with their mean BLEU. If BLEU falls as latency rises, so does the curve. The area between two
curves over the latencies that both reach, divided by the width of that range, is the mean
difference in BLEU at equal latency.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy
from numpy.typing import NDArray

from nmtgrid.metrics import bootstrap
from nmtgrid.metrics.bootstrap import RESAMPLES
from nmtgrid.metrics.latency import Numbers
from nmtgrid.metrics.ngrams import Counts, corpus_bleus
from nmtgrid.metrics.quality import SEED


@dataclasses.dataclass(frozen=True)
class SettingScores:
    """One point of a curve, per sentence: `ngrams.bleu_counts` [N, 10] and latencies [N].

    `latencies` has each metric by name, with NaN for sentences that have none.
    """

    counts: Counts
    latencies: Mapping[str, Numbers]


@dataclasses.dataclass(frozen=True)
class Area:
    """The mean difference in BLEU (percent) between two curves, at latencies `low` to `high`.

    All are NaN if the curves have no common range. `resamples` is the number of bootstrap samples
    with a common range; without any, `interval` and `p_value` are None.
    """

    difference: float
    low: float
    high: float
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    resamples: int = 0


def area(
    latency: Sequence[float] | Numbers,
    bleu: Sequence[float] | Numbers,
    other_latency: Sequence[float] | Numbers,
    other_bleu: Sequence[float] | Numbers,
) -> Area:
    """Return the area between two curves, given the points of each in any order.

    Points with a NaN are ignored. A common range has more than one latency.
    """
    x, y = _curve(numpy.asarray(latency, float), numpy.asarray(bleu, float))
    other_x, other_y = _curve(numpy.asarray(other_latency, float), numpy.asarray(other_bleu, float))
    if not len(x) or not len(other_x):
        return Area(math.nan, math.nan, math.nan)
    low, high = max(x[0], other_x[0]), min(x[-1], other_x[-1])
    if low >= high:
        return Area(math.nan, math.nan, math.nan)
    # The difference is linear between the points of both, so trapezoids between them are exact.
    bends = numpy.concatenate([x, other_x])
    inner = numpy.unique(bends[(bends > low) & (bends < high)])
    at = numpy.concatenate([[low], inner, [high]])
    differences = numpy.interp(at, x, y) - numpy.interp(at, other_x, other_y)
    whole = ((differences[1:] + differences[:-1]) / 2 * numpy.diff(at)).sum()
    return Area(float(whole / (high - low)), float(low), float(high))


def _curve(latency: Numbers, bleu: Numbers) -> tuple[Numbers, Numbers]:
    """Return the points of a curve sorted by latency, each latency once."""
    known = ~(numpy.isnan(latency) | numpy.isnan(bleu))
    x, where = numpy.unique(latency[known], return_inverse=True)
    return x, numpy.bincount(where, bleu[known], len(x)) / numpy.bincount(where, minlength=len(x))


def areas(
    curves: Sequence[Sequence[SettingScores]],
    baseline: Sequence[SettingScores],
    metric: str,
    samples: int = RESAMPLES,
    seed: int = SEED,
) -> list[Area]:
    """Return the area between each curve and the baseline for a latency metric.

    The paired bootstrap resamples all N sentences with replacement, the same ones for all settings,
    `samples` times. The 95 % interval is given by the percentiles 2.5 and 97.5 of the differences.
    With b differences of at most 0 and a of at least 0, the two-sided p-value is 2 (min(a, b) + 1)
    / (samples + 1), at most 1. Resamples without a common range are left out.
    """
    settings = [*baseline, *(setting for curve in curves for setting in curve)]
    ends = numpy.cumsum([len(baseline), *map(len, curves)]).tolist()
    whole = numpy.ones((1, len(baseline[0].counts)))
    weights = itertools.chain([whole], bootstrap.weights(len(whole[0]), samples, seed))
    (latencies, bleus), *drawn = _points(settings, metric, weights)
    resampled = [points for block in drawn for points in zip(*block, strict=True)]
    results = []
    for start, end in itertools.pairwise(ends):
        own, other = slice(start, end), slice(0, ends[0])
        point = area(latencies[0, own], bleus[0, own], latencies[0, other], bleus[0, other])
        differences = numpy.array(
            [area(x[own], y[own], x[other], y[other]).difference for x, y in resampled]
            if not math.isnan(point.difference)
            else []
        )
        differences = differences[~numpy.isnan(differences)]
        if count := len(differences):
            fewer = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
            point = dataclasses.replace(
                point,
                interval=bootstrap.interval(differences),
                p_value=min(1.0, 2 * (fewer + 1) / (count + 1)),
                resamples=count,
            )
        results.append(point)
    return results


def _points(
    settings: Sequence[SettingScores], metric: str, weights: Iterable[Numbers]
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield latency and BLEU [block, settings] of weighted sentences, for each block of weights."""
    columns: list[NDArray[numpy.generic]] = []
    for setting in settings:
        values = setting.latencies[metric]
        known = ~numpy.isnan(values)
        columns += [setting.counts, numpy.where(known, values, 0)[:, None], known[:, None]]
    table = numpy.concatenate(columns, axis=1, dtype=float)
    for block in weights:
        # Sums of whole numbers are exact in float64.
        sums = (block @ table).reshape(len(block), len(settings), -1)
        known_sums = sums[..., -1]
        latencies = numpy.where(known_sums, sums[..., -2] / numpy.maximum(known_sums, 1), math.nan)
        yield latencies, corpus_bleus(sums[..., :-2])
