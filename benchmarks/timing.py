"""Shared by the benchmarks: a clock that compares workloads, and facts about the machine."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import multiprocessing
import os
import platform
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import nmtgrid
from nmtgrid.layers.kernels.packed_weights import can_pack

Workload = Callable[[], object]
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Conditions of all measurements; `quick` only tests that they run."""

    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 1
    runs: int = 2
    quick: bool = False
    lengths: Path | None = None
    """A text file of "source target" lengths, one pair per line, optionally compressed with xz."""

    @property
    def bf16(self) -> bool:
        """Whether matrix products are in bfloat16."""
        return self.precision == "bf16"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def is_large(self) -> bool:
        """Whether the device needs large batches."""
        return self.device == "cuda" and not self.quick

    def clock(self, times: int = 1) -> Clock:
        """Return a clock that takes the best of `runs` x `times` runs."""
        return Clock(self.device, self.runs * times)

    def cast(self) -> torch.autocast:
        """Return the autocast context for a model."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)

    def begin(self) -> None:
        """Set up this process: number of threads, no TF32, fixed random seed."""
        torch.set_num_threads(self.threads)
        torch.backends.cudnn.allow_tf32 = False  # as the command line has it
        torch.manual_seed(1)


def precisions(device: str) -> tuple[str, ...]:
    """Return bf16 and fp32, or only fp32 on a CPU without bf16 products.

    On such a CPU, bf16 takes minutes instead of seconds.
    """
    return ("bf16", "fp32") if device == "cuda" or can_pack("bf16") else ("fp32",)


class Clock:
    """Times workloads on one device, interleaved; the best of `runs` counts."""

    def __init__(self, device: str, runs: int) -> None:
        self.device, self.runs = torch.device(device), runs

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        # Processor time of a single thread, which other load on the machine hardly affects.
        is_alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time() if is_alone else time.perf_counter()

    def best(self, workloads: dict[str, Workload]) -> dict[str, float]:
        """Return the shortest time of each workload in seconds; the first round is a warm-up."""
        seconds = dict.fromkeys(workloads, float("inf"))
        for run in range(self.runs + 1):
            for name, workload in workloads.items():
                spent = self.once(workload)
                if run:
                    seconds[name] = min(seconds[name], spent)
        return seconds

    def once(self, workload: Workload) -> float:
        """Run `workload` once; return the seconds."""
        began = self._now()
        workload()
        return self._now() - began


class Memory:
    """Peak memory in MiB since this was created or, on CUDA, since the last `reset`.

    On a CPU it is the increase of the process's peak, so create this before anything else; later
    figures are never below earlier ones.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._before = 0.0 if device == "cuda" else self._held()
        self.reset()

    def reset(self) -> None:
        """Reset the peak, if the device supports that."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        """Return the peak in MiB."""
        return self._held() - self._before

    def _held(self) -> float:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        # Prefer this to `ru_maxrss`, which a new process inherits from its parent.
        return peak_memory("self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def peak_memory(process: int | str) -> float:
    """Return the largest resident set of a process so far in MiB, 0 if unknown."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def run_in_process(workload: Callable[..., Any], *arguments: Any) -> Any:
    """Return workload(*arguments), run in a new process; `workload` is a module-level function."""
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(workload, *arguments).result()


class Cost(NamedTuple):
    """Cost of a command: seconds, and the largest resident sets in MiB."""

    cpu: float
    wall: float
    mebibytes: float
    """Of the first process."""
    worker_mebibytes: float
    """Maximum over child processes; 0 if none was seen."""


def measure_command(command: Sequence[str]) -> Cost:
    """Run a command with one thread per process, and sample the memory of its processes.

    Its output is discarded. Raises SystemExit with its errors if it fails.
    """
    began, first, worker = time.monotonic(), 0.0, 0.0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        while True:
            # `usage` cannot be used for memory: it is never less than that of this process.
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            first = max(first, peak_memory(process.pid))
            worker = max([worker, *map(peak_memory, children(process.pid))])
            time.sleep(0.1)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            text = errors.read().decode(errors="replace")
            raise SystemExit(f"{' '.join(command)} failed:\n{text}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - began, first, worker)


def children(process: int) -> list[int]:
    """Return the running child processes of a process."""
    try:
        return [int(child) for task in Path(f"/proc/{process}/task").iterdir()
                for child in (task / "children").read_text().split()]  # fmt: skip
    except OSError:
        return []


def facts(device: str) -> Row:
    """Return the conditions of a figure: machine, threads, versions, date, and load."""
    facts = {"machine": platform.machine(), "processor": _processor(), "cores": os.cpu_count()}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    return {
        **facts,
        "torch": torch.__version__,
        "nmtgrid": nmtgrid.__version__,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
