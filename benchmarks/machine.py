"""Ceilings of the machine: matrix products with the shapes of the models, and memory copies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.store import Section, section
from benchmarks.timing import Clock, Conditions, Row, Workload, facts

SIZE, WIDE, TYPES = 256, 1024, 6632
SHAPES = ((SIZE, SIZE), (SIZE, WIDE), (WIDE, SIZE), (SIZE, TYPES))
"""Input and output features of the linear maps of the thesis' base model."""
CELLS, MANY_CELLS = 9216, 163_584
"""Cells of batches of 16 and of 284 sentences of 24 x 24 tokens."""


def product(device: str, dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> Workload:
    """Return the workload of one linear map of `rows` vectors, with a bias."""
    x = torch.randn(rows, inputs, device=device).to(dtype)
    weight = torch.randn(outputs, inputs, device=device).to(dtype)
    bias = torch.randn(outputs, device=device).to(dtype)
    return lambda: F.linear(x, weight, bias)


def products(conditions: Conditions) -> dict[str, tuple[Workload, float]]:
    """Return the linear maps of the base model with their GFLOP, to time with other workloads."""
    rows = 256 if conditions.quick else MANY_CELLS if conditions.is_large else CELLS
    workloads = {}
    for inputs, outputs in SHAPES[:3]:
        workload = product(conditions.device, conditions.dtype, rows, inputs, outputs)
        gigaflops = 2e-9 * rows * inputs * outputs
        workloads[f"{rows:,} x {inputs} to {outputs}"] = workload, gigaflops
    return workloads


def with_ceiling(
    clock: Clock, conditions: Conditions, workloads: dict[str, Workload]
) -> tuple[dict[str, float], float]:
    """Return the seconds of `workloads`, and the best GFLOP/s of products interleaved with them."""
    ceilings = products(conditions)
    beside = {name: workload for name, (workload, _) in ceilings.items()}
    seconds = clock.best({**workloads, **beside})
    return seconds, max(work / seconds[name] for name, (_, work) in ceilings.items())


def measure(conditions: Conditions) -> Section:
    """Measure the ceilings."""
    clock = conditions.clock(3)
    rows = 256 if conditions.quick else MANY_CELLS if conditions.is_large else CELLS
    cases = [(rows, *shape) for shape in SHAPES[:3]] + [(min(rows, CELLS), *SHAPES[3])]
    if conditions.is_large:
        cases.append((8192, 8192, 8192))
    rates = []
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for count, inputs, outputs in cases:
            workload = product(conditions.device, dtype, count, inputs, outputs)
            rate = 2e-9 * count * inputs * outputs / clock.best({"": workload})[""]
            shape = f"{count:,} x {inputs:,} to {outputs:,}"
            rates.append({"map": shape, "precision": name, "GFLOP/s": rate})
    copies = [copy(clock, conditions, size) for size in ((1,) if conditions.quick else (64, 1024))]
    return section(facts(conditions.device), {"Matrix products": rates, "Copies": copies})


def copy(clock: Clock, conditions: Conditions, mebibytes: int) -> Row:
    """Time a memory copy; each byte counts as read and as written."""
    source = torch.ones(mebibytes * 2**18, device=conditions.device)
    target = torch.empty_like(source)

    def workload() -> Tensor:
        return target.copy_(source)

    return {"MiB": mebibytes, "GB/s": 2e-9 * mebibytes * 2**20 / clock.best({"": workload})[""]}
