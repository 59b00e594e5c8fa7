"""Training curves read from logs: a table, and a figure for each kind of curve.

A log is the `metrics.jsonl` of a model directory, one JSON object per line
(`training.metrics_log`). A damaged line is left out and noted, so that a log of days is still of
use. `nmtgrid analyze curves` and the report show the section.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import MOST_LINES, wrapped
from nmtgrid.analysis.plotting.lines import HeatPanel, Line, Panel, draw_panels
from nmtgrid.analysis.section import Cell, Picture, Section, Table
from nmtgrid.analysis.systems import told_apart
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.atomic import LINE_CHECKSUM, is_altered_line, name_faults, nan_to_none
from nmtgrid.base.io.records import Count, NonNegative, Record, convert, fits, parse_json
from nmtgrid.base.io.text import DAMAGED, STANDARD, check_file, open_text, read_line

NAME = "metrics.jsonl"
Row = dict[str, Any]


class _Event(Record):
    event: str


class _Line(Record):
    """The fields that are read from a line of any kind; numbers may be NaN."""

    update: Count
    minutes: NonNegative
    tokens: NonNegative | None = None
    bleu: float | None = None
    cider: float | None = None
    criterion: float | None = None
    gradient_ratio: float | None = None


class _Updated(_Line, kw_only=True):
    nll: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float


class _Validated(_Line, kw_only=True):
    nll: float
    is_best: bool = False


class _Gradients(_Line, kw_only=True):
    gradients: dict[str, float]


_LINES: Mapping[str, type[_Line]] = {
    "updated": _Updated, "gradients": _Gradients, "validated": _Validated, "finished": _Line,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's log: lines of training, validation and gradients in the order of their updates.

    Losses are per target token, natural logarithm, without label smoothing. `notes` report lines
    that were left out.
    """

    name: str
    path: Path
    training: list[Row]
    validation: list[Row]
    gradients: list[Row]
    finished: bool
    updates: int
    minutes: float
    notes: list[str]

    @property
    def best(self) -> Row | None:
        """The validation with the best weights; if the log does not say, the one of lowest loss.

        Loss means the objective's own criterion if it has one. None without validations.
        """
        if chosen := [row for row in self.validation if row["is_best"]]:
            return chosen[-1]
        # Some objectives choose by more than the loss (a reader, say).
        is_judged = any(row["criterion"] is not None for row in self.validation)
        by = "criterion" if is_judged else "nll"
        scored = [row for row in self.validation if row[by] is not None and not math.isnan(row[by])]
        return min(scored, key=lambda row: row[by], default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """Target tokens per second of training, without validation and saving."""
        # Total tokens by total seconds; lines of earlier versions, without counts, weigh the same.
        rates = [(row.get("tokens") or 1, row["tokens_per_second"]) for row in self.training]
        seconds = sum(tokens / rate for tokens, rate in rates if rate > 0)
        return sum(tokens for tokens, rate in rates if rate > 0) / seconds if seconds else None

    def tokens_at(self, updates: Sequence[float]) -> list[float]:
        """Return the number of target tokens seen after each of `updates`.

        Between the lines that count tokens, and after the last one, all updates count the same.
        Raises InputError for a log without such counts.
        """
        if not self.training:
            raise InputError(
                "it has no line that counts target tokens: the run is shorter than "
                "`training.log_updates`.",
                "Use `--against minutes` or `--against updates`.", path=self.path,
            )  # fmt: skip
        if any(row.get("tokens") is None for row in self.training):
            raise InputError(
                "it has no counts of target tokens: an earlier version wrote it.",
                "Use `--against minutes` or `--against updates`.", path=self.path,
            )  # fmt: skip
        seen = numpy.cumsum([0, *(row["tokens"] for row in self.training)])
        known = [0, *(row["update"] for row in self.training)]
        each = self.training[-1]["tokens"] / max(1, known[-1] - known[-2])
        beyond = numpy.maximum(0, numpy.asarray(updates) - known[-1]) * each
        return [float(value) for value in numpy.interp(updates, known, seen) + beyond]


def read_runs(named: Sequence[tuple[str | None, Path]]) -> list[Run]:
    """Return the runs of (label or None, model directory or log) pairs.

    Unlabelled ones are named after their folders, with as many parent folders as distinguish them.
    Raises ConfigError for labels or files that are given twice, InputError for a log that is
    missing or has no usable line.
    """
    paths = [_log_of(path) for _, path in named]
    faults = [
        f"`{path}` is named twice." for index, path in enumerate(paths) if path in paths[:index]
    ]
    called = [
        (label, None) if label else _folder_of(path)
        for path, (label, _) in zip(paths, named, strict=True)
    ]
    names = told_apart([name for name, _ in called], [folder for _, folder in called])
    if not faults:
        faults = name_faults(zip(names, (path for _, path in named), strict=True))
    if faults:
        raise ConfigError(faults)
    return [read_run(path, name) for name, path in zip(names, paths, strict=True)]


def read_run(path: Path, name: str) -> Run:
    """Return the run whose log is `path`. Raises InputError if it has no usable lines."""
    rows: dict[str, list[Row]] = {kind: [] for kind in _LINES}
    notes: list[str] = []
    last, checksum = 0, ""
    for number, raw in _lines(path):
        try:
            values = parse_json(raw, as_python=True)
            if not fits(values, _Event):
                raise ValueError("it is not a line of a training log")
            # The checksum of each line covers the one before it.
            checksum, before = str(values.get(LINE_CHECKSUM, "")), checksum
            if is_altered_line(values, before):
                notes.append(f"{path}:{number}: it, or the line before it, has been altered.")
            if values["event"] not in _LINES:
                # A later version may write other kinds of lines.
                continue
            row = _parse(values)
            if row["update"] < last:
                raise ValueError(f"update {row['update']:,} comes after update {last:,}")
        except ValueError as fault:
            notes.append(f"{path}:{number}: {fault}.")
            continue
        last = row["update"]
        rows[values["event"]].append(row)
    every = [row for kind in rows.values() for row in kind]
    if not every:
        why = f" {notes[0]}" if notes else ""
        raise InputError(
            f"the file has no line of a training run.{why}",
            "Name a model directory, or the `metrics.jsonl` of one.", path=path,
        )  # fmt: skip
    return Run(
        name, path, rows["updated"], rows["validated"], rows["gradients"], bool(rows["finished"]),
        max(row["update"] for row in every), max(row["minutes"] for row in every), notes,
    )  # fmt: skip


def summary(run: Run) -> dict[str, Any]:
    """Return a run's row of the table; values that its log lacks are None."""
    best = run.best
    loss = None if best is None else best["nll"]
    ratios = [row["gradient_ratio"] for row in run.gradients]
    return {
        "name": run.name,
        "path": str(run.path),
        "updates": run.updates,
        "minutes": run.minutes,
        "finished": run.finished,
        "tokens_per_second": run.tokens_per_second,
        "best_update": None if best is None else best["update"],
        "valid_loss": loss,
        "valid_perplexity": None if loss is None else math.exp(min(loss, 700.0)),
        "valid_bleu": None if best is None else nan_to_none(best["bleu"]),
        "valid_cider": None if best is None else nan_to_none(best["cider"]),
        "gradient_ratio": nan_to_none(ratios[-1]) if ratios else None,
    }


def curve_values(run: Run) -> dict[str, Any]:
    """Return all points of a run as columns, for JSON: NaN becomes None."""
    fields = {
        "training": ("nll", "learning_rate", "gradient_norm", "tokens_per_second", "tokens"),
        "validation": ("nll", "criterion", "bleu", "cider"),
        "gradients": ("gradient_ratio",),
    }
    values: dict[str, Any] = {
        part: {
            name: [row[name] for row in getattr(run, part)]
            for name in ("update", "minutes", *names)
        }
        for part, names in fields.items()
    }
    values["gradients"]["norms"] = {
        stage: [row["gradients"].get(stage) for row in run.gradients] for stage in stages(run)
    }
    nulled: dict[str, Any] = nan_to_none(values)
    return nulled


def stages(run: Run) -> list[str]:
    """Return the names of the stages whose gradients were measured, in order."""
    names = [name for row in run.gradients for name in row["gradients"]]
    return list(dict.fromkeys(names))


def _log_of(path: Path) -> Path:
    if str(path) == STANDARD or not path.is_dir():
        return path
    if not (path / NAME).is_file():
        raise InputError(
            f"there is no `{NAME}` in this folder.", "Name a model directory that `train` wrote.",
            path=path,
        )  # fmt: skip
    return path / NAME


def _folder_of(log: Path) -> tuple[str, Path | None]:
    """Return the name of a run according to its log: its folder, and the folder above."""
    if str(log) == STANDARD:
        return "standard input", None
    whole = log.absolute()
    folder = whole.parent if whole.name.startswith(NAME) else whole
    return folder.name or "/", folder


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    check_file(path)
    with open_text(path) as file:
        try:
            while raw := read_line(file, path, number + 1):
                number += 1
                if raw.strip():
                    yield number, raw
        # The lines before the end of a truncated archive have been read by now.
        except DAMAGED as fault:
            raise InputError("the archive is damaged.", path=path, line=number + 1) from fault
        except OSError as fault:
            raise InputError(f"cannot be read: {fault.strerror}.", path=path) from fault


def _parse(values: Any) -> Row:
    """Return the fields of a line of a known kind. Raises ValueError saying what is wrong."""
    return {
        # Values that have exploded cannot be drawn, like NaN.
        name: math.nan if isinstance(value, float) and not abs(value) < 1e300 else value
        for name, value in convert(values, _LINES[values["event"]]).values().items()
    }


Against = Literal["minutes", "updates", "tokens"]
_AXES = {
    "minutes": "minutes of the run",
    "updates": "updates",
    "tokens": "target tokens (millions)",
}
_QUALITIES = {
    "bleu": ("Greedy BLEU on validation", "BLEU (percent)"),
    "cider": ("Greedy CIDEr-D on validation", "CIDEr-D (x 100)"),
}
# Columns of a map, and points of a smoothed line: more could not be distinguished.
_POINTS = 160
# Maps do not distinguish smaller norms from zero.
_VANISHED = 1e-12


def panels(runs: Sequence[Run], against: Against) -> dict[str, Panel | HeatPanel]:
    """Return the diagrams for which the runs have points, by short name.

    Losses and quality are drawn `against` that axis, the others against updates.
    """
    by_name: dict[str, Panel | HeatPanel] = {}
    updates = _AXES["updates"]
    if any(run.training or run.validation for run in runs):
        by_name["loss"] = _losses(runs, against)
    for score, (title, axis) in _QUALITIES.items():
        if any(row[score] is not None for run in runs for row in run.validation):
            lines = [
                Line(run.name, *_points(run, run.validation, against, score), style, mark=True)
                for style, run in enumerate(runs)
            ]
            by_name[score] = Panel(title, _AXES[against], axis, lines, least=0.0)
    if any(run.training for run in runs):
        lines = [
            Line(run.name, *_points(run, run.training, "updates", "learning_rate"), style)
            for style, run in enumerate(runs)
        ]
        by_name["learning-rate"] = Panel(
            "Learning rate", updates, "learning rate", lines, least=0.0
        )
        by_name["gradient-norm"] = Panel(
            "Gradient of all weights", updates, "norm, before clipping",
            _smooth_lines(runs, "training", "gradient_norm"), logarithmic=True,
        )  # fmt: skip
    if any(row["gradient_ratio"] for run in runs for row in run.gradients):
        by_name["gradient-ratio"] = Panel(
            "Gradient at the first encoder layer over that at the last", updates,
            "norm at h1 / norm at hN", _smooth_lines(runs, "gradients", "gradient_ratio"),
            logarithmic=True, level=1.0,
        )  # fmt: skip
    return by_name | _heat_panels([run for run in runs if run.gradients])


def _losses(runs: Sequence[Run], against: Against) -> Panel:
    """Return training losses, faint, behind validation losses; the steep beginning is cut off.

    Neither has label smoothing; the training losses include dropout.
    """
    lines: list[Line] = []
    tops: list[float] = []
    for style, run in enumerate(runs):
        x, y = _points(run, run.training, against, "nll")
        validation = _points(run, run.validation, against, "nll")
        if run.validation:
            lines.append(Line(run.name, *validation, style, mark=True))
        lines.append(Line(run.name, x, y, style, faint=bool(run.validation)))
        # The first steps fall from thousands of perplexity: they would flatten all the rest.
        late = max((*x, *validation[0]), default=0.0) * 0.06
        tops += [loss for at, loss in zip(x, y, strict=True) if at >= late and loss == loss][:1]
        tops += [loss for loss in validation[1] if loss == loss][:1]
    has_both = any(run.training for run in runs) and any(run.validation for run in runs)
    return Panel(
        "Loss: validation (points) and training (pale)" if has_both else "Loss",
        _AXES[against], "loss (nats per target token)", lines,
        most=1.04 * max(tops) if tops else None, exponential="perplexity",
    )  # fmt: skip


def _smooth_lines(runs: Sequence[Run], part: str, name: str) -> list[Line]:
    """Return a line over the updates for each run; many points are drawn behind their mean."""
    lines: list[Line] = []
    for style, run in enumerate(runs):
        rows = [row for row in getattr(run, part) if row[name] is not None and row[name] > 0]
        if not rows:
            continue
        x, y = _points(run, rows, "updates", name)
        if len(rows) > 30:
            lines.append(Line(run.name, x, y, style, faint=True))
            y = _smoothed(y)
        lines.append(Line(run.name, x, y, style))
    return lines


def _smoothed(values: Sequence[float]) -> list[float]:
    """Return geometric means over windows around each value, a twentieth of all wide."""
    # Geometric, because the axis is logarithmic; by cumulative sums, for any width of the window.
    logs = numpy.log(numpy.asarray(values))
    reach = max(2, len(values) // 40)
    sums = numpy.concatenate([[0.0], numpy.cumsum(logs)])
    indices = numpy.arange(len(values))
    first, last = numpy.maximum(indices - reach, 0), numpy.minimum(indices + reach + 1, len(values))
    means = (sums[last] - sums[first]) / (last - first)
    return [float(value) for value in numpy.exp(means)]


def _heat_panels(runs: Sequence[Run]) -> dict[str, HeatPanel]:
    """Return a map of the norms at all stages for each run, all on one scale."""
    grids = [_grid(run) for run in runs]
    norms = [norm for _, values in grids for norm in values[values > _VANISHED].flatten()]
    least, most = (min(norms), max(norms)) if norms else (0.1, 1.0)
    if most < 2 * least:
        # Tiny differences should not fill the scale.
        least, most = least / 1.5, most * 1.5
    return {
        f"layers-{number}": HeatPanel(
            f"Gradient at each layer: {run.name}", _AXES["updates"], "norm, loss per token",
            x, stages(run), values, (least, most),
        )
        for number, (run, (x, values)) in enumerate(zip(runs, grids, strict=True), 1)
    }  # fmt: skip


def _grid(run: Run) -> tuple[list[float], NDArray[numpy.float64]]:
    """Return the updates and the norms [stages, updates], neighbours averaged if there are many."""
    names = stages(run)
    rows = [[row["gradients"].get(name, math.nan) for row in run.gradients] for name in names]
    values = numpy.asarray(rows, dtype=numpy.float64)
    values[values <= _VANISHED] = 0.0
    x = [float(row["update"]) for row in run.gradients]
    if len(x) <= _POINTS:
        return x, values
    # Means of neighbours, not every n-th point, so that a peak remains visible.
    cuts = numpy.linspace(0, len(x), _POINTS + 1).astype(int)
    parts = [values[:, first:last].mean(1) for first, last in pairwise(cuts)]
    return [x[last - 1] for last in cuts[1:]], numpy.stack(parts, axis=1)


def _points(
    run: Run, rows: Sequence[Row], against: Against, name: str
) -> tuple[list[float], list[float]]:
    """Return x and y of the rows that have the number `name`."""
    known = [row for row in rows if row[name] is not None]
    updates = [float(row["update"]) for row in known]
    if against == "minutes":
        x = [row["minutes"] for row in known]
    else:
        x = updates if against == "updates" else [n / 1e6 for n in run.tokens_at(updates)]
    return x, [row[name] for row in known]


_TEXT = """How the models were trained. Losses are in nats per target token, without label \
smoothing; the best validation is the one with the lowest loss, or with the best score if \
`training.best_by` names one. Validation scores are those of greedy search."""
_CAPTIONS = {
    "loss": "Losses in training (faint) and on validation.",
    "cider": "Greedy CIDEr-D on validation, times 100.",
    "gradient-norm": "Norm of the gradient of all weights, before clipping.",
}


def training_section(runs: Sequence[Run], against: Against = "minutes") -> Section:
    """Return the table and the diagrams of all runs."""
    pictures = [
        Picture(
            name, _CAPTIONS.get(name, f"{panel.title}."), functools.partial(draw_panels, [panel])
        )
        for name, panel in panels(runs, against).items()
    ]
    values = {"models": [{**summary(run), **curve_values(run)} for run in runs]}
    return Section("curves", "How the models were trained", _TEXT, [_table(runs)], pictures, values)


def check_drawable(count: int) -> None:
    """Raise ConfigError for more runs than lines that can be distinguished."""
    if count > MOST_LINES:
        raise ConfigError(
            f"At most {MOST_LINES} curves fit into one diagram, but {count} models are given.",
            "Draw fewer at a time.",
        )


def _table(runs: Sequence[Run]) -> Table:
    rows = [summary(run) for run in runs]
    columns: dict[str, tuple[str, str]] = {
        "updates": ("updates", ""), "min": ("minutes", ""), "tok/s": ("tokens_per_second", ",.0f"),
        "loss": ("valid_loss", ".4f"), "ppl": ("valid_perplexity", ""), "BLEU": ("valid_bleu", ""),
    }  # fmt: skip
    if any(row["valid_cider"] is not None for row in rows):
        columns["CIDEr-D"] = ("valid_cider", "")
    if any(row["gradient_ratio"] is not None for row in rows):
        columns["h1/hN"] = ("gradient_ratio", ".2g")
    quality = "BLEU and CIDEr-D (x 100)" if "CIDEr-D" in columns else "BLEU"

    def cell(value: Any, form: str) -> Cell:
        return format(value, form) if form and value is not None else value

    return Table(
        "Trainings: target tokens per second; loss in nats per token, perplexity and greedy\n"
        f"{quality} at the best validation"
        + ("; last ratio of gradient norms" if "h1/hN" in columns else ""),
        ["model", *columns],
        [
            [
                wrapped(row["name"], 14, 60),
                *(cell(row[key], form) for key, form in columns.values()),
            ]
            for row in rows
        ],
    )
