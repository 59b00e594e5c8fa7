"""The areas between the curves of an evaluation and wait-k's, of the same system or of one."""

from __future__ import annotations

from collections.abc import Sequence

from nmtgrid.analysis.latency import AREA_METRICS, CurveArea
from nmtgrid.cli.online_eval.arguments import OnlineEvalArguments
from nmtgrid.cli.online_eval.files import System
from nmtgrid.metrics.areas import SettingScores, areas
from nmtgrid.metrics.ngrams import bleu_counts, words
from nmtgrid.metrics.quality import SEED
from nmtgrid.online.evaluate import Measured, sentence_latencies

_WAIT_K = ("wait-k", ())


def curve_areas(arguments: OnlineEvalArguments, systems: Sequence[System]) -> list[CurveArea]:
    """Return the area of each curve of two points or more to wait-k's.

    That is wait-k of the same system, or of `--baseline`, with which wait-k of the other systems
    is compared too.
    """
    curves = {system.name: _curves_of(system) for system in systems}
    # Counted once: with `--baseline` all systems are compared with the same curve.
    wait_k = {
        system.name: [_scores(arguments, system, measured) for measured in curve]
        for system in systems
        if arguments.baseline in (None, system.name)
        and (curve := curves[system.name].get(_WAIT_K)) is not None
    }
    rows = []
    for system in systems:
        baseline = arguments.baseline or system.name
        groups = [
            group
            for curve, group in curves[system.name].items()
            if system.name != baseline or curve != _WAIT_K
        ]
        if baseline in wait_k and groups:
            rows += _areas_of(arguments, system, groups, wait_k[baseline])
    return rows


def _curves_of(system: System) -> dict[tuple[object, ...], list[Measured]]:
    """Return the settings of each curve of two points or more."""
    groups: dict[tuple[object, ...], list[Measured]] = {}
    for measured in system.done:
        setting = measured.decoded.setting
        if not setting.is_offline:
            groups.setdefault(setting.curve, []).append(measured)
    return {curve: group for curve, group in groups.items() if len(group) > 1}


def _areas_of(
    arguments: OnlineEvalArguments,
    system: System,
    groups: Sequence[Sequence[Measured]],
    baseline: Sequence[SettingScores],
) -> list[CurveArea]:
    curves = [[_scores(arguments, system, each) for each in group] for group in groups]
    rows = {
        metric: areas(curves, baseline, metric, arguments.bootstrap, SEED)
        for metric in AREA_METRICS
    }
    return [
        CurveArea(
            system.name,
            group[0].decoded.setting.curve_label,
            group[0].decoded.setting.policy,
            metric,
            arguments.latency_unit,
            arguments.convention,
            arguments.bootstrap,
            SEED,
            rows[metric][index],
            baseline=arguments.baseline or "",
        )
        for index, group in enumerate(groups)
        for metric in AREA_METRICS
    ]


def _scores(arguments: OnlineEvalArguments, system: System, measured: Measured) -> SettingScores:
    """Return what BLEU of tokenised text and latency are computed from, by sentence."""
    outcomes = measured.decoded.outcomes
    vocabulary: dict[str, int] = {}
    hypotheses = words([outcome.words.split() for outcome in outcomes], vocabulary)
    references = words([line.reference.split() for line in system.sentences], vocabulary)
    latencies = sentence_latencies(system.sentences, outcomes, system.joiner)
    chosen = latencies[arguments.latency_unit, arguments.convention]
    return SettingScores(
        bleu_counts(hypotheses, references),
        {metric: getattr(chosen, metric) for metric in AREA_METRICS},
    )
