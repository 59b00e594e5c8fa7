"""The log `metrics.jsonl`, and the sums over the updates between two of its lines.

The trainer fills the sums; the command `train` writes the log.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import (
    LINE_CHECKSUM,
    atomic_file,
    is_altered_line,
    storage_error,
    with_line_checksum,
)
from nmtgrid.base.io.records import Count, Finite, NonNegative, Record, convert, parse_json
from nmtgrid.data.batches import BatchPlan
from nmtgrid.training.events import Event, Finished, Gradients, Updated, Validated
from nmtgrid.training.progress import Progress, minutes_left
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.update import UpdateResult


@dataclasses.dataclass
class UpdateSums:
    """Sums over updates since the last log line; part of the saved state."""

    updates: Count
    loss: Finite
    nll: Finite  # below 0 only with a user-defined objective
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
        """Add an update, except for its seconds."""
        if not self.updates:
            self.extra = dict.fromkeys(result.extra, 0.0)
        # What an objective reports for only some of these updates has no mean over all of them.
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
        """Return the event of these updates, each of `batches` batches of the `plan`."""
        # Tiny updates may take no measurable processor time.
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
        # After the last line feed there is nothing, or a line that a killed run had begun.
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
        # Rewritten as a whole: a run that is killed here leaves the old log.
        with atomic_file(self.path) as file:
            file.write(b"".join(remaining))
        return damaged

    def write(self, event: Event) -> None:
        """Append `event` if it is of a kind that is logged."""
        if not isinstance(event, (Updated, Gradients, Validated, Finished)):
            return
        values: dict[str, Any] = {"event": type(event).__name__.lower()}
        values |= dataclasses.asdict(event)
        # The perplexity of the likelihood, whatever the objective adds to its loss.
        nll = values.get("nll", values.get("best_nll"))
        if nll is not None:
            values["perplexity"] = perplexity(nll)
        if isinstance(event, Validated) and _validation(values) in self._known:
            # A run that continues from the end of another repeats its last validation.
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
    """Return what identifies a validation; the same weights have the same loss."""
    return tuple(str(values.get(name)) for name in ("event", "update", "weights", "nll"))


def perplexity(nll: float) -> float:
    """Return exp(nll), bounded so that early values stay finite."""
    return math.exp(min(nll, 50.0))
