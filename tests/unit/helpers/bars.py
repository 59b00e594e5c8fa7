"""Progress bars that are recorded instead of drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nmtgrid.base import console


@dataclasses.dataclass
class Stage:
    """The last content of a bar, or of one of its stages."""

    description: str
    total: float | None
    done: float = 0.0


class _Bar:
    seconds = 1.0

    def __init__(self, stages: list[Stage], first: Stage) -> None:
        self._stages = stages
        self._stages.append(first)

    def update(self, advance: float = 0, **changes: Any) -> None:
        self._stages[-1].done = changes.get("completed", self._stages[-1].done + advance)
        self._stages[-1].total = changes.get("total", self._stages[-1].total)

    def stage(self, description: str) -> None:
        if description != self._stages[-1].description:
            self._stages.append(Stage(description, self._stages[-1].total))


def recorded_bars(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """Return a list that collects the stages of all bars shown from now on."""
    stages: list[Stage] = []

    @contextmanager
    def progress(
        description: str, total: float | None = None, *, hidden: bool = False
    ) -> Iterator[_Bar]:
        yield _Bar([] if hidden else stages, Stage(description, total))

    monkeypatch.setattr(console, "progress", progress)
    return stages
