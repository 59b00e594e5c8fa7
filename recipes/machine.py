"""The machine that a record was made on: its name, software versions, and single-core speed.

Machines of the same name differ: one "AMD EPYC" multiplies matrices in bf16 twice as fast as
another, so that a run gets further in the same minutes. Records therefore include the speed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path

import torch
import torch.nn.functional as F

import nmtgrid

PROJECT = Path(__file__).resolve().parent.parent
ROWS, INPUTS, OUTPUTS = 4096, 256, 1024
ROUNDS = 20
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def machine() -> str:
    """Return the names of the GPUs or, without any, of the processor and its number of cores."""
    if shutil.which("nvidia-smi"):
        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split("\n")
        if names[0]:
            return f"{len(names) - 1} x {names[0]}"
    name = platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.is_file() and (match := re.search(r"model name\s*: (.+)", facts.read_text())):
        name = match[1]
    return f"{name}, {os.cpu_count()} cores, no GPU"


def speed() -> dict[str, int]:
    """Return GFLOP/s of matrix products on one core (processor time), by precision."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: round(_product(kind)) for name, kind in PRECISIONS.items()}
    finally:
        torch.set_num_threads(threads)


def _product(dtype: torch.dtype) -> float:
    """Return GFLOP/s of a linear map of a small model, the best of several runs."""
    x, weight = torch.randn(ROWS, INPUTS).to(dtype), torch.randn(OUTPUTS, INPUTS).to(dtype)
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        F.linear(x, weight)
        seconds.append(time.process_time() - start)
    return 2e-9 * ROWS * INPUTS * OUTPUTS / min(seconds)


def software() -> str:
    """Return the software versions that a result depends on."""
    torch_version, python = metadata.version("torch"), platform.python_version()
    return f"nmtgrid {nmtgrid.__version__}, torch {torch_version}, Python {python}"


def commit(project: Path = PROJECT) -> str | None:
    """Return the commit of a checkout, with + for uncommitted changes; None outside a checkout."""
    # Ignore a repository that merely contains the project.
    ask = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(project.parent)}
    try:
        asked = subprocess.run(ask, cwd=project, env=alone, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() or None
