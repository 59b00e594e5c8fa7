"""What the benchmarks share: a clock that compares workloads, and the facts of the machine."""

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
    """Under what all is measured; `quick` is for seeing that it runs, its figures mean little."""

    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 1
    runs: int = 2
    quick: bool = False
    lengths: Path | None = None
    """A text of "source target" lengths, one training pair a line, perhaps compressed by xz."""

    @property
    def bf16(self) -> bool:
        """Whether products are in bfloat16."""
        return self.precision == "bf16"

    @property
    def dtype(self) -> torch.dtype:
        """What products are in."""
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def is_large(self) -> bool:
        """Whether the device wants much work at once."""
        return self.device == "cuda" and not self.quick

    def clock(self, times: int = 1) -> Clock:
        """Return a clock that takes the best of `runs` x `times`."""
        return Clock(self.device, self.runs * times)

    def cast(self) -> torch.autocast:
        """Return the context in which a model runs."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)

    def begin(self) -> None:
        """Make this process ready: its threads, fp32 that is fp32, numbers drawn that stay."""
        torch.set_num_threads(self.threads)
        torch.backends.cudnn.allow_tf32 = False  # as the command line has it
        torch.manual_seed(1)


def precisions(device: str) -> tuple[str, ...]:
    """Return bf16 and fp32, or fp32 alone on a CPU without bf16 products.

    What takes seconds in fp32 takes minutes there.
    """
    return ("bf16", "fp32") if device == "cuda" or can_pack("bf16") else ("fp32",)


class Clock:
    """Times workloads on one device, in turn, the best of `runs` counting."""

    def __init__(self, device: str, runs: int) -> None:
        self.device, self.runs = torch.device(device), runs

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        # The processor's time of a single thread: other work on the machine matters little.
        is_alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time() if is_alone else time.perf_counter()

    def best(self, workloads: dict[str, Workload]) -> dict[str, float]:
        """Return the shortest seconds of each workload; the first round does not count."""
        seconds = dict.fromkeys(workloads, float("inf"))
        for run in range(self.runs + 1):
            for name, workload in workloads.items():
                spent = self.once(workload)
                if run:
                    seconds[name] = min(seconds[name], spent)
        return seconds

    def once(self, workload: Workload) -> float:
        """Return the seconds that `workload` takes once."""
        began = self._now()
        workload()
        return self._now() - began


class Memory:
    """The most memory that was held since this was made, in MiB.

    On CUDA since the last `reset`. On a CPU it is what the process grew by at its largest, so this
    is to be made before anything is, and later figures are never below earlier ones.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._before = 0.0 if device == "cuda" else self._held()
        self.reset()

    def reset(self) -> None:
        """Forget what was held before, where the device allows that."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        """Return the MiB."""
        return self._held() - self._before

    def _held(self) -> float:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        # Not first `ru_maxrss`, which a new process has from the one that started it.
        return peak_memory("self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def peak_memory(process: int | str) -> float:
    """Return the largest resident set of a process so far, in MiB; 0 where it is not known."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def run_in_process(workload: Callable[..., Any], *arguments: Any) -> Any:
    """Return workload(*arguments), a module's function, from a process of its own."""
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(workload, *arguments).result()


class Cost(NamedTuple):
    """What a command took: seconds, and the largest resident sets in MiB."""

    cpu: float
    wall: float
    mebibytes: float
    """Of its first process."""
    worker_mebibytes: float
    """Of any process that it started; 0: none was seen."""


def measure_command(command: Sequence[str]) -> Cost:
    """Run a command in one thread for each process; look at their memory meanwhile.

    What it prints is dropped. Exits with its errors where it fails.
    """
    began, first, worker = time.monotonic(), 0.0, 0.0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        while True:
            # Its memory is not that of `usage`, which is never less than the one of this process.
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
    """Return the processes that a process has started and that run."""
    try:
        return [int(child) for task in Path(f"/proc/{process}/task").iterdir()
                for child in (task / "children").read_text().split()]  # fmt: skip
    except OSError:
        return []


def facts(device: str) -> Row:
    """Return what a figure depends on: machine, threads, versions, day, and other work on it."""
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
