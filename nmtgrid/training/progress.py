"""Counters and clock of a run, when it is validated, and why it ends.

Called by the loop of trainer.py; all processes of a run see the same.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from nmtgrid.data.batches import DataCursor
from nmtgrid.training.distributed import Processes
from nmtgrid.training.settings import RunClock, TrainingSettings


@dataclasses.dataclass
class Progress:
    """Counters of a run; part of the saved state. Minutes are those of the whole run."""

    update: int = 0
    cursor: DataCursor = dataclasses.field(default_factory=DataCursor)
    minutes: float = 0.0
    waited: int = 0
    """Evaluations since the best one; like `least_loss`, of those that were due."""
    least_loss: float | None = None
    validated_update: int = 0
    checkpoint_update: int = 0
    """Of the last validation that was due, as are the epoch and minutes below. That at the end of a
    run is not: one that goes on from there is to be the run that had not ended."""
    validated_epoch: int = 0
    validated_minutes: float = 0.0
    saved_update: int = 0
    saved_minutes: float = 0.0

    @property
    def is_checkpoint(self) -> bool:
        """Whether the weights of this state count in the mean of the last ones."""
        return self.update == self.checkpoint_update != 0

    def validated(self, minutes: float, *, due: bool) -> None:
        """Note that the run is being validated, for it was `due` or because it ends."""
        self.validated_update = self.update
        if due:
            self.checkpoint_update, self.validated_epoch = self.update, self.cursor.epoch
            self.validated_minutes = minutes

    def evaluated(self, loss: float) -> None:
        """Note the loss of an evaluation that was due."""
        if self.least_loss is None or loss < self.least_loss:
            self.waited, self.least_loss = 0, loss
        else:
            self.waited += 1

    def to_json(self) -> dict[str, Any]:
        """Return the counters as plain values."""
        # Saved states call the cursor `place`.
        values = dataclasses.asdict(self)
        return {"place" if name == "cursor" else name: value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        """Return what `to_json` wrote."""
        # Older states do not tell validations that were due from others.
        known = {"checkpoint_update": values["validated_update"], **values}
        known["cursor"] = DataCursor(**known.pop("place"))
        return cls(**known)


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
    return bool(by_updates or by_epochs or by_minutes)


def end_reason(settings: TrainingSettings, progress: Progress, minutes: float) -> str:
    """Return why the run is to end now, or an empty text."""
    if settings.max_updates and progress.update >= settings.max_updates:
        return f"{settings.max_updates:,} updates are done"
    if settings.max_minutes and minutes >= settings.max_minutes:
        return f"{settings.max_minutes:g} minutes are over"
    if settings.max_epochs and progress.cursor.epoch >= settings.max_epochs:
        return f"{settings.max_epochs:,} epochs are done"
    if settings.patience and progress.waited >= settings.patience:
        return f"no improvement in {settings.patience} evaluations"
    return ""


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
    """Set from outside (by a signal): the run ends after the update that it is in."""

    reason: str = ""


class Stopwatch:
    """Minutes of a run, those before a resumption included, and why it is to stop.

    One process alone sees both as they are; several see what they agreed upon last, the first
    one's clock and anybody's signal, so that they take the same decisions.
    """

    def __init__(self, kind: RunClock, stop: StopRequest, processes: Processes) -> None:
        self.now = time.process_time if kind == "processor" else time.monotonic
        """Seconds, from any start."""
        self._request, self._processes = stop, processes
        self._start, self._minutes_before = self.now(), 0.0
        self._agreed_minutes, self._agreed_stop = 0.0, ""

    def resume_at(self, minutes: float) -> None:
        """Begin again at `minutes`."""
        self._minutes_before, self._start = minutes, self.now()

    def synchronise(self) -> None:
        """Bring the processes together on the time and on stopping."""
        if self._processes.count == 1:
            return
        # One sum brings both: the other processes add no minutes.
        minutes = self._own_minutes() if self._processes.is_first else 0.0
        values = torch.tensor([minutes, float(bool(self._request.reason))], dtype=torch.float64)
        self._agreed_minutes, stopped = self._processes.sum(values).tolist()
        if stopped:
            self._agreed_stop = self._request.reason or "stopped by a signal to another process"

    @property
    def minutes(self) -> float:
        """Minutes that the run has taken."""
        return self._own_minutes() if self._processes.count == 1 else self._agreed_minutes

    @property
    def stopped(self) -> str:
        """Why the run is to stop, or an empty text."""
        return self._request.reason if self._processes.count == 1 else self._agreed_stop

    def _own_minutes(self) -> float:
        return self._minutes_before + (self.now() - self._start) / 60
