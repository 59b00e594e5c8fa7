"""The area between two curves, by hand; its bootstrap against a plain loop; as a table."""

import dataclasses
import math
from pathlib import Path

import numpy
import pytest

from nmtgrid.analysis.latency import CurveArea, area_table, read_online_results
from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import with_checksum, write_json
from nmtgrid.metrics import bootstrap
from nmtgrid.metrics.areas import Area, SettingScores, area, areas
from nmtgrid.metrics.quality import Scorer


def test_straight_lines() -> None:
    # y = 5x + 5 from 1 to 5 and y = 5x from 0 to 4: 5 apart wherever both are.
    assert area([1, 5], [10, 30], [0, 4], [0, 20]) == Area(5.0, 1.0, 4.0)
    # 5x + 5 - 10x falls from 0 to -15 between 1 and 4.
    assert area([5, 1], [30, 10], [0, 4], [0, 40]) == Area(-7.5, 1.0, 4.0)


def test_bends_of_both_curves_count() -> None:
    # A triangle of height 10 above a flat line, and under one that has a valley of depth 4 there.
    triangle = [0, 1, 2], [0, 10, 0]
    assert area(*triangle, [0, 2], [0, 0]).difference == 5.0
    assert area(*triangle, [0, 0.5, 1, 2], [0, 0, -4, 0]).difference == pytest.approx(5 + 1.5)


def test_points_in_any_order_and_of_the_same_latency() -> None:
    # At latency 2 the mean of 4 and 8; the point without a latency does not count.
    assert area([2, 0, 2, math.nan], [4, 0, 8, 99], [0, 3], [0, 0]) == Area(3.0, 0.0, 2.0)


@pytest.mark.parametrize("latency", [[5, 6], [4, 5], [2, 2], [math.nan, 2], []])
def test_without_a_common_range(latency: list[float]) -> None:
    result = area(latency, [1.0] * len(latency), [1, 4], [1, 2])
    assert math.isnan(result.difference) and math.isnan(result.low)
    assert (result.interval, result.p_value, result.resamples) == (None, None, 0)


def _setting(generator: numpy.random.Generator, lag: float, count: int = 7) -> SettingScores:
    """Return a setting whose sentences match some of their n-grams; one has no latency."""
    lengths = generator.integers(4, 12, count)
    totals = lengths[:, None] - numpy.arange(4)
    matched = numpy.minimum(generator.integers(0, 9, (count, 1)), totals)
    references = generator.integers(4, 12, (count, 1))
    counts = numpy.concatenate([lengths[:, None], references, matched, totals], axis=1)
    latency = lag + generator.random(count)
    latency[2] = math.nan
    return SettingScores(counts, {"al": latency})


def _curve(seed: int, *lags: float) -> list[SettingScores]:
    generator = numpy.random.default_rng(seed)
    return [_setting(generator, lag) for lag in lags]


def test_the_bootstrap_is_that_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, curve, far = _curve(1, 1, 3, 5), _curve(2, 2, 2.3), _curve(3, 9, 10)
    scorer, samples, seed = Scorer("bleu", "none"), 50, 3

    def point(setting: SettingScores, lines: list[int]) -> tuple[float, float]:
        known = [x for x in setting.latencies["al"][lines].tolist() if not math.isnan(x)]
        latency = sum(known) / len(known) if known else math.nan
        return latency, scorer.score(setting.counts[lines].sum(axis=0).tolist())

    def difference(lines: list[int]) -> float:
        (x, y), (other_x, other_y) = (
            zip(*(point(setting, lines) for setting in group), strict=True)
            for group in (curve, baseline)
        )
        return area(x, y, other_x, other_y).difference

    indices = numpy.random.default_rng(seed).integers(0, 7, (samples, 7)).tolist()
    drawn = [difference(lines) for lines in indices]
    known = [value for value in drawn if not math.isnan(value)]
    fewer = min(sum(value <= 0 for value in known), sum(value >= 0 for value in known))
    for most in (1 << 24, 7 * 20):  # all resamples at once, or twenty at a time
        monkeypatch.setattr(bootstrap, "_MOST_WEIGHTS", most)
        result, nothing = areas([curve, far], baseline, "al", samples, seed)
        assert result.difference == pytest.approx(difference([*range(7)]))
        assert result.interval == pytest.approx(numpy.percentile(known, [2.5, 97.5]))
        assert result.p_value == pytest.approx(min(1, 2 * (fewer + 1) / (len(known) + 1)))
        assert result.resamples == len(known)
        assert math.isnan(nothing.difference) and nothing.p_value is None


def test_equal_curves_and_no_doubt() -> None:
    baseline = _curve(1, 1, 3, 5)
    (result,) = areas([baseline[::-1]], baseline, "al", 100)
    assert (result.difference, result.interval, result.p_value) == (0.0, (0.0, 0.0), 1.0)
    # One sentence: 3 of 4, 2 of 3, 1 of 2 and 1 of 1 match, or all; the same in every resample.
    some, every = ([4, 4, 3, 2, 1, 1, 4, 3, 2, 1], [4, 4, 4, 3, 2, 1, 4, 3, 2, 1])
    low, high = (
        [SettingScores(numpy.array([row]), {"al": numpy.array([lag])}) for lag in (1.0, 2.0)]
        for row in (some, every)
    )
    (result,) = areas([high], low, "al", 99)
    apart = 100 - 100 * (3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert result.difference == pytest.approx(apart)
    assert result.interval == pytest.approx((apart, apart)) and result.p_value == 2 / 100
    assert areas([high], low, "al", 0)[0].interval is None


def test_areas_are_read_back_and_shown(tmp_path: Path) -> None:
    tested = (1.234, 1.0, 4.0, (0.5, 2.0), 0.004, 1000)
    rows = [
        CurveArea("a", "confidence", "confidence", "al", "word", "thesis", 1000, 12345, *tested),
        CurveArea("a", "agent", "threshold", "dal", "word", "thesis", 1000, 12345,
                  None, None, None, None, None, 0),
    ]  # fmt: skip
    path = tmp_path / "results.json"
    values = {"settings": [], "areas": [dataclasses.asdict(row) for row in rows]}
    write_json(path, with_checksum(values))
    _, renamed = read_online_results(path, "b")
    assert renamed == [dataclasses.replace(row, system="b") for row in rows]
    table = area_table(rows)
    assert "source words, thesis" in table.title and "1,000 resamples, seed 12345" in table.title
    assert table.formatted() == [
        ["a", "confidence", "AL", "+1.23", "[+0.50, +2.00]", "0.004", "1.00", "4.00"],
        ["a", "agent", "DAL", "-", "-", "-", "-", "-"],
    ]
    path.write_text('{"areas": [{}]}', encoding="utf-8")
    with pytest.raises(InputError, match="no results of an online evaluation"):
        read_online_results(path)
    path.write_text('{"settings": []}', encoding="utf-8")
    assert read_online_results(path) == ([], [])
