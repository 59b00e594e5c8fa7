"""What runs tell of themselves in `metrics.jsonl`, read back and summed up.

A run that was killed may leave a torn line, and a full disk worse: a line that cannot be read is
left out and told of by file and number, and the others count. Fields that are not known are passed
over, so that logs of later versions can be read.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.checksums import LINE_CHECKSUM, is_altered_line
from nmtgrid.base.io.packing import DAMAGED
from nmtgrid.base.io.text import STANDARD, open_text

NAME = "metrics.jsonl"
Row = dict[str, Any]

_NEEDED = {
    "updated": ("nll", "learning_rate", "gradient_norm", "tokens_per_second"),
    "gradients": (),
    "validated": ("nll",),
    "finished": (),
}
"""Numbers that a line of each kind must have, besides the update and the minutes."""
_OPTIONAL = {"tokens", "bleu", "cider", "criterion", "gradient_ratio"}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's log: lines of training, validation and gradients in the order of their updates.

    Losses are per target token, natural logarithm, without label smoothing. `notes` tell of the
    lines that were left out.
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
        """The validation of least criterion, or loss where that is all there is, or None."""
        is_judged = any(row["criterion"] is not None for row in self.validation)
        by = "criterion" if is_judged else "nll"
        scored = [row for row in self.validation if row[by] is not None and not math.isnan(row[by])]
        return min(scored, key=lambda row: row[by], default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """Target tokens per second of training, validation and saving left out."""
        rates = [(row.get("tokens") or 1, row["tokens_per_second"]) for row in self.training]
        seconds = sum(tokens / rate for tokens, rate in rates if rate > 0)
        return sum(tokens for tokens, rate in rates if rate > 0) / seconds if seconds else None

    def tokens_at(self, updates: Sequence[float]) -> list[float]:
        """Return how many target tokens had been seen after each of `updates`.

        Raises InputError for a log without such counts.
        """
        if any(row.get("tokens") is None for row in self.training):
            raise InputError(
                "it does not count target tokens: an earlier version wrote it.",
                "Draw `--against minutes` or `--against updates`.", path=self.path,
            )  # fmt: skip
        seen = numpy.cumsum([0, *(row["tokens"] for row in self.training)])
        known = [0, *(row["update"] for row in self.training)]
        return [float(value) for value in numpy.interp(updates, known, seen)]


def read_runs(named: Sequence[tuple[str | None, Path]]) -> list[Run]:
    """Return the runs of (label or None, model directory or log) pairs.

    Unlabelled ones are named after their folders, with as many folders above as tell them apart.
    Raises ConfigError for labels or files that are given twice, InputError for a log that is
    missing or has no line of use.
    """
    paths = [_log_of(path) for _, path in named]
    faults = [
        f"`{path}` is named twice." for place, path in enumerate(paths) if path in paths[:place]
    ]
    names = _distinct([path for path, (label, _) in zip(paths, named, strict=True) if not label])
    labels = [label or next(names) for label, _ in named]
    faults += [
        f"Two models are called `{name}`: label one by `LABEL=MODEL`."
        for place, name in enumerate(labels)
        if not faults and name in labels[:place]
    ]
    if faults:
        raise ConfigError(faults)
    return [read_run(path, name) for name, path in zip(labels, paths, strict=True)]


def read_run(path: Path, name: str) -> Run:
    """Return the run whose log is `path`. Raises InputError where it tells nothing."""
    rows: dict[str, list[Row]] = {kind: [] for kind in _NEEDED}
    notes: list[str] = []
    last, checksum = 0, ""
    for number, raw in _lines(path):
        try:
            values = _values(raw)
            checksum, before = str(values.get(LINE_CHECKSUM, "")), checksum
            if is_altered_line(values, before):
                notes.append(f"{path}:{number}: it, or the line before it, has been altered.")
            kind, row = _parse(values)
            if row["update"] < last:
                raise ValueError(f"update {row['update']:,} comes after update {last:,}")
        except KeyError:
            continue
        except ValueError as fault:
            notes.append(f"{path}:{number}: {fault}.")
            continue
        last = row["update"]
        rows[kind].append(row)
    held = [row for kind in rows.values() for row in kind]
    if not held:
        why = f" {notes[0]}" if notes else ""
        raise InputError(
            f"there is no line of a training run in it.{why}",
            "Name a model directory, or the `metrics.jsonl` of one.", path=path,
        )  # fmt: skip
    return Run(
        name, path, rows["updated"], rows["validated"], rows["gradients"], bool(rows["finished"]),
        max(row["update"] for row in held), max(row["minutes"] for row in held), notes,
    )  # fmt: skip


def summary(run: Run) -> dict[str, Any]:
    """Return a run's line of the table; None for what it does not tell."""
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
        "valid_bleu": None if best is None else _finite(best["bleu"]),
        "valid_cider": None if best is None else _finite(best["cider"]),
        "gradient_ratio": _finite(ratios[-1]) if ratios else None,
    }


def curves(run: Run) -> dict[str, Any]:
    """Return all points of a run as columns, for JSON: what is no number is None."""
    fields = {
        "training": ("nll", "learning_rate", "gradient_norm", "tokens_per_second", "tokens"),
        "validation": ("nll", "criterion", "bleu", "cider"),
        "gradients": ("gradient_ratio",),
    }
    found: dict[str, Any] = {}
    for part, names in fields.items():
        rows: list[Row] = getattr(run, part)
        found[part] = {
            name: [_finite(row[name]) for row in rows] for name in ("update", "minutes", *names)
        }
    found["gradients"]["norms"] = {
        stage: [_finite(row["gradients"].get(stage)) for row in run.gradients]
        for stage in stages(run)
    }
    return found


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


def _distinct(paths: Sequence[Path]) -> Iterator[str]:
    """Yield a name for each log: its folder's, with those above where two would be alike."""
    trails = [_trail(path) for path in paths]
    for trail in trails:
        others = [other for other in trails if other is not trail]
        count = 1
        while count < len(trail) and any(other[-count:] == trail[-count:] for other in others):
            count += 1
        yield "/".join(trail[-count:])


def _trail(path: Path) -> tuple[str, ...]:
    """Return the folders and the name that a log is known by."""
    if str(path) == STANDARD:
        return ("standard input",)
    whole = path.absolute()
    parts = whole.parent.parts if whole.name.startswith(NAME) else whole.parts
    return parts[1:] or ("/",)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    with open_text(path) as file:
        try:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    yield number, raw
        except DAMAGED as fault:
            raise InputError("the archive is damaged.", path=path, line=number + 1) from fault
        except OSError as fault:
            raise InputError(f"cannot be read: {fault.strerror}.", path=path) from fault


def _values(raw: bytes) -> dict[str, Any]:
    """Return the values of a line. Raises ValueError saying what is wrong with it."""
    try:
        values = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as fault:
        raise ValueError("it is not JSON") from fault
    if not isinstance(values, dict) or not isinstance(values.get("event"), str):
        raise ValueError("it is no line of a training run")
    return values


def _parse(values: dict[str, Any]) -> tuple[str, Row]:
    """Return a line's kind and its fields.

    Raises ValueError saying what is wrong with it, KeyError for a kind that is not known.
    """
    kind = values["event"]
    needed = _NEEDED[kind]
    row: Row = {"update": int(_number(values, "update")), "minutes": _number(values, "minutes")}
    row |= {name: _number(values, name, finite=False) for name in needed}
    row |= {name: _optional(values, name) for name in _OPTIONAL}
    if kind == "gradients":
        row["gradients"] = _norms(values.get("gradients"))
    return kind, row


def _norms(values: Any) -> dict[str, float]:
    if not isinstance(values, dict) or not values:
        raise ValueError("`gradients` is no table of numbers")
    return {str(name): _number(values, name, finite=False) for name in values}


def _number(values: Mapping[str, Any], name: str, *, finite: bool = True) -> float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"`{name}` is no number")
    if finite and not 0 <= value < 1e15:
        raise ValueError(f"`{name}` makes no sense")
    # What has exploded is as little a point on a curve as what is not a number.
    return float(value) if abs(value) < 1e300 else math.nan


def _optional(values: Mapping[str, Any], name: str) -> float | None:
    return None if values.get(name) is None else _number(values, name, finite=False)


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
