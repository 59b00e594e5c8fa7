"""The table of areas between curves of BLEU over latency and wait-k's curve.

The areas themselves are those of metrics/areas.py; results are read here, not computed again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.section import Cell, Table, read_result_file
from nmtgrid.base.io.atomic import nan_to_none
from nmtgrid.base.io.records import Count, Finite, Probability, Record, convert
from nmtgrid.metrics.areas import Area
from nmtgrid.metrics.latency import Convention, Unit

METRICS = ("al", "dal")
"""The metrics of latency that areas are taken over."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve of a system over a metric of latency; `samples` and `seed` are the bootstrap's."""

    system: str
    curve: str
    policy: str
    metric: str
    unit: Unit
    convention: Convention
    samples: Count
    seed: Count


@dataclasses.dataclass(frozen=True)
class CurveArea(Curve):
    """The area of a curve to wait-k's of the same system."""

    area: Area

    def values(self) -> dict[str, Any]:
        """Return JSON keys, with None for what there is not."""
        values: dict[str, Any] = nan_to_none(dataclasses.asdict(self))
        numbers: dict[str, Any] = values.pop("area")
        return values | numbers


@dataclasses.dataclass(frozen=True)
class _Row(Curve):
    """An area in the file; null where the curves have no common range."""

    difference: Finite | None
    low: Finite | None
    high: Finite | None
    interval: tuple[Finite, Finite] | None
    p_value: Probability | None
    resamples: Count

    def area(self, name: str | None) -> CurveArea:
        """Return the row; `name` renames the system."""
        curve = {field.name: getattr(self, field.name) for field in dataclasses.fields(Curve)}
        difference, low, high = (
            math.nan if number is None else number
            for number in (self.difference, self.low, self.high)
        )
        area = Area(difference, low, high, self.interval, self.p_value, self.resamples)
        return CurveArea(**curve | {"system": name or self.system}, area=area)


class _Results(Record):
    areas: tuple[_Row, ...] = ()


def read_areas(path: Path, name: str | None = None) -> list[CurveArea]:
    """Return the areas in a file or folder of `online-eval`; `name` renames its only system.

    Results of versions that computed none have none. Raises InputError for what is no such
    result, StorageError for no file.
    """
    return read_result_file(
        path, lambda values: [row.area(name) for row in convert(values, _Results).areas],
        content="results of an online evaluation",
        advice="Name the file, or the folder, that `nmtgrid online-eval --out DIR` wrote.",
    )  # fmt: skip


def area_table(areas: Sequence[CurveArea]) -> Table:
    """Return the table of areas (at least one) of one unit and convention."""
    first = areas[0]
    tests = {(row.samples, row.seed): None for row in areas if row.samples}
    note = "" if not tests else "; 95 % and p (two-sided): paired\nbootstrap over sentences, "
    note += " and ".join(f"{samples:,} resamples, seed {seed}" for samples, seed in tests)
    return Table(
        "BLEU above wait-k's at equal latency: mean difference over the latencies that both "
        f"curves reach\n(source {first.unit}s, {first.convention} convention){note}",
        ["system", "curve", "by", "BLEU", "95 %", "p", "from", "to"],
        [_cells(row) for row in areas],
    )


def _cells(row: CurveArea) -> list[Cell]:
    area = row.area
    interval = None if area.interval is None else "{:+.2f} to {:+.2f}".format(*area.interval)
    p_value = None if area.p_value is None else f"{area.p_value:.3f}"
    difference = None if math.isnan(area.difference) else f"{area.difference:+.2f}"
    ends = (area.low, area.high)
    return [row.system, row.curve, row.metric.upper(), difference, interval, p_value, *ends]
