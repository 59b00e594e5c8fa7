"""What online evaluations found: their `results.json` as rows, tables and curves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.latency import Curve, Level, Mark
from nmtgrid.analysis.result_files import read_result_file
from nmtgrid.base.errors import InputError
from nmtgrid.metrics.latency import METRICS, Convention, Unit
from nmtgrid.online.published import curves as published_curves
from nmtgrid.online.settings import Setting

POLICIES = {"wait-k": "wait-k", "threshold": "agent", "oracle": "oracle"}
"""What a policy is called beside its curve."""

_VALUES = {"wait-k": "k", "threshold": "threshold", "oracle": "lambda"}
_ADVICE = "Name the file, or the folder, that `nmtgrid online-eval --out DIR` wrote."


@dataclasses.dataclass(frozen=True)
class Result:
    """One system along one setting: tokenised BLEU (percent), latency by unit and convention."""

    system: str
    setting: Setting
    bleu: float
    latencies: Mapping[tuple[Unit, Convention], Mapping[str, float]]

    def latency(self, metric: str, unit: Unit, convention: Convention) -> float:
        """Return one of `metrics.latency.METRICS`, or `length_ratio`; NaN where it has none."""
        value = self.latencies.get((unit, convention), {}).get(metric)
        return math.nan if value is None else float(value)


def read_results(path: Path, name: str | None = None) -> list[Result]:
    """Return the results in a file or folder; `name` renames its only system.

    Raises InputError for what is no result of an online evaluation, StorageError for no file.
    """
    found = read_result_file(
        path, lambda values: [_result(row) for row in values["settings"]],
        content="results of an online evaluation", advice=_ADVICE,
    )  # fmt: skip
    systems = {one.system for one in found}
    if name is not None and len(systems) > 1:
        raise InputError(
            f"it has {len(systems)} systems, which cannot all be called `{name}`.",
            "Leave the name out.",
            path=path,
        )
    return found if name is None else [dataclasses.replace(one, system=name) for one in found]


def _result(row: Mapping[str, Any]) -> Result:
    policy = row["policy"]
    value = row[_VALUES[policy]]
    latencies = {
        (one["unit"], one["convention"]): {
            metric: one[metric] for metric in (*METRICS, "length_ratio")
        }
        for one in row["latencies"]
    }
    setting = Setting(policy, math.inf if value is None else float(value))
    return Result(str(row["system"]), setting, float(row["bleu_tokenized"]), latencies)


def curves(
    results: Sequence[Result], metric: str, unit: Unit, convention: Convention
) -> tuple[list[Curve], list[Level]]:
    """Return a curve for each system and policy, by rising latency, and levels for what is offline.

    With one system its name is left out.
    """
    found: list[Curve] = []
    levels: list[Level] = []
    systems = list(dict.fromkeys(one.system for one in results))
    for system in systems:
        prefix = "" if len(systems) == 1 else f"{system}, "
        own = [one for one in results if one.system == system]
        for policy, name in POLICIES.items():
            held = [
                (one.latency(metric, unit, convention), one)
                for one in own
                if one.setting.policy == policy and not one.setting.is_offline
            ]
            held.sort(key=lambda pair: pair[0])
            marks = [
                Mark(value, one.bleu, one.setting.number if place else one.setting.title)
                for place, (value, one) in enumerate(held)
            ]
            if marks:
                found.append(Curve(f"{prefix}{name}", marks, policy))
        levels += [Level(prefix, one.bleu) for one in own if one.setting.is_offline]
    return found, levels


def published(name: str) -> list[Curve]:
    """Return the published curves called `name`. Raises ConfigError for another one."""
    return [
        Curve(
            f"{one.label}, {'thesis ' if one.source.startswith('table') else ''}{one.source}",
            [
                Mark(point.al, point.bleu, "" if point.setting is None else f"{point.setting:g}")
                for point in one.points
            ],
            one.policy,
            published=True,
        )
        for one in published_curves(name)
    ]
