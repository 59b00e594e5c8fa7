"""Output of `nmtgrid adaptive-tune`: a table, the results as JSON, and a figure.

`Report` collects the rows of a tuning, which `write` prints, writes and plots; `draw_results`
compares earlier tunings in one table and figure (`--results`).
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from nmtgrid.adaptive.halting import FixedExit, Mechanism, RandomExit
from nmtgrid.adaptive.measure import Measured, depth_of
from nmtgrid.adaptive.tune import Budgets, Choice, beats, lost_budgets
from nmtgrid.analysis.tuning import draw_tunings, parse_tuning, read_tuning, tuning_section
from nmtgrid.base import console
from nmtgrid.base.io.atomic import make_folder, nan_to_none, split_label, with_checksum, write_json
from nmtgrid.base.spans import plural
from nmtgrid.cli.adaptive_tune.arguments import AdaptiveTuneArguments
from nmtgrid.cli.analyze.arguments import ShownArguments
from nmtgrid.cli.guarantees import print_certified
from nmtgrid.cli.options import write_report
from nmtgrid.models.api import Verified

_MEGA = 1e6
_OPTIONS = (
    "samples", "budget", "objective", "judge", "beam", "batch", "repeats", "clock",
    "seed", "weights", "precision",
)  # fmt: skip
"""Options that are copied to the results unchanged."""


@dataclasses.dataclass
class Row:
    """The measurements of one system, on the split used for tuning and on the test split."""

    tuned: Measured
    test: Measured | None = None
    stored: str | None = None
    beaten_by: str | None = None
    """The name of the system that beats it on this machine (`find_better`), if any."""

    @property
    def shown(self) -> Measured:
        """The measurements in the table: those on the test split, if there is one."""
        return self.test or self.tuned

    def values(self) -> dict[str, Any]:
        test = None if self.test is None else self.test.values()
        return self.tuned.values() | {"test": test, "beaten_by": self.beaten_by}


@dataclasses.dataclass
class Report:
    """The results of a tuning."""

    arguments: AdaptiveTuneArguments
    name: str
    mechanism: Mechanism
    budgets: Budgets
    device: str = "cpu"
    counts: list[int] = dataclasses.field(default_factory=list)
    """Sentences of each split."""
    calibrated: dict[str, Any] | None = None
    full: Row | None = None
    beside: list[Row] = dataclasses.field(default_factory=list)
    finalists: list[tuple[Choice, Row]] = dataclasses.field(default_factory=list)
    points: list[tuple[Choice, Row]] = dataclasses.field(default_factory=list)

    @property
    def splits(self) -> list[str]:
        """The splits that were decoded, the one tuned on first."""
        tests = [self.arguments.test_split] if self.arguments.test_split else []
        return [self.arguments.split, *tests]

    def lost(self) -> list[float]:
        """Return the budgets that vectors met in the replay, but none of them when decoded."""
        replayed = [choice.replayed.average_exit for choice, _ in self.finalists if choice.replayed]
        decoded = [row.tuned.average_exit for _, row in self.finalists]
        # A calibration aims at a loss and not at budgets, so it cannot miss any.
        return [] if self.calibrated else lost_budgets(replayed, decoded, self.budgets)

    def budget(self, row: Row) -> float:
        return self.budgets.budget(row.tuned.average_exit)

    def label(self, choice: Choice, row: Row) -> str:
        """Return the label of a point in the table: its budget, or the choice of a calibration."""
        loss = self.arguments.allow_loss
        if loss is None:
            return f"budget {self.budget(row):g}"
        return f"chosen: {choice.system.name if untuned_exit(choice) else self.name}"

    @property
    def rows(self) -> list[Row]:
        """All rows of the table: the full stack, the other systems compared, and the points."""
        assert self.full is not None
        return [self.full, *self.beside, *(row for _, row in self.points)]

    def of_kind(self, kind: type) -> list[Row]:
        """Return the rows whose halt has this type; `NoneType`: baselines."""
        return [row for row in self.beside if isinstance(row.tuned.decoded.system.halt, kind)]


def values_of(report: Report) -> dict[str, Any]:
    assert report.full is not None
    arguments, full = report.arguments, report.full
    fixed = report.of_kind(FixedExit)
    # The last exit is the full stack.
    fixed = [*fixed, full] if arguments.only != "points" else []
    random = report.of_kind(RandomExit)
    return {
        "model": str(arguments.model),
        "name": report.name,
        "mechanism": report.mechanism,
        "exits": report.budgets.exits,
        "data": str(arguments.data),
        "split": arguments.split,
        "test_split": arguments.test_split,
        "sentences": report.counts[0],
        "test_sentences": report.counts[-1] if arguments.test_split else None,
        **{option: getattr(arguments, option) for option in _OPTIONS},
        "finalists_per_budget": arguments.finalists,
        "device": report.device,
        "signature_bleu": full.tuned.signature,
        "points": [_point(report, choice, row) for choice, row in report.points],
        "lost_budgets": report.lost(),
        "finalists": [_point(report, choice, row) for choice, row in report.finalists],
        "fixed": [{"exit": n, **row.values()} for n, row in enumerate(fixed, 1)],
        "full": full.values(),
        "verified": [
            {"exit": n, **row.values()} for n, row in enumerate(report.of_kind(Verified), 1)
        ],
        "uniform": random[0].values() if random else None,
        "baselines": [
            {
                "name": row.tuned.decoded.system.name,
                "depth": depth_of(row.tuned.decoded.system.model),
                **row.values(),
            }
            for row in report.of_kind(NoneType)
        ],
        "calibrated": report.calibrated,
    }


def _point(report: Report, choice: Choice, row: Row) -> dict[str, Any]:
    assert report.full is not None
    replayed = choice.replayed
    return {
        "budget": report.budget(row),
        "thresholds": list(choice.thresholds),
        **row.values(),
        "speedup": speedup(report.full.tuned, row.tuned),
        "stored": row.stored,
        "replayed": replayed
        and {"average_exit": replayed.average_exit, "agreement": replayed.agreement},
    }


def write_tuned(report: Report) -> None:
    """Write the measurements on the tuning split before the test split is decoded.

    The results are those of a tuning without a test split, marked `complete: false`.
    """
    files = report.arguments.files
    if files is None:
        return
    find_better(report)
    without: dict[str, Any] = {
        "test_split": None,
        "test_sentences": None,
        "complete": False,
        "pictures": [],
    }
    make_folder(files[0].parent)
    write_json(files[0], with_checksum(nan_to_none(values_of(report) | without)))


def write(report: Report, json: Path | None) -> None:
    """Print the table; write the results and the figure."""
    find_better(report)
    _show(report)
    values = values_of(report)
    files = report.arguments.files
    # Entered before the checksum, which covers all entries.
    values |= {"complete": True, "pictures": [str(files[1])] if files else []}
    values = with_checksum(nan_to_none(values))
    write_report(json, values)
    if files:
        results, picture = files
        make_folder(results.parent)
        # The results come first: they must survive if drawing fails.
        write_json(results, values)
        draw(values, picture)
        console.say(f"Drawn: {picture}")


def draw(values: dict[str, Any], path: Path) -> None:
    """Draw BLEU against average exit, operations and seconds."""
    # Parsed as if read from the file, so that `--results` draws the same figure later.
    tuning = parse_tuning(values)
    seconds = "seconds" if values["clock"] == "wall" else "processor seconds"
    what = f"{seconds} for {plural(tuning.sentences, 'sentence')}, batches of {values['batch']}"
    draw_tunings([tuning], path, tuning.split, what)


def _show(report: Report) -> None:
    assert report.full is not None
    arguments, full = report.arguments, report.full.shown
    named = [(report.label(choice, row), row) for choice, row in report.points]
    named += [(row.shown.decoded.system.name, row) for row in report.beside]
    named.append(("full stack", report.full))
    rows = [[*_line(name, full, row.shown), row.beaten_by or "-"] for name, row in named]
    weights = "" if arguments.weights == "best" else f" --weights {arguments.weights}"
    how = "greedy" if arguments.beam == 1 else f"beam {arguments.beam}"
    # The last split is the test split, if there is one, on which systems should be compared.
    budgets = ""
    if arguments.test_split and arguments.allow_loss is None and report.points:
        budgets = f"\nbudget: the average exit on {arguments.split} (tuned on) is at most this"
    console.table(
        f"{report.name}, {report.splits[-1]}: {plural(report.counts[-1], 'sentence')}, {how}; BLEU "
        "tokenised (percent);\naverage exit in blocks per token; MFLOPs of the decoder per token; "
        f"batches of {arguments.batch}{budgets}",
        ["", "BLEU", "exit", "MFLOPs", "seconds", "speed-up", "beaten by"],
        rows,
    )
    print_verdict(report)
    console.say(f"signature of BLEU: {full.signature}")
    for choice, row in report.points:
        chosen, stored = report.label(choice, row), row.stored
        if exit := untuned_exit(choice):
            stored = shlex.quote(exit)
        else:
            thresholds = ", ".join(f"{value:g}" for value in choice.thresholds)
            chosen += f": {thresholds or '(no thresholds)'}"
        # Thresholds are valid only for the beam and the weights that they were tuned with.
        options = f"--beam {arguments.beam}{weights}"
        console.say(f"{chosen}; `decode --exit {stored} {options}`" if stored else chosen)
    if lost := report.lost():
        console.warn(
            f"No thresholds for budget {', '.join(f'{budget:g}' for budget in lost)}: all vectors "
            "that met it in the replay had another average exit when decoded (deeper or "
            "shallower). Decode more of them (`--finalists`), or choose other budgets (`--budget`)."
        )
    if report.calibrated is not None and report.calibrated["certified"]:
        print_certified(report.calibrated)


def untuned_exit(choice: Choice) -> str | None:
    """Return the `decode --exit` value of a fixed or verified exit; None for a tuned one."""
    halt = choice.system.halt
    if isinstance(halt, FixedExit):
        return str(halt.number)
    return f"verified exit={halt.exit}" if isinstance(halt, Verified) else None


def find_better(report: Report) -> None:
    """Set `beaten_by` of all rows to the system that beats each on this machine, if any.

    This is the fastest fixed exit, verified exit or full stack that is at least as good and as
    fast, and better in one of the two.
    """
    assert report.full is not None
    rivals = [*report.of_kind(FixedExit), *report.of_kind(Verified), report.full]
    for row in report.rows:
        better = [rival.shown for rival in rivals if beats(rival.shown, row.shown, "seconds")]
        fastest = min(better, key=lambda measured: measured.decoded.seconds, default=None)
        row.beaten_by = None if fastest is None else fastest.decoded.system.name


def print_verdict(report: Report) -> None:
    """Print if token-specific exits are not worthwhile on this machine, and what beats them."""
    # A calibration may have chosen a fixed or verified exit.
    names = {row.beaten_by for choice, row in report.points if not untuned_exit(choice)}
    if not names or None in names or report.arguments.only == "points":
        return
    console.say(
        f"No tuned exits ({report.mechanism}) are worthwhile on this machine. As good and faster: "
        f"{', '.join(sorted(filter(None, names)))}."
    )


def _line(name: str, full: Measured, measured: Measured) -> list[Any]:
    flops = measured.flops_per_token
    return [
        name,
        measured.bleu,
        "-" if math.isnan(measured.average_exit) else measured.average_exit,
        "-" if flops is None else flops / _MEGA,
        measured.decoded.seconds,
        speedup(full, measured),
    ]


def speedup(full: Measured, measured: Measured) -> float:
    """Return how many times faster than the full stack the same sentences were decoded."""
    seconds = measured.decoded.seconds
    return full.decoded.seconds / seconds if seconds else math.nan


def draw_results(named: Sequence[str], out: Path | None, json: Path | None) -> None:
    """Print and draw tunings, pooling those with the same name: the best of each budget."""
    pairs, shown = [split_label(text) for text in named], ShownArguments(out=out, json=json)
    # Checked before reading: an output must not overwrite a tuning that is an input.
    shown.check(*(path for _, path in pairs))
    tunings = [read_tuning(path, label) for label, path in pairs]
    shown.show(tuning_section(tunings))
