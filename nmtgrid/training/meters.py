"""Sums of what happens between two log lines, and the file that the lines go to."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError
from nmtgrid.base.files import write_text
from nmtgrid.training.events import Event, Finished, Gradients, Updated, Validated
from nmtgrid.training.limits import Progress
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

    @property
    def minutes_each(self) -> float:
        """Minutes of an update."""
        return max(self.seconds, 1e-9) / 60 / self.updates

    @property
    def minutes_per_pair(self) -> float:
        """Minutes for each training pair."""
        return max(self.seconds, 1e-9) / 60 / max(self.pairs, 1)

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
    """`metrics.jsonl`: one line for each interval, validation and measurement of gradients."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_until(self, update: int) -> None:
        """Drop lines of updates after `update` (they are done again), and a torn last line."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().decode("utf-8", "replace").split("\n"):
            try:
                if json.loads(line)["update"] <= update:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        write_text(self.path, "".join(kept))

    def write(self, event: Event) -> None:
        """Append `event`, if it is one with figures."""
        if not isinstance(event, (Updated, Gradients, Validated, Finished)):
            return
        values: dict[str, Any] = {"event": type(event).__name__.lower()}
        values |= dataclasses.asdict(event)
        nll = values.get("nll", values.get("best_nll"))
        if nll is not None:
            values["perplexity"] = perplexity(nll)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as fault:
            raise StorageError(
                f"{self.path} could not be written: {fault.strerror}.",
                "Mend that, such as by freeing space, and go on from the last saved state with "
                "`--resume`.",
            ) from fault


def perplexity(nll: float) -> float:
    """Return exp(nll), bounded so that early figures stay numbers."""
    return math.exp(min(nll, 50.0))
