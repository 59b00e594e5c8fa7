"""How far a run is: its counters and clock, when it is validated, when and why it ends.

All processes of a run have the same counters, clock and end.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from nmtgrid.base.io.records import Count, Finite, NonNegative, convert
from nmtgrid.base.spans import plural
from nmtgrid.data.batches import DataCursor
from nmtgrid.training.distributed import Processes
from nmtgrid.training.settings import RunClock, TrainingSettings

_LEAST_UPDATES, _LEAST_MINUTES = 20, 0.5
"""Minimum distance between two validations due by `validate_share`."""


@dataclasses.dataclass
class Progress:
    """Counters of a run; part of the saved state. Minutes are those of the whole run."""

    update: Count = 0
    cursor: DataCursor = dataclasses.field(default_factory=DataCursor.begin)
    minutes: NonNegative = 0.0
    waited: Count = 0
    """Validations since the best one; like `least_loss`, only those that were due count."""
    least_loss: Finite | None = None
    """Or another criterion for the best weights, negated if higher is better."""
    validated_update: Count = 0
    checkpoint_update: Count = 0
    """Of the last validation that was due, as are the epoch and minutes below. The one at the end
    of a run is not due: a run that continues from there must equal one that had not ended."""
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

        Older states do not distinguish validations that were due, and call the cursor `place`.
        """
        older = {"checkpoint_update": values.get("validated_update", 0)}
        return convert({**older, "cursor": values.get("place"), **values}, cls)


def validation_is_due(settings: TrainingSettings, progress: Progress, minutes: float) -> bool:
    """Return whether a validation is due now."""
    if progress.validated_update == progress.update:
        return False
    # Whichever interval ends first; zero means no interval.
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
    """Return why the run has to end now, or an empty string."""
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
    """Return the share of the run that is done, according to the limit closest to its end.

    Only complete epochs count. Patience cannot be foreseen.
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

    `epochs` are those done, including the done part of the current one.
    """
    limits = []
    if settings.max_updates:
        limits.append((settings.max_updates - progress.update) * minutes_per_update)
    if settings.max_minutes:
        limits.append(settings.max_minutes - minutes)
    if settings.max_epochs:
        limits.append((settings.max_epochs - epochs) * minutes_per_epoch)
    # Patience cannot be foreseen, so it is not a limit here.
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
        """Seconds since an arbitrary start."""
        self._request, self._processes = stop, processes
        self._start, self._minutes_before = self.now(), 0.0
        self._agreed_minutes: float | None = None
        self._agreed_stop = ""

    def resume_at(self, minutes: float) -> None:
        """Continue from `minutes`."""
        self._minutes_before, self._start = minutes, self.now()

    def synchronise(self) -> None:
        """Let all processes agree on the time and on stopping."""
        if self._processes.count == 1:
            return
        # One sum transfers both: the other processes add no minutes.
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
        """Why the run has to stop, or an empty string."""
        return self._request.reason if self._processes.count == 1 else self._agreed_stop
