"""Files written by `nmtgrid online-eval`: results, translations, traces, logs, figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.latency import latency_curves, read_online_results, reference_curves
from nmtgrid.analysis.paths import typical_lines
from nmtgrid.analysis.plotting.figure import SUFFIXES
from nmtgrid.analysis.plotting.grids import GridRow, PathGrid, draw_paths
from nmtgrid.analysis.plotting.lines import draw_tradeoff
from nmtgrid.analysis.section import NAME
from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import make_folder, with_checksum, write_json, write_text
from nmtgrid.cli.online_eval.arguments import OnlineEvalArguments
from nmtgrid.metrics.latency import CONVENTIONS
from nmtgrid.models.directory import LoadedModel
from nmtgrid.online.evaluate import (
    Measured,
    OnlineDecoder,
    Sentence,
    delays_of_tokens,
    delays_of_words,
    instances,
)
from nmtgrid.online.settings import Setting
from nmtgrid.online.simuleval import write_log
from nmtgrid.search.api import Translation
from nmtgrid.search.traces import Trace


@dataclasses.dataclass
class System:
    """A model in an evaluation: its sentences and settings, and the results so far."""

    name: str
    loaded: LoadedModel
    """The model, or the first one of an ensemble."""
    decoder: OnlineDecoder
    sentences: list[Sentence]
    settings: list[Setting] = dataclasses.field(default_factory=list)
    """The settings to evaluate it with."""
    done: list[Measured] = dataclasses.field(default_factory=list)
    calibrated: dict[str, Any] | None = None
    """The result of `--allow-loss`, as JSON keys."""

    @property
    def joiner(self) -> str:
        """The mark of target units at word boundaries; empty if units are words."""
        return self.decoder.translator.pipeline.target_joiner

    @property
    def language(self) -> str:
        """The target language."""
        return self.decoder.translator.pipeline.facts.target_lang


def draw_curve(arguments: OnlineEvalArguments, results: Path, path: Path) -> bool:
    """Draw BLEU against average lagging; return whether there was a point to draw."""
    # Read back from the file, as `analyze latency` does, so that both draw the same curve.
    results_read, _ = read_online_results(results)
    unit = arguments.latency_unit
    ours, levels = latency_curves(results_read, "al", unit, arguments.latency_convention)
    if not ours:
        return False
    names = list(dict.fromkeys(result.system for result in results_read))
    name = names[0] if len(names) == 1 else f"{len(names)} systems"
    theirs = [] if arguments.published is None else reference_curves(arguments.published)
    draw_tradeoff(
        [*ours, *theirs],
        path,
        title=f"{name} on {arguments.evaluated_split}: quality against latency",
        x_labels=[
            f"average lagging AL (source {unit}s, {CONVENTIONS[arguments.latency_convention]})"
        ],
        y_label="BLEU, tokenised (percent), "
        + ("greedy" if arguments.beam == 1 else f"beam {arguments.beam}"),
        levels=levels,
    )
    return True


def path_rows(arguments: OnlineEvalArguments, systems: Sequence[System]) -> dict[int, GridRow]:
    """Return the paths of the requested lines, or of typical ones, under one or two settings.

    Lines without a path are left out.
    """
    pairs = compared(arguments, systems)
    if not pairs:
        return {}
    rows = {}
    sentences = pairs[0][0].sentences
    sizes = [(sentence.line, len(sentence.source)) for sentence in sentences if sentence.source]
    for line in arguments.lines or typical_lines(sizes):
        grids = [_grid(arguments, system, measured, line) for system, measured in pairs]
        if any(grid.delays for grid in grids):
            rows[line] = GridRow(f"Line {line}, reference: {sentences[line - 1].reference}", grids)
    return rows


def compared(
    arguments: OnlineEvalArguments, systems: Sequence[System]
) -> list[tuple[System, Measured]]:
    """Return up to two settings to compare: similar in lagging, different in their policies.

    These are the middle setting of a policy (thresholds of the reader, else the oracle, else any)
    and the wait-k nearest in average lagging. With wait-k only, they are the middle wait-k of one
    system and the nearest of the others. If there is no wait-k to compare with, they are the
    settings of the policy with the least and the largest lagging.
    """
    pairs = [
        (system, measured)
        for system in systems
        for measured in system.done
        if not measured.decoded.setting.is_offline
    ]

    def lag(pair: tuple[System, Measured]) -> float:
        return pair[1].latencies[arguments.latency_unit, arguments.latency_convention].al

    groups: dict[tuple[str, str], list[tuple[System, Measured]]] = {}
    # Sorted by lag, so that the middle of a group is the middle of its range.
    for pair in sorted(pairs, key=lag):
        groups.setdefault((pair[1].decoded.setting.policy, pair[0].name), []).append(pair)
    names = [system.name for system in systems]
    # The model's own reader before other policies, and these before wait-k.
    order = {"threshold": 0, "oracle": 1, "wait-k": 3}
    ranked = sorted(groups, key=lambda key: (order.get(key[0], 2), names.index(key[1])))
    if not ranked:
        return []
    first = groups[ranked[0]]
    # Wait-k reads at fixed times whatever the text: the natural contrast to a policy.
    others = [pair for key in ranked[1:] if key[0] == "wait-k" for pair in groups[key]]
    if not others:
        return [first[0], first[-1]] if len(first) > 1 else first
    middle = first[len(first) // 2]
    return [middle, min(others, key=lambda pair: abs(lag(pair) - lag(middle)))]


def _grid(
    arguments: OnlineEvalArguments, system: System, measured: Measured, line: int
) -> PathGrid:
    sentence, outcome = system.sentences[line - 1], measured.decoded.outcomes[line - 1]
    setting = measured.decoded.setting
    score = f"BLEU {measured.tokenized.value:.2f}"
    lag = measured.latencies[arguments.latency_unit, arguments.latency_convention].al
    title = f"{system.name}, {setting.full_title} ({score}, AL {lag:.2f})"
    if arguments.latency_unit == "word":
        # Without delays there are no words, but splitting an empty text would yield one.
        delays = delays_of_words(sentence, outcome, system.joiner)
        return PathGrid(title, sentence.words, outcome.words.split(" ") if delays else [], delays)
    return PathGrid(title, sentence.units, outcome.units, delays_of_tokens(sentence, outcome))


class Files:
    """The output folders of an evaluation; several systems have a subfolder each."""

    def __init__(self, arguments: OnlineEvalArguments, systems: Sequence[System]) -> None:
        """Create the folders.

        Raises ConfigError for names that do not give separate folders, and for settings whose
        files would have the same name.
        """
        self.arguments = arguments
        # A slash in a name must not create a folder within a folder.
        self._names = {system.name: system.name.replace("/", "-") for system in systems}
        if len(systems) == 1:
            self._names = {systems[0].name: "."}
        # An empty name, `.` or `..` would write into the shared folder itself or above it.
        elif len({*self._names.values()} - {"", ".", ".."}) < len(systems):
            raise ConfigError(
                "Two models would use the same folder: give one of them another name, as in "
                "`other=MODEL`."
            )
        # With `--allow-loss`, files are written for the chosen setting but not for the candidates.
        if arguments.allow_loss is None and (arguments.out or arguments.simuleval):
            _check_slugs(systems)
        if arguments.out is not None and (arguments.out / NAME).exists():
            console.warn(
                f"{arguments.out} has results of an earlier evaluation, which are replaced. Files "
                "of settings that are not evaluated again remain."
            )
        logs = arguments.simuleval
        if logs is not None and any(
            any((logs / name).glob("*/instances.log")) for name in self._names.values()
        ):
            console.warn(
                f"{logs} has logs of an earlier evaluation. Those of settings that are evaluated "
                "again are replaced, the others remain."
            )
        for folder in (arguments.out, logs):
            for name in self._names.values() if folder is not None else ():
                make_folder(Path(str(folder), name))

    def results(self, values: Mapping[str, Any]) -> None:
        """Write the results so far."""
        if self.arguments.out is not None:
            write_json(self.arguments.out / NAME, with_checksum(values))

    def keep(self, system: System, measured: Measured) -> None:
        """Write the translations, traces and log of a setting."""
        slug, name = measured.decoded.setting.slug, self._names[system.name]
        outcomes = measured.decoded.outcomes
        if self.arguments.out is not None:
            stem = self.arguments.out / name
            write_text(stem / f"{slug}.txt", "".join(f"{outcome.text}\n" for outcome in outcomes))
            write_text(stem / f"{slug}.traces.jsonl", "".join(_traces(system, measured)))
        if self.arguments.simuleval is not None:
            rate = self.arguments.words_per_minute
            logged = instances(system.sentences, outcomes, system.joiner, rate)
            write_log(self.arguments.simuleval / name / slug, logged)

    def draw(self, rows: Sequence[GridRow]) -> list[Path]:
        """Draw the curve of the results and the paths of `rows`; return the figures' files."""
        if self.arguments.out is None:
            return []
        drawn = []
        for kind in SUFFIXES:
            curve, paths = (self.arguments.out / f"{name}{kind}" for name in ("curve", "paths"))
            if draw_curve(self.arguments, self.arguments.out / NAME, curve):
                drawn.append(curve)
            if rows:
                draw_paths(rows, paths, title=f"READ/WRITE paths, {self.arguments.evaluated_split}")
                drawn.append(paths)
        return drawn


def _check_slugs(systems: Sequence[System]) -> None:
    """Raise ConfigError for two settings whose files would have the same name."""
    for system in systems:
        settings: dict[str, Setting] = {}
        for setting in system.settings:
            other = settings.setdefault(setting.slug, setting)
            if other != setting:
                raise ConfigError(
                    f"`{other.text}` and `{setting.text}` would write the same files, "
                    f"`{setting.slug}.*`: evaluate them separately, into different folders."
                )


def _traces(system: System, measured: Measured) -> list[str]:
    """Return a trace for each sentence, with its reads."""
    translations = [
        Translation(
            sentence.line, sentence.units, [outcome.hypothesis], [outcome.text], outcome.words,
            outcome.units,
        )
        for sentence, outcome in zip(system.sentences, measured.decoded.outcomes, strict=True)
    ]  # fmt: skip
    return [f"{Trace.of(translation).to_line()}\n" for translation in translations]
