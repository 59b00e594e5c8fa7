"""What tunings of early exit found: their `results.json` as curves, several in one picture."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.result_files import read_result_file
from nmtgrid.analysis.tuning import Curve, Kind, Mark
from nmtgrid.base.errors import ConfigError

_ADVICE = "Name the file, or the folder, that `nmtgrid adaptive-tune --out` wrote."
_MEGA = 1e6
_SETTINGS = {
    "beam": "beam",
    "precision": "precision",
    "exits": "number of exits",
    "budget": "budget width",
    "split": "split tuned on",
}
"""What tunings must have alike to stand in one picture, and how it is called."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A way to decode: BLEU (percent), average exit, FLOPs a token, seconds, the split's budget.

    Exit and FLOPs are NaN where they are not known: those of a decoder that has no blocks.
    `share` is the time over that of the full stack, which was decoded in turn with it; `rank` is
    BLEU on the split that was tuned on, by which points of one budget are chosen.
    """

    label: str
    budget: float
    rank: float
    bleu: float
    average_exit: float
    flops: float
    seconds: float
    share: float


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The points of one tuning by kind, on the split that it reports.

    `settings` are those that tunings must have alike to be compared, as text; one may be missing.
    """

    name: str
    split: str
    sentences: int
    groups: Mapping[Kind, Sequence[Point]]
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def search(self) -> str:
        """How was searched: "greedy" or "beam N"; nothing where it is not known."""
        beam = self.settings.get("beam")
        return "" if beam is None else "greedy" if beam == "1" else f"beam {beam}"


def read_tuned(path: Path, name: str | None = None) -> Tuned:
    """Return what a file or folder holds; `name` renames it.

    Raises InputError for what is no result of a tuning, StorageError for no file.
    """
    return read_result_file(
        path, lambda values: tuned(values, name), content="results of adaptive-tune", advice=_ADVICE
    )


def tuned(values: Mapping[str, Any], name: str | None = None) -> Tuned:
    """Return the points of a report, of its test split where there is one."""
    tested = values["test_split"] is not None
    full = _shown(values["full"], tested)["seconds"]
    groups: dict[Kind, list[Point]] = {
        "adaptive": [_point(row, f"{row['budget']:g}", tested, full) for row in values["points"]],
        "fixed": [_point(row, str(row["exit"]), tested, full) for row in values["fixed"]],
        "baseline": [
            _point(row, "" if row["depth"] is None else str(row["depth"]), tested, full)
            for row in values["baselines"]
        ],
        "uniform": [_point(values["uniform"], "", tested, full)] if values["uniform"] else [],
    }
    return Tuned(
        str(name or values["name"]),
        str(values["test_split"] if tested else values["split"]),
        int(values["test_sentences"] if tested else values["sentences"]),
        groups,
        {name: _told(values[name]) for name in _SETTINGS if values.get(name) is not None},
    )


def check_alike(found: Sequence[Tuned]) -> None:
    """Raise ConfigError unless tunings report the same sentences and were measured alike."""
    splits = sorted({f"{one.split} ({one.sentences:,} sentences)" for one in found})
    if len(splits) > 1:
        raise ConfigError(
            f"These tunings report different splits: {', '.join(splits)}.",
            "Compare what was measured on the same sentences.",
        )
    faults = []
    for name, title in _SETTINGS.items():
        by_value: dict[str, str] = {}
        for one in found:
            if name in one.settings:
                by_value.setdefault(one.settings[name], one.name)
        if len(by_value) > 1:
            told = ", ".join(f"{value} (`{whose}`)" for value, whose in by_value.items())
            faults.append(f"These tunings differ in their {title}: {told}.")
    if faults:
        raise ConfigError(faults, "Compare what was tuned and measured alike.")


def curves(found: Sequence[Tuned], *, seconds: bool) -> list[Curve]:
    """Return a curve for each name; those of one name are pooled, the best for each budget.

    The third place of a mark is seconds, or else percent of the full stack's time. Fixed exits,
    the random one and baselines are those of the first tuning that has them.
    """
    drawn: list[Curve] = []
    for name in dict.fromkeys(one.name for one in found):
        own = [point for one in found if one.name == name for point in one.groups["adaptive"]]
        drawn.append(Curve(name, "adaptive", _marks(best_of(own), seconds)))
    names: dict[Kind, str] = {
        "fixed": "fixed exits, 1 to N",
        "uniform": "random exits",
        "baseline": "decoders trained separately",
    }
    for kind, title in names.items():
        points = next((one.groups[kind] for one in found if one.groups[kind]), [])
        drawn.append(Curve(title, kind, _marks(points, seconds)))
    return [one for one in drawn if one.marks]


def best_of(points: Sequence[Point]) -> list[Point]:
    """Return for each budget the point that was best where it was tuned, by average exit."""
    best: dict[float, Point] = {}
    for one in points:
        if one.budget not in best or one.rank > best[one.budget].rank:
            best[one.budget] = one
    return sorted(best.values(), key=lambda one: one.average_exit)


def _marks(points: Sequence[Point], seconds: bool) -> list[Mark]:
    return [
        Mark(
            (one.average_exit, one.flops / _MEGA, one.seconds if seconds else 100 * one.share),
            one.bleu,
            one.label,
        )
        for one in points
    ]


def _shown(row: Mapping[str, Any], tested: bool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row["test"] if tested else row
    return found


def _point(row: Mapping[str, Any], label: str, tested: bool, full: float) -> Point:
    shown = _shown(row, tested)
    return Point(
        label,
        float(row.get("budget", math.nan)),
        float(row["bleu"]),
        float(shown["bleu"]),
        _number(shown["average_exit"]),
        _number(shown["flops_per_token"]),
        float(shown["seconds"]),
        float(shown["seconds"]) / max(full, 1e-9),
    )


def _told(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
