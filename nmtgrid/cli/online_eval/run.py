"""Runs `nmtgrid online-eval`: decodes models with all settings, prints tables, stores results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nmtgrid.analysis.latency import AREA_METRICS, CurveArea, area_table
from nmtgrid.base import console
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, InputError, NmtgridError, nearest
from nmtgrid.base.io.atomic import folder_name, name_faults, nan_to_none, split_label
from nmtgrid.base.io.lock import FolderLock
from nmtgrid.base.spans import plural
from nmtgrid.cli.decode.run import choose_halt
from nmtgrid.cli.online_eval.arguments import OnlineEvalArguments, own_metrics
from nmtgrid.cli.online_eval.calibrate import calibrated_settings, conclude, conditions_of
from nmtgrid.cli.online_eval.files import Files, System, path_rows
from nmtgrid.cli.options import check_same_text, write_report
from nmtgrid.data.dataset import Dataset, Split
from nmtgrid.metrics.areas import SettingScores, areas
from nmtgrid.metrics.latency import (
    CONVENTIONS,
    METRICS,
    TARGET_LENGTHS,
    Latency,
    Metric,
    heading,
)
from nmtgrid.metrics.ngrams import bleu_counts, words
from nmtgrid.metrics.quality import SEED, tokenizer
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.online.calibrate import OFFLINE, refused_candidates
from nmtgrid.online.evaluate import (
    ClockedDecoder,
    Measured,
    OnlineDecoder,
    Sentence,
    measure,
    read_sentences,
    sentence_latencies,
)
from nmtgrid.online.objectives.wait_k import trained_k
from nmtgrid.online.path_warnings import (
    ends_at_limit,
    length_limit_warning,
    reads_whole_source,
    whole_source_counts,
    whole_source_warning,
)
from nmtgrid.online.policy_presets import POLICY_FILE, PolicyPreset
from nmtgrid.online.published import Evaluation, warnings
from nmtgrid.online.settings import Setting, names_all
from nmtgrid.online.simuleval import Tokenizer, read_log, score
from nmtgrid.search.engine import hides_source_end
from nmtgrid.search.translate import TranslationOptions, Translator, default_plan
from nmtgrid.text.scripts import bleu_tokenizer


def score_log(
    path: Path, tokenizer: Tokenizer, json: Path | None, own: Mapping[str, Metric]
) -> None:
    """Print BLEU and latency in words of a log, and write them. Raises InputError for an empty log.

    `tokenizer` is that of BLEU, `own` are user-defined latency metrics.
    """
    instances = read_log(path)
    if not instances:
        raise InputError("the log has no sentences.", path=path)
    log_score = score(instances, tokenizer, own)
    thesis, aware = log_score.thesis, log_score.computation_aware
    rows = {"thesis": _row(thesis), "SimulEval": _row(log_score.simuleval)}
    if aware is not None:
        # `elapsed` grows with every write, so each write would count as one after a READ.
        rows["computation-aware"] = _row(dataclasses.replace(aware, cw=math.nan, max_cw=math.nan))
    console.table(
        f"{path}: {plural(thesis.sentences, 'sentence')}; latency in source words (AP: share of "
        "the source).\nthesis: |y| is the hypothesis' length; SimulEval: the reference's in AP "
        "and AL" + ("" if aware is None else "; computation-aware:\nSimulEval's of `elapsed`"),
        ["convention", *_headings(thesis)],
        [
            [name, *("-" if math.isnan(value) else value for value in row)]
            for name, row in rows.items()
        ],
        [False, *(True for _ in _headings(thesis))],
    )
    if log_score.bleu is not None:
        console.say(f"BLEU: {log_score.bleu.value:.2f}")
        console.say(f"signature of BLEU: {log_score.bleu.signature}")
    for note in log_score.notes:
        console.say(note)
    print_skipped({"": thesis})
    write_report(json, log_score.values())


def print_skipped(
    latencies: Mapping[str, Latency], settings: Mapping[str, Setting] | None = None
) -> None:
    """Print how many sentences have no latency, by title if the numbers differ.

    With several titles, those without any YAAL are left out, as the table shows it. A warning names
    the `settings`, other than offline ones, that translate most sentences offline.
    """
    skipped = {title: latency.skipped for title, latency in latencies.items()}
    # Skipped sentences have no YAAL either and would otherwise be reported twice.
    late = {
        title: whole_source_counts(latency)[0]
        for title, latency in latencies.items()
        if len(latencies) == 1 or not math.isnan(latency.yaal)
    }
    offline = {}
    for title, setting in (settings or {}).items():
        counts = whole_source_counts(latencies[title])
        if reads_whole_source(setting, *counts):
            offline[title] = counts
            late.pop(title, None)
    total = max(latency.sentences for latency in latencies.values())
    if text := _counted(skipped):
        console.say(
            f"In {text} of {total:,} sentences the source or the translation is empty; averages "
            "exclude them."
        )
    if text := _counted(late):
        console.say(
            f"In {text} of {total:,} sentences nothing was written before the whole source was "
            "read: YAAL excludes them."
        )
    if offline:
        console.warn(whole_source_warning(offline))


def _counted(counts: Mapping[str, int]) -> str:
    """Return the numbers above 0, with the titles that have each, or their range if many differ."""
    titles: dict[int, list[str]] = {}
    for title, count in counts.items():
        titles.setdefault(count, []).append(title)
    if len(titles) > 4:
        return f"{min(titles):,} to {max(titles):,} (by setting)"
    return ", ".join(
        f"{count:,}" + (f" ({', '.join(titles[count])})" if len(titles) > 1 else "")
        for count in titles
        if count
    )


def _headings(latency: Latency) -> list[str]:
    return [*map(heading, METRICS), *latency.own, "ratio"]


def _row(latency: Latency) -> list[float]:
    built_in = (getattr(latency, name) for name in METRICS)
    return [*built_in, *latency.own.values(), latency.length_ratio]


def evaluate(
    arguments: OnlineEvalArguments, settings: Sequence[Setting], presets: Sequence[PolicyPreset]
) -> None:
    """Evaluate the models; after an interruption or error, the results so far are still reported.

    `presets` are the stored presets among the settings.
    """
    assert arguments.data is not None
    dataset = Dataset.open(arguments.data)
    guarantee = arguments.guarantee
    settings = _settings_of_training(arguments) or settings
    if guarantee is not None and names_all(arguments.policies):
        settings = [setting for setting in settings if not refused_candidates([setting])]
    systems = _systems(arguments, settings, presets, dataset)
    # The number of sentences that `--sentences` and the split leave is known only now.
    for number in arguments.lines or ():
        if number > len(systems[0].sentences):
            raise ConfigError(
                f"`--line {number}`: there are only "
                f"{plural(len(systems[0].sentences), 'sentence')}."
            )
    lowercase = dataset.pipeline.facts.lowercase
    if arguments.beam > 1 and not all(
        setting.is_offline or setting.translates_prefixes
        for system in systems
        for setting in system.settings
    ):
        console.warn(
            f"`--beam {arguments.beam}` with limited reads: a beam may revise its output until the "
            "sentence ends, so latencies are those of the best hypothesis at the end, not of words "
            "that a user would have seen. With `--beam 1` words are final."
        )
    if (name := arguments.published) is not None:
        for reason in warnings(name, [_evaluation(systems[0])], arguments.latency_unit):
            console.warn(f"`--published {name}`: {reason}")
    # Folders are created first: a bad name must not waste the evaluation.
    files = Files(arguments, systems)
    folders = {os.path.realpath(path) for path in (arguments.out, arguments.simuleval) if path}
    if guarantee is not None and arguments.keep:
        POLICY_FILE.check_writable(systems[0].loaded.folder)
        folders.add(os.path.realpath(systems[0].loaded.folder))
    fault = None
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):
            stack.enter_context(FolderLock(Path(folder), "nmtgrid online-eval"))
        if guarantee is not None:
            sentences = systems[0].sentences
            if arguments.test_split:
                sentences = _sentences(arguments, systems[0], dataset.split(arguments.chosen_split))
            systems[0].settings, fault = calibrated_settings(
                arguments, guarantee, systems[0], sentences
            )
        _evaluate(arguments, systems, files, lowercase=lowercase)
    # Raised only now: failing to store a setting must not lose the results.
    if fault is not None:
        raise fault


def _faults_of_baseline(
    baseline: str, names: Sequence[str], settings: Sequence[Setting]
) -> list[str]:
    """Return errors in `--baseline`, a system's name, one sentence each."""
    faults = []
    if baseline not in names:
        faults.append(
            f"`--baseline {baseline}`: no model has that name. {nearest(baseline, names)} "
            "`NAME=MODEL` names one."
        )
    wait_k = [each for each in settings if each.policy == "wait-k" and not each.is_offline]
    if len(wait_k) < 2:
        faults.append("`--baseline` needs a wait-k curve: at least two values of `--k`.")
    return faults


def _settings_of_training(arguments: OnlineEvalArguments) -> list[Setting]:
    """Return wait-k with the k of training if no policy is given; none if a model has no k."""
    if arguments.k or arguments.thresholds or arguments.oracle:
        return []
    if arguments.policies or arguments.policy:
        return []
    try:
        each = [trained_k(split_label(text)[1]) for text in arguments.models or ()]
    except NmtgridError:  # reported later, with all other errors of the models
        return []
    numbers = sorted({k for k in each if k is not None})
    if None in each or not numbers:
        return []
    ways = ", ".join(f"wait-{k}" for k in numbers)
    console.say(f"note: trained with {ways}, so evaluated with the same; `--k` selects others.")
    return [Setting("wait-k", k) for k in numbers]


def _evaluation(system: System) -> Evaluation:
    """Return the description of the evaluation, which is the same for all systems."""
    facts = system.decoder.translator.pipeline.facts
    languages = facts.source_lang, facts.target_lang
    return Evaluation(languages, len(system.sentences), facts.lowercase, facts.subwords)


def _evaluate(
    arguments: OnlineEvalArguments,
    systems: Sequence[System],
    files: Files,
    *,
    lowercase: bool,
) -> None:
    own = own_metrics(arguments)
    try:
        total = sum(len(system.settings) * len(system.sentences) for system in systems)
        with console.progress("translating", total) as bar:
            meter = _Meter(bar)
            for system in systems:
                meter.name = f"{system.name}, " if len(systems) > 1 else ""
                for decoded in system.decoder.run(system.sentences, system.settings, meter.advance):
                    measured = measure(
                        system.sentences,
                        decoded,
                        system.joiner,
                        lowercase=lowercase,
                        lower=system.decoder.translator.pipeline.target.moses.lower,
                        language=system.language,
                        own=own,
                        words_per_minute=arguments.words_per_minute,
                    )
                    system.done.append(measured)
                    files.keep(system, measured)
                    # Rewritten after each setting, so that a killed run loses only the current one.
                    files.results(report(arguments, systems, complete=False))
    except (KeyboardInterrupt, NmtgridError):
        # Finished settings may have taken hours: they are reported even after Ctrl-C or an error
        # in a user-defined policy.
        _finish(arguments, systems, files, complete=False)
        done = sum(len(system.done) for system in systems)
        count = sum(len(system.settings) for system in systems)
        where = f"; results are in {arguments.out}" if arguments.out and done else ""
        console.say(f"{done} of {plural(count, 'setting')} done{where}.")
        raise
    _finish(arguments, systems, files, complete=True)


def report(
    arguments: OnlineEvalArguments, systems: Sequence[System], *, complete: bool
) -> dict[str, Any]:
    """Return JSON keys: all settings of all systems in one list."""
    return {
        "data": str(arguments.data),
        "split": arguments.evaluated_split,
        **dataclasses.asdict(_evaluation(systems[0])),
        "empty_sources": sum(not sentence.source for sentence in systems[0].sentences),
        "source": arguments.source,
        "unit": arguments.latency_unit,
        "convention": arguments.latency_convention,
        "beam": arguments.beam,
        "finish_reading": arguments.finish_reading,
        "exit": arguments.exit,
        "oracle_cost": arguments.oracle_cost,
        "weights": arguments.weights,
        "precision": arguments.precision,
        "device": systems[0].decoder.translator.device.type,
        **({"words_per_minute": arguments.words_per_minute} if arguments.clock else {}),
        **({"calibrated": systems[0].calibrated} if arguments.guarantee is not None else {}),
        "complete": complete,
        "systems": [
            {
                "name": system.name,
                "model": str(system.loaded.folder),
                "ensemble": [str(folder) for folder in arguments.ensemble or ()],
                "arch": system.decoder.translator.models[0].architecture,
            }
            for system in systems
        ],
        "settings": [
            {
                "system": system.name,
                **measured.values(arguments.latency_unit, arguments.latency_convention),
            }
            for system in systems
            for measured in system.done
        ],
    }


def _finish(
    arguments: OnlineEvalArguments, systems: Sequence[System], files: Files, *, complete: bool
) -> None:
    for system in systems:
        if system.done:
            _show(arguments, system)
        conclude(arguments, system)
    values = report(arguments, systems, complete=complete)
    area_rows = curve_areas(arguments, systems)
    values["areas"] = [dataclasses.asdict(row) for row in area_rows]
    if area_rows:
        table = area_table(area_rows)
        console.table(table.title, table.columns, table.formatted(), table.is_numeric)
    # Written twice: drawing reads the file, and the figures are known only afterwards.
    files.results(values)
    rows = path_rows(arguments, systems) if arguments.out is not None else {}
    values["pictures"] = [str(path) for path in files.draw([*rows.values()])]
    files.results(values)
    for name in values["pictures"]:
        console.say(f"Drawn: {name}")
    if left := [line for line in arguments.lines or () if line not in rows]:
        console.warn(
            f"`--line {left[0]}`: there is no path to plot. The line or its translation is "
            "empty, or every setting reads the whole source first."
        )
    write_report(arguments.json, values)


_WAIT_K = ("wait-k", ())


def curve_areas(arguments: OnlineEvalArguments, systems: Sequence[System]) -> list[CurveArea]:
    """Return the area between each curve of two or more points and the curve of wait-k.

    This is the wait-k of the same system, or of `--baseline`; the latter is also compared with the
    wait-k of the other systems.
    """
    curves: dict[str, dict[tuple[object, ...], list[Measured]]] = {}
    for system in systems:
        groups: dict[tuple[object, ...], list[Measured]] = {}
        for measured in system.done:
            if not measured.decoded.setting.is_offline:
                groups.setdefault(measured.decoded.setting.curve, []).append(measured)
        curves[system.name] = {curve: group for curve, group in groups.items() if len(group) > 1}
    # Computed once: with `--baseline` all systems are compared with the same curve.
    wait_k = {
        system.name: [_scores(arguments, system, measured) for measured in curve]
        for system in systems
        if arguments.baseline in (None, system.name)
        and (curve := curves[system.name].get(_WAIT_K)) is not None
    }
    rows = []
    for system in systems:
        baseline = arguments.baseline or system.name
        own = [
            group
            for curve, group in curves[system.name].items()
            if system.name != baseline or curve != _WAIT_K
        ]
        if baseline in wait_k and own:
            rows += _areas_of(arguments, system, own, wait_k[baseline])
    return rows


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
            arguments.latency_convention,
            arguments.bootstrap,
            SEED,
            baseline=arguments.baseline or "",
            **nan_to_none(dataclasses.asdict(rows[metric][index])),
        )
        for index, group in enumerate(groups)
        for metric in AREA_METRICS
    ]


def _scores(arguments: OnlineEvalArguments, system: System, measured: Measured) -> SettingScores:
    """Return the statistics of each sentence for tokenised BLEU and latency."""
    outcomes = measured.decoded.outcomes
    raw = [sentence.raw_reference for sentence in system.sentences]
    split = tokenizer(bleu_tokenizer(system.language, raw, "none"))
    vocabulary: dict[str, int] = {}
    hypotheses = words([split(outcome.words) for outcome in outcomes], vocabulary)
    references = words([split(line.reference) for line in system.sentences], vocabulary)
    latencies = sentence_latencies(system.sentences, outcomes, system.joiner)
    chosen = latencies[arguments.latency_unit, arguments.latency_convention]
    return SettingScores(
        bleu_counts(hypotheses, references),
        {metric: getattr(chosen, metric) for metric in AREA_METRICS},
    )


def _show(arguments: OnlineEvalArguments, system: System) -> None:
    unit, convention = arguments.latency_unit, arguments.latency_convention
    counted = system.done[0].latencies[unit, convention]
    how = "greedy" if arguments.beam == 1 else f"beam {arguments.beam}"
    revises = any(measured.decoded.erasure is not None for measured in system.done)
    leaves_early = any(measured.decoded.average_exit is not None for measured in system.done)
    extra = ["NE"] * revises + ["exit"] * leaves_early
    extra += ["ms/token", "95 %"] if arguments.clock else []
    console.table(
        f"{system.name}, {arguments.evaluated_split}: {plural(counted.sentences, 'sentence')}, "
        f"{how}; BLEU tokenised (percent); latency in source {unit}s\n(AP: share of the source), "
        f"{TARGET_LENGTHS[convention]} ({CONVENTIONS[convention]}); "
        f"ratio: {unit}s of hypothesis / reference"
        + ("; NE: normalised erasure, tokens" * ("NE" in extra))
        + ("\ntaken back per final token" * ("NE" in extra))
        + ("; exit: blocks per token" * ("exit" in extra))
        + (
            "\nms/token: time of work, one sentence after the other; 95 %: percentile"
            * arguments.clock
        ),
        ["", "BLEU", *_headings(counted), *extra],
        _rows(arguments, system.done, extra),
    )
    console.say(f"signature of BLEU: {system.done[0].tokenized.signature}")
    rates = [
        measured.decoded.target_tokens / max(measured.decoded.seconds, 1e-9)
        for measured in system.done
    ]
    seconds = sum(measured.decoded.seconds for measured in system.done)
    least, most = f"{min(rates):,.0f}", f"{max(rates):,.0f}"
    rate = least if least == most else f"{least} to {most}"
    console.say(f"{seconds:.1f} s, {rate} target tokens/s")
    print_skipped(
        {_title(m): m.latencies[unit, convention] for m in system.done},
        {_title(m): m.decoded.setting for m in system.done},
    )
    if warning := length_limit_warning(_at_limit(system)):
        console.warn(warning)


def _at_limit(system: System) -> dict[str, tuple[int, int]]:
    """Return, per setting, how many translations end at the length limit, and how many exist."""
    plan = system.decoder.translator.plan
    if hides_source_end(system.decoder.translator.models):
        return {}  # such a model does not stop by itself
    counts = {}
    for measured in system.done:
        pairs = zip(system.sentences, measured.decoded.outcomes, strict=True)
        at_limit = [
            ends_at_limit(len(outcome.units), [len(p.source) for p in sentence.segments()], plan)
            for sentence, outcome in pairs
            if sentence.source
        ]
        counts[_title(measured)] = sum(at_limit), len(at_limit)
    return counts


def _rows(
    arguments: OnlineEvalArguments, done: Sequence[Measured], extra: Sequence[str]
) -> list[list[Any]]:
    """Return the table's rows; a column in which a number is missing becomes aligned text."""
    ways = [
        measured.latencies[arguments.latency_unit, arguments.latency_convention]
        for measured in done
    ]
    columns: list[list[Any]] = [
        [measured.tokenized.value for measured in done],
        *map(list, zip(*map(_row, ways), strict=True)),
    ]
    if "NE" in extra:
        erasures = [measured.decoded.erasure for measured in done]
        columns.append([math.nan if erasure is None else erasure for erasure in erasures])
    if "exit" in extra:
        columns.append([measured.decoded.average_exit or math.nan for measured in done])
    if arguments.clock:
        for name in ("seconds_per_token", "seconds_per_token_p95"):
            columns.append([1000 * (measured.times[name] or math.nan) for measured in done])
    for column_number, column in enumerate(columns):
        if any(map(math.isnan, column)):
            shown = ["-" if math.isnan(value) else f"{value:,.2f}" for value in column]
            columns[column_number] = [text.rjust(max(map(len, shown))) for text in shown]
    return [list(row) for row in zip(map(_title, done), *columns, strict=True)]


def _title(measured: Measured) -> str:
    return measured.decoded.setting.short_title


def _systems(
    arguments: OnlineEvalArguments,
    settings: Sequence[Setting],
    presets: Sequence[PolicyPreset],
    dataset: Dataset,
) -> list[System]:
    """Return the models to evaluate, each with its settings.

    With `--policies all`, policies that a model does not support are left out for this model.
    Raises ConfigError that names everything else that the models do not support.
    """
    split = dataset.split(arguments.evaluated_split)
    named = [split_label(text) for text in arguments.models or ()]
    # An ensemble is named after all its members: MODEL on its own is another system.
    names = [
        label or "+".join(map(folder_name, (path, *(arguments.ensemble or ()))))
        for label, path in named
    ]
    faults = name_faults(zip(names, (path for _, path in named), strict=True))
    if arguments.baseline is not None:
        faults += _faults_of_baseline(arguments.baseline, names, settings)
    device = find_device(arguments.device)
    systems: list[System] = []
    for name, (_, path) in zip(names, named, strict=True):
        folders = [path, *(arguments.ensemble or ())]
        shown = " + ".join(map(str, folders))
        try:
            loaded = [load_model(folder, device, arguments.weights) for folder in folders]
        except NmtgridError as error:
            faults.append(str(error))
            continue
        try:
            translator = _translator(arguments, loaded, device)
            check_same_text(translator, dataset)
            for preset in presets:
                preset.check(loaded[0], conditions_of(arguments), console.warn)
        except NmtgridError as error:
            faults.append(f"{shown}: {error}")
            continue
        decoder = (ClockedDecoder if arguments.clock else OnlineDecoder)(
            translator, finish_reading=arguments.finish_reading, oracle_cost=arguments.oracle_cost
        )
        possible = list(settings)
        if names_all(arguments.policies):
            possible = _possible(decoder, settings, shown)
        faults += [f"{shown}: {error}" for error in _refusals(arguments, decoder, possible)]
        systems.append(System(name, loaded[0], decoder, [], possible))
    if faults:
        raise ConfigError(faults)
    # Reading warns about long sentences, so it comes after all models are accepted.
    for system in systems:
        system.sentences = _sentences(arguments, system, split)
    return systems


def _translator(
    arguments: OnlineEvalArguments, loaded: Sequence[LoadedModel], device: torch.device
) -> Translator:
    """Return the translator of a model or an ensemble. Raises ConfigError if not supported."""
    plan = dataclasses.replace(default_plan(loaded[0]), beam=arguments.beam, nbest=1, sample=False)
    options = TranslationOptions(batch_tokens=arguments.batch_tokens)
    halt = choose_halt(arguments.exit, loaded[0])
    return Translator(
        loaded, plan, options, device=device, precision=arguments.precision, halt=halt
    )


def _sentences(arguments: OnlineEvalArguments, system: System, split: Split) -> list[Sentence]:
    translator = system.decoder.translator
    return read_sentences(
        translator.pipeline, split, arguments.sentences, translator.limits, console.warn,
        arguments.source,
    )  # fmt: skip


def _refusals(
    arguments: OnlineEvalArguments, decoder: OnlineDecoder, settings: Sequence[Setting]
) -> list[str]:
    """Return errors for settings, and a guarantee's baseline, that a model does not support."""
    refusals = decoder.faults(settings)
    baseline = decoder.faults([OFFLINE]) if arguments.guarantee else []
    # Explained in the message, because no option names this setting.
    return refusals + [
        "With `--clock`, the offline translation that others are compared with is a stream too. "
        f"{refusal}"
        for refusal in baseline
        if refusal not in refusals
    ]


def _possible(decoder: OnlineDecoder, settings: Sequence[Setting], shown: str) -> list[Setting]:
    """Return the settings that a model supports; print the policies that it does not."""
    refusals = {
        setting.policy: refusal for setting in settings for refusal in decoder.faults([setting])
    }
    for policy, refusal in refusals.items():
        console.say(f"{shown}: without `{policy}`. {refusal}")
    if len(refusals) == len({setting.policy for setting in settings}):
        return list(settings)  # none is left: all refusals are the error
    return [setting for setting in settings if setting.policy not in refusals]


class _Meter:
    """Counts translated sentences and shows them on the progress bar."""

    def __init__(self, bar: console.Bar) -> None:
        self._bar = bar
        self._setting: Setting | None = None
        self._started, self._tokens = time.perf_counter(), 0
        self.name = ""

    def advance(self, setting: Setting, lines: int, tokens: int) -> None:
        if setting is not self._setting:
            self._setting, self._started, self._tokens = setting, time.perf_counter(), 0
        self._tokens += tokens
        rate = self._tokens / max(time.perf_counter() - self._started, 1e-9)
        note = f"{self.name}{setting.title}: {rate:,.0f} target tokens/s"
        self._bar.update(advance=lines, note=note)
