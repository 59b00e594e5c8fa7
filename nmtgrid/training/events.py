"""Events of a training run, the sums between two log lines, and `metrics.jsonl`.

`Trainer.run` yields the events; the command `train` shows them and writes those with figures.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import atomic_file, storage_error
from nmtgrid.base.io.checksums import LINE_CHECKSUM, is_altered_line, with_line_checksum
from nmtgrid.data.batches import BatchPlan
from nmtgrid.training.progress import Progress, minutes_left
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.update import UpdateResult


@dataclasses.dataclass(frozen=True)
class Started:
    """The run begins (or goes on, from `update`)."""

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
class Split:
    """A batch did not fit into memory and was halved; its gradient is the same sum."""

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
    """What weights are chosen by, where that is not `nll`."""
    extra: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A state to resume from is on the disk."""

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


Event = Started | Updated | Gradients | Split | Validated | Saved | Finished


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
        remaining, damaged = [], []
        # Behind the last line feed is nothing, or the line that a killed run had begun.
        *lines, _ = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line.decode("utf-8"))
                is_later = values["update"] > update
            except (ValueError, KeyError, TypeError, RecursionError):
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
                "Mend that, such as by freeing space, and go on from the last saved state with "
                "`--resume`.",
            ) from fault


def _validation(values: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a validation is known by; the same weights have the same loss."""
    return tuple(str(values.get(name)) for name in ("event", "update", "weights", "nll"))


def perplexity(nll: float) -> float:
    """Return exp(nll), bounded so that early figures stay numbers."""
    return math.exp(min(nll, 50.0))
