"""Online evaluations as a section: BLEU against latency, one curve for each system and policy.

Chapter 4 of the thesis; the results are those that `nmtgrid online-eval --out` writes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nmtgrid.analysis.plotting.lines import CurvePoint, Level, TradeoffCurve, draw_tradeoff
from nmtgrid.analysis.section import (
    Cell,
    Picture,
    Section,
    Table,
    format_interval,
    format_signed,
    read_result_file,
)
from nmtgrid.analysis.systems import corpus_title, shared_corpus
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.atomic import nan_to_none
from nmtgrid.base.io.records import (
    Count,
    Finite,
    NonNegative,
    Percent,
    Probability,
    Record,
    convert,
)
from nmtgrid.metrics.latency import (
    CONVENTIONS,
    METRICS,
    TARGET_LENGTHS,
    Convention,
    Unit,
    heading,
)
from nmtgrid.online.published import Evaluation
from nmtgrid.online.published import curves as published_curves
from nmtgrid.online.settings import KINDS, Setting

_FIGURES = (*METRICS, "length_ratio")
_ADVICE = "Name the file, or the folder, that `nmtgrid online-eval --out DIR` wrote."


@dataclasses.dataclass(frozen=True)
class OnlineResult:
    """One system with one setting: tokenised BLEU (percent), latency by unit and convention."""

    system: str
    setting: Setting
    bleu: float
    latencies: Mapping[tuple[Unit, Convention], Mapping[str, float]]
    evaluation: Evaluation
    """What was translated, and how its text was processed."""
    corpus: str
    split: str
    model: str
    """The model's folder, if the system is named after it."""
    seconds_per_token: float | None
    """Computation time, if measured."""
    average_exit: float | None
    """Blocks per token, with early exits."""
    erasure: float | None
    """Normalised erasure, for policies that revise their output."""

    def latency(self, metric: str, unit: Unit, convention: Convention) -> float:
        """Return a metric of `metrics.latency.METRICS` or `length_ratio`; NaN if undefined."""
        value = self.latencies.get((unit, convention), {}).get(metric)
        return math.nan if value is None else float(value)


class _Latency(Record):
    """The latencies of a row in one unit and convention; null where undefined."""

    unit: Unit
    convention: Convention
    ap: NonNegative | None
    al: Finite | None
    dal: Finite | None
    cw: NonNegative | None
    max_cw: NonNegative | None
    laal: Finite | None
    yaal: Finite | None
    length_ratio: NonNegative | None


class _Row(Record, rename={"oracle": "lambda"}):
    """A setting in the file, with the parameter of its policy."""

    system: str
    policy: str
    bleu_tokenized: Percent
    latencies: list[_Latency]
    parameter: str = ""
    value: Finite | None = math.nan
    options: dict[str, bool | int | float | str] | None = None
    k: Finite | None = math.nan
    threshold: Finite = math.nan
    oracle: NonNegative = math.nan
    computation_aware: dict[str, Finite | None] | None = None
    seconds_per_token: NonNegative | None = None
    average_exit: NonNegative | None = None
    erasure: NonNegative | None = None

    def result(self, evaluation: Evaluation, corpus: str, split: str, model: str) -> OnlineResult:
        """Return the row with the parameter. Raises ValueError if that is missing."""
        value = self.value
        if not self.parameter:
            # Results of version 0.1.0 have only the parameter's own key.
            old = {"wait-k": self.k, "threshold": self.threshold, "oracle": self.oracle}
            value = old.get(self.policy, value)
        # JSON has no infinity: a k of None is the whole source.
        value = math.inf if value is None else value
        if math.isnan(value) and (self.policy in KINDS or ".py:" not in self.policy):
            raise ValueError(f"a row of the policy `{self.policy}` lacks its parameter")
        latencies = {
            (row.unit, row.convention): {name: getattr(row, name) for name in _FIGURES}
            for row in self.latencies
        }
        # With the computation time of `online-eval --clock`: of words, as SimulEval counts them.
        aware = self.computation_aware or {}
        latencies.setdefault(("word", "simuleval"), {}).update(
            {name: aware.get(name.removeprefix(AWARE)) for name in TITLES if AWARE in name}
        )
        options = tuple((self.options or {}).items())
        parameter = "" if self.policy in KINDS else self.parameter
        setting = Setting(self.policy, value, options, parameter)
        return OnlineResult(
            self.system,
            setting,
            self.bleu_tokenized,
            latencies,
            evaluation,
            corpus,
            split,
            model,
            self.seconds_per_token,
            self.average_exit,
            self.erasure,
        )


AREA_METRICS = ("al", "dal")
"""The latency metrics over which areas are computed."""


@dataclasses.dataclass(frozen=True)
class CurveArea:
    """The area between a system's curve and wait-k's, over a latency metric, as in the file.

    `baseline` is the system whose wait-k is the reference, empty for the same system; `samples` and
    `seed` are the bootstrap's. The numbers are those of `metrics.areas.Area`, None if the curves
    have no common range.
    """

    system: str
    curve: str
    policy: str
    metric: str
    unit: Unit
    convention: Convention
    samples: Count
    seed: Count
    baseline: str = dataclasses.field(default="", kw_only=True)
    difference: Finite | None
    low: Finite | None
    high: Finite | None
    interval: tuple[Finite, Finite] | None
    p_value: Probability | None
    resamples: Count


class _System(Record):
    name: str
    model: str = ""


class _Results(Record):
    """The results file; version 0.1.0 did not store languages and text processing."""

    settings: list[_Row]
    languages: tuple[str, str] | None = None
    sentences: Count | None = None
    lowercase: bool | None = None
    subwords: Literal["bpe", "words", "sentencepiece"] | None = None
    data: str | None = None
    split: str | None = None
    systems: tuple[_System, ...] = ()
    areas: tuple[CurveArea, ...] = ()

    def results(self) -> list[OnlineResult]:
        """Return the settings. Raises ValueError if one lacks its parameter."""
        evaluation = Evaluation(self.languages, self.sentences, self.lowercase, self.subwords)
        corpus = ""
        if self.data is not None and self.split is not None:
            corpus = corpus_title(Path(self.data), self.languages or (), self.split)
        models = {
            system.name: system.model
            for system in self.systems
            if system.name == Path(system.model).name
        }
        return [
            row.result(evaluation, corpus, self.split or "", models.get(row.system, ""))
            for row in self.settings
        ]


def read_online_results(
    path: Path, name: str | None = None
) -> tuple[list[OnlineResult], list[CurveArea]]:
    """Return the results in a file or folder, and the areas; `name` renames the only system.

    Early versions computed no areas. Raises InputError if it is not the result of an online
    evaluation, StorageError if there is no file.
    """
    results, areas = read_result_file(
        path, _parse, content="results of an online evaluation", advice=_ADVICE
    )
    if name is None:
        return results, areas
    systems = {result.system for result in results}
    if len(systems) > 1:
        raise InputError(
            f"it has {len(systems)} systems, which cannot all be named `{name}`.",
            "Leave the name out.",
            path=path,
        )
    return (
        [dataclasses.replace(result, system=name, model="") for result in results],
        [dataclasses.replace(area, system=name) for area in areas],
    )


def _parse(values: Any) -> tuple[list[OnlineResult], list[CurveArea]]:
    read = convert(values, _Results)
    return read.results(), [*read.areas]


def latency_curves(
    results: Sequence[OnlineResult], metric: str, unit: Unit, convention: Convention
) -> tuple[list[TradeoffCurve], list[Level]]:
    """Return a curve by rising latency for each system and policy, and levels for offline BLEU.

    With one system its name is left out.
    """
    curves: list[TradeoffCurve] = []
    levels: list[Level] = []
    systems = dict.fromkeys(result.system for result in results)
    for system in systems:
        prefix = "" if len(systems) == 1 else f"{system}, "
        own = [result for result in results if result.system == system]
        # A curve for each policy and its other settings, the known policies first.
        groups: dict[tuple[str, tuple[tuple[str, object], ...]], list[OnlineResult]] = {}
        kinds = [*KINDS, *(result.setting.policy for result in own)]
        for result in sorted(own, key=lambda result: kinds.index(result.setting.policy)):
            if not result.setting.is_offline:
                groups.setdefault(result.setting.curve, []).append(result)
        for (policy, _), group in groups.items():
            name = group[0].setting.curve_label
            # Undefined where everything is read before the first write, as YAAL is.
            group = [r for r in group if math.isfinite(r.latency(metric, unit, convention))]
            # Along the axis: the line must not turn back if a larger k lags less.
            ordered = sorted(group, key=lambda result: result.latency(metric, unit, convention))
            points = [
                CurvePoint(
                    (result.latency(metric, unit, convention),),
                    result.bleu,
                    result.setting.number if result.setting.letter else "",
                )
                for result in ordered
            ]
            if points:
                swept = group[0].setting.letter
                curves.append(TradeoffCurve(f"{prefix}{name}", points, policy, swept=swept))
        levels += [Level(prefix, result.bleu) for result in own if result.setting.is_offline]
    # Several settings may be offline translation, such as k = inf and n = inf.
    return curves, list(dict.fromkeys(levels))


def reference_curves(name: str) -> list[TradeoffCurve]:
    """Return the published curves called `name`. Raises ConfigError for an unknown name."""
    return [
        TradeoffCurve(
            curve.title,
            [
                CurvePoint(
                    (point.al,), point.bleu, "" if point.setting is None else f"{point.setting:g}"
                )
                for point in curve.points
            ],
            curve.policy,
            is_reference=True,
            short=curve.name,
        )
        for curve in published_curves(name)
    ]


AWARE = "ca-"
"""Prefix of computation-aware metrics."""
TITLES = {
    "al": "average lagging AL", "ap": "average proportion AP",
    "dal": "differentiable average lagging DAL", "laal": "length-adaptive average lagging LAAL",
    "yaal": "YAAL", "cw": "consecutive wait CW", "max_cw": "longest consecutive wait",
    "ca-al": "computation-aware average lagging AL",
    "ca-laal": "computation-aware length-adaptive average lagging LAAL",
}  # fmt: skip
_TEXT = """Quality against delay of online (simultaneous) decoding: tokenised BLEU in percent; \
latency in source {unit}s (AP: the share of the source), in the {convention}. The \
ratio of lengths is hypothesis over reference, in {unit}s."""


def latency_section(
    results: Sequence[OnlineResult],
    metric: str = "al",
    unit: Unit = "token",
    convention: Convention = "thesis",
    published_as: str | None = None,
    title: str | None = None,
    areas: Sequence[CurveArea] = (),
) -> Section:
    """Return the table of all settings, the curves against `metric`, and areas to wait-k's.

    `published_as` names published curves to draw behind. Raises ConfigError for an unknown name,
    and for two systems with the same name, whose points would be joined to one curve. Only the
    areas of this unit and convention are shown.
    """
    if metric.startswith(AWARE):
        unit, convention = "word", "simuleval"
    _check_metric(results, metric, unit, convention)
    _check_sentences(results)
    _check_names(results, metric, unit, convention)
    # Equal results of one setting, as in two evaluations with k = 1, are shown once.
    results = [*{(result.system, result.setting): result for result in results}.values()]
    areas = [row for row in areas if (row.unit, row.convention) == (unit, convention)]
    references = [] if published_as is None else reference_curves(published_as)
    curves, levels = latency_curves(results, metric, unit, convention)
    # AP is a share and has no unit.
    what = "" if metric == "ap" else f"source {unit}s, "

    def draw(path: Path) -> None:
        draw_tradeoff(
            [*curves, *references],
            path,
            title=title or "Quality against latency",
            x_labels=[f"{TITLES[metric]} ({what}{CONVENTIONS[convention]})"],
            y_label="BLEU, tokenised (percent)",
            levels=levels,
        )

    described = f"{CONVENTIONS[convention]} ({TARGET_LENGTHS[convention]})"
    rows, table = _settings_table(results, unit, convention, metric.startswith(AWARE))
    caption = f"BLEU against {TITLES[metric]}, a curve for each system and policy."
    return Section(
        "latency",
        "Online decoding: quality against latency",
        _TEXT.format(unit=unit, convention=described),
        [table, *([area_table(areas)] if areas else [])],
        [Picture("latency", caption, draw)],
        {
            "unit": unit,
            "convention": convention,
            "metric": metric,
            "settings": rows,
            "areas": [dataclasses.asdict(row) for row in areas],
        },
        # A title that the user gives is not changed.
        "" if title else shared_corpus(result.corpus for result in results),
    )


def _check_metric(
    results: Sequence[OnlineResult], metric: str, unit: Unit, convention: Convention
) -> None:
    """Raise ConfigError if no setting has such a latency."""
    if any(math.isfinite(result.latency(metric, unit, convention)) for result in results):
        return
    if metric.startswith(AWARE):
        raise ConfigError(
            "These evaluations have no measured times.",
            "Evaluate with `nmtgrid online-eval --clock`.",
        )
    raise ConfigError(
        f"No setting of these evaluations has a latency `{metric}` in {unit}s and the "
        f"{CONVENTIONS[convention]}.",
        "Choose others, or evaluate anew with `nmtgrid online-eval`.",
    )


def _check_sentences(results: Sequence[OnlineResult]) -> None:
    """Raise ConfigError for evaluations of different languages, splits or numbers of sentences."""
    of_all = [result.evaluation for result in results]
    # Results of earlier versions lack some: unknown values are compatible with all.
    pairs = {"-".join(each.languages) for each in of_all if each.languages is not None}
    counts = {each.sentences for each in of_all if each.sentences is not None}
    splits = {f"`{result.split}`" for result in results if result.split}
    sizes = [f"{count:,} sentences" for count in sorted(counts)]
    for kinds in (sorted(pairs), sorted(splits), sizes):
        if len(kinds) > 1:
            raise ConfigError(
                f"These evaluations are of different test sets: {', '.join(kinds)}.",
                "Compare evaluations of the same sentences.",
            )


def _check_names(
    results: Sequence[OnlineResult], metric: str, unit: Unit, convention: Convention
) -> None:
    """Raise ConfigError if a name stands for two models, or a setting has different results.

    A name that the user gives may join several models to one curve.
    """
    known: dict[tuple[str, Setting], tuple[float, str]] = {}
    folders: dict[str, str] = {}
    for result in results:
        # An unknown folder (none) tells nothing about those of later results.
        folder = folders[result.system] = folders.get(result.system) or result.model
        # One folder, if one path is the end of the other, or unknown.
        ends = zip(reversed(Path(folder).parts), reversed(Path(result.model).parts), strict=False)
        if not all(ours == theirs for ours, theirs in ends):
            raise ConfigError(
                f"Two models are called `{result.system}`: {folder} and {result.model}.",
                "Give their evaluations different names, as in NAME=RESULTS.",
            )
        # As text, so that an undefined latency equals another.
        values = result.bleu, str(result.latency(metric, unit, convention))
        if known.setdefault((result.system, result.setting), values) != values:
            raise ConfigError(
                f"There are two different results of `{result.system}` with "
                f"{result.setting.title}: of different models, sentences or options.",
                "Give the evaluations different names, as in NAME=RESULTS.",
            )


def _settings_table(
    results: Sequence[OnlineResult], unit: Unit, convention: Convention, with_time: bool
) -> tuple[list[dict[str, Any]], Table]:
    """Return the rows of the file and the table; `with_time` adds computation-aware metrics."""
    names = (*METRICS, *(name for name in TITLES if with_time and name.startswith(AWARE)))
    revises = any(result.erasure is not None for result in results)
    rows = []
    for result in results:
        figures = {name: result.latency(name, unit, convention) for name in names}
        time = {"seconds_per_token": result.seconds_per_token, "average_exit": result.average_exit}
        rows.append({
            "system": result.system,
            **result.setting.values(),
            "bleu_tokenized": result.bleu,
            **nan_to_none({name.replace("-", "_"): value for name, value in figures.items()}),
            "length_ratio": nan_to_none(result.latency("length_ratio", unit, convention)),
            **(time if with_time else {}),
            **({"erasure": result.erasure} if revises else {}),
        })  # fmt: skip
    shown = [*METRICS, "length_ratio"]
    headings = [*map(heading, METRICS), "ratio"]
    caption = f"BLEU tokenised (percent); latency in source {unit}s (AP: share), "
    caption += f"{CONVENTIONS[convention]};\nratio: {unit}s of hypothesis / reference"
    if with_time:
        shown = ["al", "ca_al", "laal", "ca_laal"]
        headings = ["AL", "CA-AL", "LAAL", "CA-LAAL", "ms/token", "exit"]
        caption = f"BLEU tokenised (percent); latency in source {unit}s, {CONVENTIONS[convention]}"
        caption += ", CA-:\ncomputation-aware; exit: blocks per token (-: all)"
    if revises:
        headings.append("NE")
        caption += "; NE: normalised\nerasure, tokens taken back per final token"
    cells = []
    for result, row in zip(results, rows, strict=True):
        figures_shown = [*map(row.get, shown)]
        if with_time:
            seconds = result.seconds_per_token
            figures_shown += [None if seconds is None else 1000 * seconds, result.average_exit]
        if revises:
            figures_shown.append(result.erasure)
        cells.append([result.system, result.setting.short_title, result.bleu, *figures_shown])
    return rows, Table(caption, ["system", "", "BLEU", *headings], cells)


def area_table(areas: Sequence[CurveArea]) -> Table:
    """Return the table of areas (at least one) of one unit and convention."""
    first = areas[0]
    tests = {(row.samples, row.seed): None for row in areas if row.samples}
    note = "" if not tests else "; 95 % and p (two-sided): paired\nbootstrap over sentences, "
    note += " and ".join(f"{samples:,} resamples, seed {seed}" for samples, seed in tests)
    baselines = any(row.baseline for row in areas)
    return Table(
        "BLEU above wait-k's at equal latency: mean difference over the latencies that both "
        f"curves reach\n(source {first.unit}s, {CONVENTIONS[first.convention]}){note}",
        ["system", "curve", *(["wait-k of"] if baselines else []), "by", "BLEU", "95 %", "p",
         "from", "to"],
        [_cells(row, baselines) for row in areas],
    )  # fmt: skip


def _cells(row: CurveArea, baselines: bool) -> list[Cell]:
    p_value = None if row.p_value is None else f"{row.p_value:.3f}"
    difference = None if row.difference is None else format_signed(row.difference, 2)
    ends = (row.low, row.high)
    baseline = [row.baseline or row.system] if baselines else []
    interval = format_interval(row.interval, 2, "+")
    figures = (row.metric.upper(), difference, interval, p_value, *ends)
    return [row.system, row.curve, *baseline, *figures]
