"""Sums of what happens between two log lines, and the file that the lines go to."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import atomic_file, explain
from nmtgrid.base.io.checksums import LINE_CHECKSUM, is_altered_line, sealed_line
from nmtgrid.data.batches import BatchPlan
from nmtgrid.training.events import Event, Finished, Gradients, Updated, Validated
from nmtgrid.training.progress import Progress, minutes_left
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.update import UpdateResult


@dataclasses.dataclass
class Meter:
    """Sums over updates since the last log line; part of the saved state."""

    updates: int = 0
    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    cells: int = 0
    pairs: int = 0
    seconds: float = 0.0
    gradient_norm: float = 0.0
    extra: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, result: UpdateResult, seconds: float) -> None:
        """Take in an update that took `seconds`."""
        self.updates += 1
        self.loss += result.loss
        self.nll += result.nll
        self.tokens += result.tokens
        self.cells += result.cells
        self.pairs += result.pairs
        self.seconds += seconds
        self.gradient_norm = result.gradient_norm
        for name, value in result.extra.items():
            self.extra[name] = self.extra.get(name, 0.0) + value

    def minutes_left(
        self,
        settings: TrainingSettings,
        progress: Progress,
        minutes: float,
        plan: BatchPlan,
        batches: int,
    ) -> float | None:
        """Return the minutes until the run ends at this speed, or None if it cannot be foreseen.

        An update takes so many `batches` of the `plan`.
        """
        spent = max(self.seconds, 1e-9) / 60
        epochs = plan.epochs_done(progress.place, self.pairs / self.updates / batches)
        epoch = spent / max(self.pairs, 1) * plan.count
        return minutes_left(settings, progress, minutes, epochs, spent / self.updates, epoch)

    def event(
        self, progress: Progress, minutes: float, learning_rate: float, left: float | None
    ) -> Updated:
        """Return what there is to tell; `left` are the minutes until the run ends."""
        seconds = max(self.seconds, 1e-9)
        return Updated(
            update=progress.update,
            epoch=progress.place.epoch,
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


class MetricsLog:
    """`metrics.jsonl`: one line for each interval, validation and measurement of gradients.

    Each line has a checksum of itself and the line before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = ""
        self._known: set[tuple[Any, ...]] = set()

    def keep_until(self, update: int) -> list[int]:
        """Drop lines of updates after `update` (they are done again), and a torn last line.

        Other damaged lines stay as they are; return their numbers.
        """
        if not self.path.exists():
            return []
        kept, damaged = [], []
        *lines, _ = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line.decode("utf-8"))
                is_later = values["update"] > update
            except (ValueError, KeyError, TypeError, RecursionError):
                kept.append(line + b"\n")
                damaged.append(number)
                continue
            if not is_later:
                if is_altered_line(values, self._last):
                    damaged.append(number)
                kept.append(line + b"\n")
                self._last = str(values.get(LINE_CHECKSUM, ""))
                self._known.add(_validation(values))
        with atomic_file(self.path) as file:
            file.write(b"".join(kept))
        return damaged

    def write(self, event: Event) -> None:
        """Append `event`, if it is one with figures."""
        if not isinstance(event, (Updated, Gradients, Validated, Finished)):
            return
        values: dict[str, Any] = {"event": type(event).__name__.lower()}
        values |= dataclasses.asdict(event)
        nll = values.get("nll", values.get("best_nll"))
        if nll is not None:
            values["perplexity"] = perplexity(nll)
        if isinstance(event, Validated) and _validation(values) in self._known:
            return  # the end of the run is validated again by one that goes on from there
        values = sealed_line(values, self._last)
        self._last = values[LINE_CHECKSUM]
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as fault:
            raise StorageError(
                explain(self.path, fault).problem,
                "Mend that, such as by freeing space, and go on from the last saved state with "
                "`--resume`.",
            ) from fault


def _validation(values: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a validation is known by; the same weights have the same loss."""
    return tuple(str(values.get(name)) for name in ("event", "update", "weights", "nll"))


def perplexity(nll: float) -> float:
    """Return exp(nll), bounded so that early figures stay numbers."""
    return math.exp(min(nll, 50.0))
