"""How long a run has taken and whether it was asked to stop, the same for all its processes."""

from __future__ import annotations

import dataclasses
import time

import torch

from nmtgrid.training.distributed import Processes
from nmtgrid.training.settings import RunClock


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
        self._stop, self._processes = stop, processes
        self._started, self._carried = self.now(), 0.0
        self._agreed, self._stopped = 0.0, ""

    def go_on(self, minutes: float) -> None:
        """Begin again at `minutes`."""
        self._carried, self._started = minutes, self.now()

    def agree(self) -> None:
        """Bring the processes together on the time and on stopping."""
        if self._processes.count == 1:
            return
        minutes = self._own_minutes() if self._processes.is_first else 0.0
        asked = torch.tensor([minutes, float(bool(self._stop.reason))], dtype=torch.float64)
        self._agreed, stopped = self._processes.sum(asked).tolist()
        if stopped:
            self._stopped = self._stop.reason or "stopped by a signal to another process"

    @property
    def minutes(self) -> float:
        """Minutes that the run has taken."""
        return self._own_minutes() if self._processes.count == 1 else self._agreed

    @property
    def stopped(self) -> str:
        """Why the run is to stop, or an empty text."""
        return self._stop.reason if self._processes.count == 1 else self._stopped

    def _own_minutes(self) -> float:
        return self._carried + (self.now() - self._started) / 60
