"""What `nmtgrid online-eval` leaves in folders: results, translations, traces, logs, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.plotting.figure import SUFFIXES
from nmtgrid.analysis.plotting.paths import Row, draw_paths
from nmtgrid.analysis.result_files import NAME
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import make_folder, write_json, write_text
from nmtgrid.base.io.checksums import sealed
from nmtgrid.cli.online_eval.arguments import Order
from nmtgrid.cli.online_eval.files import draw_curve
from nmtgrid.cli.online_eval.online_eval_system import System
from nmtgrid.online.measures import Measured, instances
from nmtgrid.online.simuleval import write_log
from nmtgrid.search.traces import Trace, numbers


class Files:
    """The folders of an evaluation; with several systems each has a folder of its own in them."""

    def __init__(self, order: Order, systems: Sequence[System]) -> None:
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
            exits=outcome.exits, exit_scores=numbers(outcome.exit_scores),
            num_exits=outcome.num_exits,
        )  # fmt: skip
        lines.append(trace.to_line() + "\n")
    return lines
