"""What the benchmarks share: a clock that compares deeds in turn, and the facts of the machine."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Deed = Callable[[], object]
Row = dict[str, Any]


class Clock:
    """Times deeds on one device, in turn, the best of `runs` counting."""

    def __init__(self, device: str, runs: int) -> None:
        self.device, self.runs = torch.device(device), runs

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time() if alone else time.perf_counter()

    def best(self, deeds: dict[str, Deed]) -> dict[str, float]:
        """Return the shortest seconds of each deed; the first round does not count."""
        seconds = dict.fromkeys(deeds, float("inf"))
        for run in range(self.runs + 1):
            for name, deed in deeds.items():
                began = self._now()
                deed()
                spent = self._now() - began
                if run:
                    seconds[name] = min(seconds[name], spent)
        return seconds


def facts(device: str) -> Row:
    """Return what a figure depends on: machine, threads, versions, day."""
    found = {"machine": platform.machine(), "processor": _processor(), "cores": os.cpu_count()}
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return {
        **found,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "date": datetime.date.today().isoformat(),
    }


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
