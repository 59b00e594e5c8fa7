"""The protocol for validating a GPU: one command, limited in time, stored after each step.

    python -m benchmarks --first-gpu [--minutes 40] [--device cuda] [--out DIR]

The most informative steps come first, so that `--minutes 15` suffices for them. Each step runs in
a separate process, which is killed when the time of the step or of the whole is over; its figures
are stored immediately. The command may be killed at any time, and the step ends with it; run again,
it continues with the steps that are not `done`. DIR/first-gpu.json has, for each step, its state
(`done`, `failed`, `out of time` or `cut off`), seconds, figures, the result expected before any
measurement on a GPU, and the end of the output if it was not done. The figures of a step that was
cut off are in DIR/first-gpu/STEP/figures.json. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import first_gpu_steps as steps
from benchmarks.timing import Conditions, children, facts
from nmtgrid.base.io.atomic import make_folder, write_json

STEPS = (
    steps.Step("environment", 2, steps.environment, "Triton works; a C compiler is there"),
    steps.Step("waits", 2, steps.waits, "an update: pervasive 0, transformer 0"),
    steps.Step(
        "update",
        5,
        steps.update,
        "37 ms on an H100, 31 ms on an H200 (on paper: results/gpu-code.json); GPU busy above "
        "90 %; reserved memory stays",
    ),
    steps.Step("decoding", 6, steps.decoding, "graphs faster than eager; equal tokens in fp32"),
    steps.Step("kernels", 5, steps.convolutions, "three strips: 0.25 ms forward; one: 0.6 ms"),
    steps.Step("tests", 8, steps.tests, "all pass"),
    steps.Step("training", 6, steps.training, "same losses after resuming"),
    steps.Step("memory", 3, steps.memory, "micro-batches are halved and the update goes on"),
    steps.Step("processes", 3, steps.processes, "two GPUs: losses of one process to 1e-5"),
)
"""Most informative first, in case time runs out; the first four take 15 minutes."""
_SHOWN = 4000
"""Number of characters of a failed step's output to store."""


def run(options: argparse.Namespace) -> int:
    """Run the steps that are not done; return the exit code, 1 if any is still not done."""
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device on this machine.")
    conditions = Conditions(options.device, "bf16", quick=options.device == "cpu" or options.quick)
    path = options.out / "first-gpu.json"
    make_folder(options.out)
    record = _read(path, conditions)
    deadline = time.monotonic() + 60 * options.minutes
    for step in STEPS:
        if record["steps"].get(step.name, {}).get("state") == "done":
            print(f"{step.name}: done before", flush=True)
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            print(f"{step.name}: not started, {options.minutes:g} minutes are over", flush=True)
            continue
        record["steps"][step.name] = {"state": "cut off", "expected": step.expected}
        write_json(path, record)
        result = run_step(step, conditions, options.out, min(left, 60 * step.minutes))
        record["steps"][step.name] = result
        write_json(path, record)
        print(f"{step.name}: {result['state']} after {result['seconds']:.0f} s", flush=True)
    states = [record["steps"].get(step.name, {}).get("state") for step in STEPS]
    return int(any(state != "done" for state in states))


def run_step(step: steps.Step, conditions: Conditions, folder: Path, seconds: float) -> Any:
    """Run a step in a separate process, for at most `seconds`; return its record."""
    work = folder / "first-gpu" / step.name
    work.mkdir(parents=True, exist_ok=True)
    figures, output = work / "figures.json", work / "output.txt"
    figures.unlink(missing_ok=True)
    order = json.dumps(dataclasses.asdict(conditions))
    began, state = time.monotonic(), "done"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.first_gpu", step.name, order, str(work)],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            state = "failed" if process.wait(seconds) else "done"
        except subprocess.TimeoutExpired:
            state = "out of time"
        finally:
            if process.poll() is None:
                _kill(process.pid)
            process.communicate()
    result: dict[str, Any] = {"state": state, "seconds": round(time.monotonic() - began, 1)}
    result["expected"] = step.expected
    # Also the figures so far of a step that ran out of time.
    result["figures"] = json.loads(figures.read_text()) if figures.exists() else {}
    if state != "done":
        result["output"] = output.read_text(errors="replace")[-_SHOWN:]
    return result


def _kill(process: int) -> None:
    """Kill a process and its descendants, in any session."""
    with contextlib.suppress(ProcessLookupError):
        # Stopped first, so that it starts nothing more.
        os.kill(process, signal.SIGSTOP)
        _kill_children(process)
        os.kill(process, signal.SIGKILL)


def _kill_children(process: int) -> None:
    for child in children(process):
        _kill(child)


def _end_with_the_command() -> None:
    """Wait until the command that started this step ends; then end as well."""
    os.read(sys.stdin.fileno(), 1)
    _kill_children(os.getpid())
    os._exit(1)


def _read(path: Path, conditions: Conditions) -> dict[str, Any]:
    """Return the stored record of the same machine and versions, or a new one."""
    new: dict[str, Any] = {"facts": facts(conditions.device), "steps": {}}
    new["facts"] |= {"device": conditions.device, "quick": conditions.quick}
    if not path.exists():
        return new
    old: dict[str, Any] = json.loads(path.read_text())
    changed = [
        name for name in ("processor", "gpu", "torch", "device", "quick")
        if old["facts"].get(name) != new["facts"].get(name)
    ]  # fmt: skip
    if changed:
        sys.exit(
            f"{path} was made under other conditions ({', '.join(changed)}): set another --out."
        )
    return old


def _main() -> None:
    """Run one step in this process."""
    name, order, folder = sys.argv[1:]
    step = next(step for step in STEPS if step.name == name)
    conditions = Conditions(**json.loads(order))
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    conditions.begin()
    try:
        step.measure(conditions, Path(folder))
    finally:
        _kill_children(os.getpid())


if __name__ == "__main__":
    _main()
