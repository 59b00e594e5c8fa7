"""Runs one system in a separate interpreter, which receives commands over a pipe.

    python -m benchmarks.peers.worker NAME

Reads one JSON object per line, first the task, then commands; answers each with one line. Needs
only the system itself, so that peers may be installed in other environments.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

Task = dict[str, Any]
END = "</s>"


class System(Protocol):
    """Interface of a benchmarked system; each `benchmarks.peers.NAME` has a class of this name."""

    version: str

    def __init__(self, task: Task) -> None:
        """Set up training and load the common weights; `task` is from data.py."""

    def train(self, seconds: float) -> tuple[int, int]:
        """Train for `seconds` of processor time; return target tokens (with ends) and updates."""
        ...

    def translate(self, beam: int, quantization: str, count: int) -> list[list[str]]:
        """Return the tokens of the first `count` test sentences' translations, in order."""
        ...


def by_length(sources: Sequence[Sequence[Any]], size: int) -> Iterator[list[int]]:
    """Yield the indices of `sources`, shortest first, `size` at a time."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    for first in range(0, len(order), size):
        yield order[first : first + size]


def strip(tokens: list[str]) -> list[str]:
    """Return `tokens` up to the end symbol."""
    return tokens[: tokens.index(END)] if END in tokens else tokens


def execute(system: System, command: dict[str, Any]) -> dict[str, Any]:
    """Execute `command` and return its figures; only the work itself is timed."""
    cpu, wall = time.process_time(), time.perf_counter()
    if command["do"] == "train":
        tokens, updates = system.train(command["seconds"])
        answer: dict[str, Any] = {"tokens": tokens, "updates": updates}
    else:
        lines = system.translate(command["beam"], command["quantization"], command["count"])
        answer = {"lines": lines}
    answer["cpu"], answer["wall"] = time.process_time() - cpu, time.perf_counter() - wall
    if "lines" in answer:
        answer["lines"] = [strip(line) for line in answer["lines"]]
        answer["tokens"] = sum(len(line) + 1 for line in answer["lines"])
    return answer


def main() -> None:
    """Serve one system until the pipe closes."""
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    task = json.loads(sys.stdin.readline())
    try:
        module = importlib.import_module(f"benchmarks.peers.{sys.argv[1]}")
    except ModuleNotFoundError as fault:
        return answer({"missing": str(fault.name)})
    system: System = module.System(task)
    answer({"version": system.version})
    for line in sys.stdin:
        answer(execute(system, json.loads(line)))
    return None


if __name__ == "__main__":
    main()
