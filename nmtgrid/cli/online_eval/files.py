"""What `nmtgrid online-eval` leaves in folders: results, translations, traces, logs, pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.latency import POLICIES, curves, draw_curves, published, read_results
from nmtgrid.analysis.plotting.figure import SUFFIXES
from nmtgrid.analysis.plotting.paths import Grid, Row, draw_paths
from nmtgrid.analysis.section import NAME
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import make_folder, write_json, write_text
from nmtgrid.base.io.checksums import sealed
from nmtgrid.cli.online_eval.arguments import Arguments
from nmtgrid.online.evaluate import (
    Measured,
    OnlineDecoder,
    Sentence,
    delays_of_tokens,
    delays_of_words,
    instances,
)
from nmtgrid.online.simuleval import write_log
from nmtgrid.search.traces import Trace, rounded_exit_scores


@dataclasses.dataclass
class System:
    """A model under evaluation: its sentences, and what has been measured so far."""

    name: str
    folder: Path
    decoder: OnlineDecoder
    sentences: list[Sentence]
    done: list[Measured] = dataclasses.field(default_factory=list)

    @property
    def joiner(self) -> str:
        """What ends a target unit that goes on in the next one."""
        return self.decoder.translator.pipeline.target_joiner


_TOLD_FIRST = ("threshold", "oracle", "wait-k")
_SHORTEST, _LONGEST, _SHOWN = 7, 18, 3
"""Source units of sentences whose paths are drawn unasked, and how many."""


def draw_curve(order: Arguments, results: Path, path: Path) -> bool:
    """Draw BLEU against average lagging; return whether there was a point to draw."""
    held = read_results(results)
    found, levels = curves(held, "al", order.unit, order.convention)
    if not found:
        return False
    names = list(dict.fromkeys(one.system for one in held))
    name = names[0] if len(names) == 1 else f"{len(names)} systems"
    theirs = [] if order.published is None else published(order.published)
    draw_curves(
        [*found, *theirs],
        levels,
        path,
        title=f"{name} on {order.split}: quality against latency",
        x_label=f"average lagging AL (source {order.unit}s, {order.convention} convention)",
        y_label="BLEU, tokenised (percent), "
        + ("greedy" if order.beam == 1 else f"beam {order.beam}"),
    )
    return True


def path_rows(order: Arguments, systems: Sequence[System]) -> dict[int, Row]:
    """Return the paths of each line that is asked for, or typical, under one or two settings.

    Lines without a path are left out.
    """
    chosen = compared(order, systems)
    rows = {}
    for line in (order.lines or _typical(chosen)) if chosen else ():
        sentence = chosen[0][0].sentences[line - 1]
        grids = [_grid(order, system, found, line) for system, found in chosen]
        if any(grid.delays for grid in grids):
            rows[line] = Row(f"Line {line}, reference: {sentence.reference}", grids)
    return rows


def compared(order: Arguments, systems: Sequence[System]) -> list[tuple[System, Measured]]:
    """Return up to two settings to compare, alike in lagging and unlike in how they decide.

    An agent (or else the oracle) in the middle of its range and the wait-k that is nearest in
    average lagging; of two systems the middle wait-k and the nearest; else the least and the
    largest k.
    """
    held = [
        (system, found)
        for system in systems
        for found in system.done
        if not found.decoded.setting.is_offline
    ]

    def lag(pair: tuple[System, Measured]) -> float:
        return pair[1].latencies[order.unit, order.convention].al

    groups: dict[tuple[str, str], list[tuple[System, Measured]]] = {}
    for pair in sorted(held, key=lag):
        groups.setdefault((pair[1].decoded.setting.policy, pair[0].name), []).append(pair)
    names = [system.name for system in systems]
    ranked = sorted(groups, key=lambda key: (_TOLD_FIRST.index(key[0]), names.index(key[1])))
    if not ranked:
        return []
    first = groups[ranked[0]]
    others = [pair for key in ranked[1:] if key[0] == "wait-k" for pair in groups[key]]
    if not others:
        return [first[0], first[-1]] if len(first) > 1 else first
    middle = first[len(first) // 2]
    return [middle, min(others, key=lambda pair: abs(lag(pair) - lag(middle)))]


def _typical(chosen: Sequence[tuple[System, Measured]]) -> list[int]:
    """Return the first lines of middling length, or the first that are translated at all."""
    if not chosen:
        return []
    sentences = chosen[0][0].sentences
    good = [s.line for s in sentences if _SHORTEST <= len(s.source) <= _LONGEST]
    return (good or [s.line for s in sentences if 0 < len(s.source) <= 3 * _LONGEST])[:_SHOWN]


def _grid(order: Arguments, system: System, found: Measured, line: int) -> Grid:
    sentence, outcome = system.sentences[line - 1], found.decoded.outcomes[line - 1]
    setting = found.decoded.setting
    score = f"BLEU {found.tokenized.value:.2f}"
    lag = found.latencies[order.unit, order.convention].al
    title = f"{system.name}, {POLICIES[setting.policy]}, {setting.title} ({score}, AL {lag:.2f})"
    if order.unit == "word":
        delays = delays_of_words(sentence, outcome, system.joiner)
        return Grid(title, sentence.words, outcome.words.split(" ") if delays else [], delays)
    return Grid(title, sentence.units, outcome.units, delays_of_tokens(sentence, outcome))


class Files:
    """The folders of an evaluation; with several systems each has a folder of its own in them."""

    def __init__(self, order: Arguments, systems: Sequence[System]) -> None:
        """Make the folders. Raises ConfigError for names that cannot be folders of their own."""
        self.order, self.systems = order, systems
        self._names = {system.name: system.name.replace("/", "-") for system in systems}
        if len(systems) == 1:
            self._names = {systems[0].name: "."}
        if len(set(self._names.values())) < len(systems) or {"", ".."} & {*self._names.values()}:
            raise ConfigError("Two models would share a folder: name them by `NAME=MODEL`.")
        for folder in (order.out, order.simuleval):
            for name in self._names.values() if folder is not None else ():
                make_folder(Path(str(folder), name))

    def results(self, values: Mapping[str, Any]) -> None:
        """Write what has been done so far."""
        if self.order.out is not None:
            write_json(self.order.out / NAME, sealed(values))

    def keep(self, system: System, found: Measured) -> None:
        """Write the translations, traces and log of a setting."""
        slug, name = found.decoded.setting.slug, self._names[system.name]
        outcomes = found.decoded.outcomes
        if self.order.out is not None:
            stem = self.order.out / name
            write_text(stem / f"{slug}.txt", "".join(f"{one.text}\n" for one in outcomes))
            write_text(stem / f"{slug}.traces.jsonl", "".join(_traces(system, found)))
        if self.order.simuleval is not None:
            logged = instances(system.sentences, outcomes, system.joiner)
            write_log(self.order.simuleval / name / slug, logged)

    def draw(self, rows: Sequence[Row]) -> list[Path]:
        """Draw what `results` wrote, and the paths of `rows`; return the pictures."""
        if self.order.out is None:
            return []
        drawn = []
        for kind in SUFFIXES:
            curve, paths = (self.order.out / f"{name}{kind}" for name in ("curve", "paths"))
            if draw_curve(self.order, self.order.out / NAME, curve):
                drawn.append(curve)
            if rows:
                draw_paths(rows, paths, title=f"READ/WRITE paths, {self.order.split}")
                drawn.append(paths)
        return drawn


def _traces(system: System, found: Measured) -> list[str]:
    """Return a trace for each sentence, with its reads."""
    lines = []
    for one, outcome in zip(system.sentences, found.decoded.outcomes, strict=True):
        scores = outcome.log_probabilities
        total = sum(scores)
        trace = Trace(
            one.line, one.units if scores else [], outcome.units, outcome.text, scores, total,
            total / max(len(scores), 1), reads=outcome.reads,
            exits=outcome.exits, exit_scores=rounded_exit_scores(outcome.exit_scores),
            num_exits=outcome.num_exits,
        )  # fmt: skip
        lines.append(trace.to_line() + "\n")
    return lines
