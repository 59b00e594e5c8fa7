"""Counters and clock of a run, its events, the sums between two log lines, and `metrics.jsonl`.

`Trainer.run` counts, and yields the events; the command `train` prints them and logs those with
numbers. All processes of a run have the same counters, clock and end.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import (
    LINE_CHECKSUM,
    atomic_file,
    is_altered_line,
    storage_error,
    with_line_checksum,
)
from nmtgrid.base.io.records import Count, Finite, NonNegative, Record, convert, parse_json
from nmtgrid.base.spans import plural
from nmtgrid.data.batches import BatchPlan, DataCursor
from nmtgrid.training.distributed import Processes
from nmtgrid.training.settings import RunClock, TrainingSettings
from nmtgrid.training.update import UpdateResult

_LEAST_UPDATES, _LEAST_MINUTES = 20, 0.5
"""Minimum distance between two validations due by `validate_share`."""


@dataclasses.dataclass
class Progress:
    """Counters of a run; part of the saved state. Minutes are those of the whole run."""

    update: Count = 0
    cursor: DataCursor = dataclasses.field(default_factory=DataCursor.begin)
    minutes: NonNegative = 0.0
    waited: Count = 0
    """Evaluations since the best one; like `least_loss`, of those that were due."""
    least_loss: Finite | None = None
    """Or what else the best weights are chosen by, negative if more of it is better."""
    validated_update: Count = 0
    checkpoint_update: Count = 0
    """Of the last validation that was due, as are the epoch and minutes below. That at the end of a
    run is not: one that goes on from there is to be the run that had not ended."""
    validated_epoch: Count = 0
    validated_minutes: NonNegative = 0.0
    saved_update: Count = 0
    saved_minutes: NonNegative = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError for counters that are ahead of the run."""
        updates = self.validated_update, self.checkpoint_update, self.saved_update
        if max(updates) > self.update or self.validated_epoch > self.cursor.epoch:
            raise ValueError(f"something was done after the last update, {self.update}")
        if max(self.validated_minutes, self.saved_minutes) > self.minutes:
            raise ValueError(f"something was done after the last minute, {self.minutes:g}")

    def validated(self, minutes: float, *, due: bool) -> None:
        """Record a validation, which was `due` or comes at the end of the run."""
        self.validated_update = self.update
        if due:
            self.checkpoint_update, self.validated_epoch = self.update, self.cursor.epoch
            self.validated_minutes = minutes

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        """Return the counters of a saved state. Raises ValueError that names inconsistent values.

        Older states do not tell validations that were due from others, and call the cursor `place`.
        """
        older = {"checkpoint_update": values.get("validated_update", 0)}
        return convert({**older, "cursor": values.get("place"), **values}, cls)


def is_due(settings: TrainingSettings, progress: Progress, minutes: float) -> bool:
    """Return whether the run is to be validated now."""
    if progress.validated_update == progress.update:
        return False
    # Whichever interval is over first; an interval of zero is none.
    by_updates = settings.validate_updates and progress.update % settings.validate_updates == 0
    epochs = progress.cursor.epoch - progress.validated_epoch
    by_epochs = settings.validate_epochs and epochs >= settings.validate_epochs
    wait = settings.validate_minutes
    by_minutes = wait and minutes - progress.validated_minutes >= wait
    by_share = _is_part_done(settings, progress, minutes)
    return bool(by_updates or by_epochs or by_minutes or by_share)


def _is_part_done(settings: TrainingSettings, progress: Progress, minutes: float) -> bool:
    """Return whether `validate_share` of the run is over, in an epoch that may outlast the run."""
    by_epochs_alone = settings.validate_epochs and not settings.suspending_share
    if not by_epochs_alone or not settings.validate_share or progress.cursor.epoch:
        return False
    updates, share = progress.update - progress.checkpoint_update, settings.validate_share
    passed = minutes - progress.validated_minutes
    return bool(
        (settings.max_updates and updates >= max(_LEAST_UPDATES, share * settings.max_updates))
        or (settings.max_minutes and passed >= max(_LEAST_MINUTES, share * settings.max_minutes))
    )


def end_reason(settings: TrainingSettings, progress: Progress, minutes: float) -> str:
    """Return why the run is to end now, or an empty text."""
    if settings.max_updates and progress.update >= settings.max_updates:
        return f"limit of {plural(settings.max_updates, 'update')} reached"
    if settings.max_minutes and minutes >= settings.max_minutes:
        return f"time limit of {settings.max_minutes:g} min reached"
    if settings.max_epochs and progress.cursor.epoch >= settings.max_epochs:
        return f"limit of {plural(settings.max_epochs, 'epoch')} reached"
    if settings.patience and progress.waited >= settings.patience:
        return f"no improvement in {plural(settings.patience, 'validation')}"
    return ""


def fraction_done(settings: TrainingSettings, progress: Progress, minutes: float) -> float:
    """Return the share of the run that is over, by the limit that is nearest to its end.

    Epochs count when they are over. Patience cannot be foreseen.
    """
    limits = (
        (progress.update, settings.max_updates),
        (minutes, settings.max_minutes),
        (progress.cursor.epoch, settings.max_epochs),
    )
    return max(done / limit for done, limit in limits if limit)


def minutes_left(
    settings: TrainingSettings,
    progress: Progress,
    minutes: float,
    epochs: float,
    minutes_per_update: float,
    minutes_per_epoch: float,
) -> float | None:
    """Return the minutes until the first limit, or None if none can be foreseen.

    `epochs` are those done, the present one in part.
    """
    limits = []
    if settings.max_updates:
        limits.append((settings.max_updates - progress.update) * minutes_per_update)
    if settings.max_minutes:
        limits.append(settings.max_minutes - minutes)
    if settings.max_epochs:
        limits.append((settings.max_epochs - epochs) * minutes_per_epoch)
    # Patience cannot be foreseen, and so is no limit here.
    return max(0.0, min(limits)) if limits else None


@dataclasses.dataclass
class StopRequest:
    """A request from outside (a signal) to stop after the current update."""

    reason: str = ""


class Stopwatch:
    """The minutes of a run, including those before a resumption, and its reason to stop.

    A single process uses its own clock and signals. Several processes use what they last agreed on,
    the clock of the first one and the signals of all, so that they make the same decisions.
    """

    def __init__(self, kind: RunClock, stop: StopRequest, processes: Processes) -> None:
        self.now = time.process_time if kind == "processor" else time.monotonic
        """Seconds, from any start."""
        self._request, self._processes = stop, processes
        self._start, self._minutes_before = self.now(), 0.0
        self._agreed_minutes: float | None = None
        self._agreed_stop = ""

    def resume_at(self, minutes: float) -> None:
        """Begin again at `minutes`."""
        self._minutes_before, self._start = minutes, self.now()

    def synchronise(self) -> None:
        """Let all processes agree on the time and on stopping."""
        if self._processes.count == 1:
            return
        # One sum brings both: the other processes add no minutes.
        self._agreed_minutes = None
        minutes = self.minutes if self._processes.is_first else 0.0
        values = torch.tensor([minutes, float(bool(self._request.reason))], dtype=torch.float64)
        self._agreed_minutes, stopped = self._processes.sum(values).tolist()
        if stopped:
            self._agreed_stop = self._request.reason or "stopped by a signal to another process"

    @property
    def minutes(self) -> float:
        """Minutes that the run has taken."""
        if self._agreed_minutes is not None:
            return self._agreed_minutes
        return self._minutes_before + (self.now() - self._start) / 60

    @property
    def stopped(self) -> str:
        """Why the run is to stop, or an empty text."""
        return self._request.reason if self._processes.count == 1 else self._agreed_stop


@dataclasses.dataclass(frozen=True)
class Started:
    """The run begins, or continues after `update`."""

    update: int
    minutes: float
    pairs: int
    skipped: int
    """Training pairs left out for their length."""
    parameters: int
    device: str
    precision: str
    processes: int = 1
    world_size_changed: bool = False
    """Whether a resumed run goes on with another number of processes than before."""


@dataclasses.dataclass(frozen=True)
class Updated:
    """Updates done since the last such event; rates are per second of training alone."""

    update: int
    epoch: int
    minutes: float
    learning_rate: float
    loss: float
    nll: float
    """Per target token, natural logarithm; so is the loss."""
    gradient_norm: float
    """Of the last update, before clipping."""
    tokens_per_second: float
    cells_per_second: float
    minutes_left: float | None
    extra: dict[str, float]
    tokens: int = 0
    """Target tokens of these updates, end symbols included."""


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The gradients of an update were measured between the layers."""

    update: int
    epoch: int
    minutes: float
    gradients: dict[str, float]
    """Norm of the gradient of the loss per target token at each stage's output."""
    gradient_ratio: float | None
    """Of the first to the last encoder layer."""


@dataclasses.dataclass(frozen=True)
class BatchSplit:
    """A batch did not fit into memory and was halved; its gradient is the same."""

    update: int
    times: int
    is_exact: bool = True
    """Whether that is all: halves have statistics of their own where a model takes those of a
    batch (batch normalisation)."""


@dataclasses.dataclass(frozen=True)
class Validated:
    """The validation split was scored."""

    update: int
    epoch: int
    minutes: float
    nll: float
    """Per target token, of the better candidate."""
    weights: str
    """Which weights that is: `last`, `ema` or `average`."""
    losses: dict[str, float]
    bleu: float | None
    """Of greedy translations, tokenised, in percent."""
    is_best: bool
    seconds: float
    cider: float | None = None
    """Of greedy captions, a hundred times CIDEr-D."""
    criterion: float | None = None
    """The objective's own criterion, if it has one."""
    extra: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Averaged:
    """The mean of the last checkpoints has been written."""

    update: int
    checkpoints: int
    """How many it is of."""
    most: int
    """How many it was to be of: `training.average`."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint to resume from has been written."""

    update: int
    minutes: float
    folder: str


@dataclasses.dataclass(frozen=True)
class Finished:
    """The run is over."""

    update: int
    epoch: int
    minutes: float
    reason: str
    interrupted: bool
    best: str
    """Which weights are in model.safetensors."""
    best_update: int
    best_nll: float | None
    bleu: float | None
    cider: float | None = None
    best_criterion: float | None = None
    was_validated: bool = True
    """Whether there were validations, perhaps none of them with a finite loss."""


Event = Started | Updated | Gradients | BatchSplit | Validated | Averaged | Saved | Finished


@dataclasses.dataclass
class UpdateSums:
    """Sums over updates since the last log line; part of the saved state."""

    updates: Count
    loss: Finite
    nll: Finite  # below 0 only if an objective of one's own has it so
    tokens: Count
    cells: Count
    pairs: Count
    seconds: NonNegative
    gradient_norm: NonNegative
    extra: dict[str, Finite]

    @classmethod
    def empty(cls) -> UpdateSums:
        """Return the sums over no update."""
        return cls(0, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, {})

    def __post_init__(self) -> None:
        """Raise ValueError for updates without tokens: rates are per token."""
        if self.updates and not self.tokens:
            raise ValueError(f"{self.updates:,} updates have no tokens")

    def add(self, result: UpdateResult) -> None:
        """Take in an update, but for its seconds."""
        if not self.updates:
            self.extra = dict.fromkeys(result.extra, 0.0)
        # What an objective reports of a part of these updates alone has no mean over all of them.
        self.extra = {
            name: total + result.extra[name]
            for name, total in self.extra.items()
            if name in result.extra
        }
        self.updates += 1
        self.loss += result.loss
        self.nll += result.nll
        self.tokens += result.tokens
        self.cells += result.cells
        self.pairs += result.pairs
        self.gradient_norm = result.gradient_norm

    def event(
        self,
        settings: TrainingSettings,
        progress: Progress,
        minutes: float,
        learning_rate: float,
        plan: BatchPlan,
        batches: int,
    ) -> Updated:
        """Return the event of these updates, each of so many `batches` of the `plan`."""
        # Tiny updates may take no time by the clock of the processor.
        seconds = max(self.seconds, 1e-9)
        per_update, per_epoch = seconds / 60 / self.updates, seconds / 60 / max(self.pairs, 1)
        epochs = plan.epochs_done(progress.cursor, self.pairs / self.updates / batches)
        left = minutes_left(settings, progress, minutes, epochs, per_update, per_epoch * plan.count)
        return Updated(
            update=progress.update,
            epoch=progress.cursor.epoch,
            minutes=minutes,
            learning_rate=learning_rate,
            loss=self.loss / self.tokens,
            nll=self.nll / self.tokens,
            gradient_norm=self.gradient_norm,
            tokens_per_second=self.tokens / seconds,
            cells_per_second=self.cells / seconds,
            minutes_left=left,
            extra={name: value / self.tokens for name, value in self.extra.items()},
            tokens=self.tokens,
        )


class _Line(Record):
    update: Count


class MetricsLog:
    """`metrics.jsonl`: one line for each interval, validation and measurement of gradients.

    Each line has a checksum of itself and the line before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = ""
        self._known: set[tuple[Any, ...]] = set()

    def keep_until(self, update: int) -> list[int]:
        """Drop lines of updates after `update` (they are done again), and an incomplete last line.

        Other damaged lines stay as they are; return their numbers.
        """
        if not self.path.exists():
            return []
        remaining, damaged = [], []
        # Behind the last line feed is nothing, or the line that a killed run had begun.
        *lines, _ = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                values = parse_json(line, as_python=True)
                is_later = convert(values, _Line).update > update
            except ValueError:
                remaining.append(line + b"\n")
                damaged.append(number)
                continue
            if not is_later:
                # Each checksum covers the one before, so a line taken out is noticed too.
                if is_altered_line(values, self._last):
                    damaged.append(number)
                remaining.append(line + b"\n")
                self._last = str(values.get(LINE_CHECKSUM, ""))
                self._known.add(_validation(values))
        # Written anew as a whole: a run that is killed here leaves the old log.
        with atomic_file(self.path) as file:
            file.write(b"".join(remaining))
        return damaged

    def write(self, event: Event) -> None:
        """Append `event`, if it is one with figures."""
        if not isinstance(event, (Updated, Gradients, Validated, Finished)):
            return
        values: dict[str, Any] = {"event": type(event).__name__.lower()}
        values |= dataclasses.asdict(event)
        # Of the likelihood, whatever the objective adds to its loss.
        nll = values.get("nll", values.get("best_nll"))
        if nll is not None:
            values["perplexity"] = perplexity(nll)
        if isinstance(event, Validated) and _validation(values) in self._known:
            # The end of a run is validated again by one that goes on from there.
            return
        values = with_line_checksum(values, self._last)
        self._last = values[LINE_CHECKSUM]
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as fault:
            raise StorageError(
                storage_error(self.path, fault).problem,
                "Fix this, for example by freeing disk space, and continue from the last saved "
                "state with `--resume`.",
            ) from fault


def _validation(values: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a validation is known by; the same weights have the same loss."""
    return tuple(str(values.get(name)) for name in ("event", "update", "weights", "nll"))


def perplexity(nll: float) -> float:
    """Return exp(nll), bounded so that early figures stay numbers."""
    return math.exp(min(nll, 50.0))
