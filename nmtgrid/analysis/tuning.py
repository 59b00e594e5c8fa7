"""Results of early-exit tuning as a section: BLEU against average exit, operations and time.

Chapter 5 of the thesis; the results are those that `nmtgrid adaptive-tune --out` writes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nmtgrid.analysis.plotting.lines import CurvePoint, TradeoffCurve, draw_tradeoff
from nmtgrid.analysis.section import Picture, Section, Table, read_result_file
from nmtgrid.analysis.systems import corpus_title, shared_corpus
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import nan_to_none
from nmtgrid.base.io.records import Count, NonNegative, Percent, Record, Small, convert

Kind = Literal["adaptive", "fixed", "verified", "baseline", "uniform"]
_ADVICE = "Name the file, or the folder, that `nmtgrid adaptive-tune --out` wrote."
_MEGA = 1e6
# Settings that tunings must share to be drawn in one figure, and their names.
_SETTINGS = {
    "beam": "beam",
    "precision": "precision",
    "exits": "number of exits",
    "budget": "budget width",
    "split": "split tuned on",
}
# Baselines that are not adaptive, and the names of their curves.
_REFERENCES: Mapping[Kind, str] = {
    "fixed": "fixed exits",
    "verified": "verified exits",
    "uniform": "random exits",
    "baseline": "decoders trained separately",
}


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """A decoding setup: BLEU (percent), average exit, FLOPs per token, seconds, its budget.

    Exit and FLOPs are NaN if they are not known, as for a decoder that has no blocks. `share` is
    the time over that of the full stack, which was decoded alternately with it; `rank` is BLEU on
    the split used for tuning, by which points of one budget are chosen.
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
class TuningResult:
    """The operating points of one tuning by kind, on the split that it reports.

    `settings` are those that comparable tunings must share, as text; some may be missing.
    """

    name: str
    split: str
    sentences: int
    groups: Mapping[Kind, Sequence[OperatingPoint]]
    settings: Mapping[str, str]
    corpus: str
    full: tuple[float | None, ...]
    """BLEU, exit and operations of the full stack, which identify the model."""

    @property
    def search(self) -> str:
        """The search: "greedy" or "beam N"; empty if it is not known."""
        beam = self.settings.get("beam")
        return "" if beam is None else "greedy" if beam == "1" else f"beam {beam}"


def read_tuning(path: Path, name: str | None = None) -> TuningResult:
    """Return the tuning in a file or folder; `name` renames it.

    Raises InputError if it is not the result of a tuning, StorageError if there is no file.
    """
    return read_result_file(
        path,
        lambda values: parse_tuning(values, name),
        content="results of adaptive-tune",
        advice=_ADVICE,
    )


class _Measured(Record):
    """Quality and cost on a split; null where exits or operations are unknown."""

    bleu: Percent
    average_exit: NonNegative | None
    flops_per_token: NonNegative | None
    seconds: NonNegative


class _Row(_Measured, kw_only=True):
    """A decoding setup in the file, on the split used for tuning, and on the test split."""

    test: _Measured | None = None
    budget: NonNegative = math.nan
    exit: Small | None = None
    depth: Small | None = None

    def point(self, label: str, full: _Measured, *, on_test: bool) -> OperatingPoint:
        """Return the row as a point; `full` is the full stack. Raises ValueError without a test."""
        measured = self.test if on_test else self
        if measured is None:
            raise ValueError("a row has no `test`")
        exits, flops = measured.average_exit, measured.flops_per_token
        return OperatingPoint(
            label,
            self.budget,
            self.bleu,
            measured.bleu,
            math.nan if exits is None else exits,
            math.nan if flops is None else flops,
            measured.seconds,
            measured.seconds / max(full.seconds, 1e-9),
        )


class _Results(Record, kw_only=True):
    """The fields of a report that are read; older reports lack some settings."""

    name: str
    data: str | None = None
    split: str
    test_split: str | None
    sentences: Count
    test_sentences: Count | None = None
    full: _Row
    points: list[_Row]
    fixed: list[_Row]
    verified: Sequence[_Row] = ()
    baselines: list[_Row]
    uniform: _Row | None
    beam: Small | None = None
    precision: str | None = None
    exits: Small | None = None
    budget: NonNegative | None = None


def parse_tuning(values: Mapping[str, Any], name: str | None = None) -> TuningResult:
    """Return the points of a report, on its test split if there is one.

    Raises ValueError if it is not a report.
    """
    report = convert(values, _Results)
    # Setups tuned on one split are reported on the other, if there is one.
    on_test = report.test_split is not None
    full = report.full.test if on_test else report.full
    if full is None:
        raise ValueError("`full.test` is missing")
    rows: dict[Kind, list[tuple[_Row, str]]] = {
        "adaptive": [(row, f"{row.budget:g}") for row in report.points],
        "fixed": [(row, str(row.exit)) for row in report.fixed],
        "verified": [(row, str(row.exit)) for row in report.verified],
        "baseline": [(row, str(row.depth or "")) for row in report.baselines],
        "uniform": [(report.uniform, "")] if report.uniform else [],
    }
    settings = {key: getattr(report, key) for key in _SETTINGS}
    split = report.test_split or report.split
    return TuningResult(
        name or report.name,
        split,
        (report.test_sentences or 0) if on_test else report.sentences,
        {
            kind: [row.point(label, full, on_test=on_test) for row, label in group]
            for kind, group in rows.items()
        },
        {
            # 0.5 and 0.50 are the same width.
            key: f"{value:g}" if isinstance(value, float) else str(value)
            for key, value in settings.items()
            if value is not None
        },
        "" if report.data is None else corpus_title(Path(report.data), (), split),
        (report.full.bleu, full.bleu, full.average_exit, full.flops_per_token),
    )


def check_alike(results: Sequence[TuningResult]) -> None:
    """Raise ConfigError unless tunings report the same sentences and were measured alike."""
    splits = sorted({f"{result.split} ({result.sentences:,} sentences)" for result in results})
    if len(splits) > 1:
        raise ConfigError(
            f"These tunings report different splits: {', '.join(splits)}.",
            "Compare tunings on the same sentences.",
        )
    faults = []
    for key, title in _SETTINGS.items():
        names: dict[str, str] = {}
        for result in results:
            # Results of earlier versions lack some: unknown values are compatible with all.
            if key in result.settings:
                names.setdefault(result.settings[key], result.name)
        if len(names) > 1:
            listed = ", ".join(f"{value} (`{name}`)" for value, name in names.items())
            faults.append(f"These tunings differ in their {title}: {listed}.")
    if faults:
        raise ConfigError(faults, "Compare tunings with the same settings.")


@dataclasses.dataclass(frozen=True)
class _Group:
    """The points of a curve; `owner` is the system with these exits, if models differ."""

    name: str
    kind: Kind
    points: Sequence[OperatingPoint]
    owner: str = ""

    @property
    def title(self) -> str:
        """The name in tables and figures."""
        return f"{self.owner}: {self.name}" if self.owner else self.name


def exit_curves(results: Sequence[TuningResult], *, seconds: bool) -> list[TradeoffCurve]:
    """Return a curve for each name; those of one name are pooled, the best for each budget.

    The third cost of a point is seconds, or else percent of the full stack's time. Fixed, verified
    and random exits are those of each name, if the tunings are of different models.
    """
    return [
        TradeoffCurve(
            group.title,
            [
                CurvePoint(
                    (
                        point.average_exit,
                        point.flops / _MEGA,
                        point.seconds if seconds else 100 * point.share,
                    ),
                    point.bleu,
                    point.label,
                )
                for point in group.points
            ],
            group.kind,
            is_reference=group.kind != "adaptive",
        )
        for group in _groups(results)
    ]


def _groups(results: Sequence[TuningResult]) -> list[_Group]:
    """Return the points of each curve, as described in `exit_curves`."""
    named: dict[str, list[TuningResult]] = {}
    for result in results:
        named.setdefault(result.name, []).append(result)
    groups = []
    for name, own in named.items():
        points = sorted(_pooled(own, "adaptive"), key=lambda point: point.average_exit)
        groups.append(_Group(name, "adaptive", points))
    is_one_model = len({result.full for result in results}) == 1
    for kind, title in _REFERENCES.items():
        # Decoders trained separately belong to no system.
        if is_one_model or kind == "baseline":
            groups.append(_Group(title, kind, _pooled(results, kind)))
            continue
        groups += [_Group(title, kind, _pooled(own, kind), name) for name, own in named.items()]
    return [group for group in groups if group.points]


def _pooled(results: Sequence[TuningResult], kind: Kind) -> list[OperatingPoint]:
    """Return the points of all tunings, only the best of those with the same label."""
    best: dict[tuple[str, int], OperatingPoint] = {}
    for result in results:
        # Decoders trained separately may have the same number of blocks.
        seen: Counter[str] = Counter()
        for point in result.groups[kind]:
            key = point.label, seen[point.label]
            seen[point.label] += 1
            # By the split used for tuning: choosing by the reported scores would bias them.
            if key not in best or point.rank > best[key].rank:
                best[key] = point
    return list(best.values())


_TEXT = """Depth-adaptive decoding: tokens leave the decoder after different blocks. BLEU is \
tokenised, in percent, on {split}; the average exit is in blocks per token, operations are those \
of the decoder in MFLOPs per token, and time is a share of the full stack's, which was decoded \
alternately with it. Tunings of one name are pooled: the best for each budget, and for each exit, \
on the split used for tuning."""


def tuning_section(results: Sequence[TuningResult]) -> Section:
    """Return the points of all tunings in one table and figure. Raises as `check_alike` does."""
    check_alike(results)
    first = next((result for result in results if result.search), results[0])
    search = f", {first.search}" if first.search else ""
    corpus = shared_corpus(result.corpus for result in results)
    split = f"{first.split} ({first.sentences:,} sentences){search}"
    groups = _groups(results)
    rows: list[dict[str, Any]] = [
        {
            "system": group.name,
            **({"of": group.owner} if group.owner else {}),
            "label": point.label,
            "bleu": point.bleu,
            "average_exit": nan_to_none(point.average_exit),
            "seconds": point.seconds,
            "share": point.share,
            "flops_per_token": nan_to_none(point.flops),
        }
        for group in groups
        for point in group.points
    ]
    titles = [group.title for group in groups for _ in group.points]
    table = Table(
        f"{split}; BLEU tokenised (percent); average exit in blocks per token; MFLOPs of the "
        "decoder per token;\ntime in percent of the full stack's, which was decoded alternately",
        ["", "", "BLEU", "exit", "MFLOPs", "time"],
        [
            [
                title,
                *(row[key] for key in ("label", "bleu", "average_exit")),
                row["flops_per_token"] and row["flops_per_token"] / _MEGA,
                100 * row["share"],
            ]
            for title, row in zip(titles, rows, strict=True)
        ],
    )
    return Section(
        "depth",
        "Early exit: quality against cost",
        _TEXT.format(split=split),
        [table],
        [
            Picture(
                "depth",
                "BLEU against average exit, operations and time.",
                lambda path: draw_tunings(results, path, "" if corpus else first.split),
            )
        ],
        {"split": results[0].split, "rows": rows},
        corpus,
    )


def draw_tunings(
    results: Sequence[TuningResult], path: Path, split: str, seconds: str = ""
) -> None:
    """Draw BLEU against average exit, operations and time into `path`.

    Time is in percent of the full stack's, or in `seconds`, which says what takes them. Titles name
    the `split`.
    """
    search = next((result.search for result in results if result.search), "")
    draw_tradeoff(
        exit_curves(results, seconds=bool(seconds)),
        path,
        title=", ".join(filter(None, ["Early exit", split, search])) + ": quality against cost",
        x_labels=[
            "average exit (blocks per token)",
            "decoder's operations (MFLOPs per token)",
            seconds or "time (percent of the full stack's)",
        ],
        y_label="BLEU, tokenised (percent)",
    )
