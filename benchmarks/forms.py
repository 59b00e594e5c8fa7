"""Profile of an update, and the speedup from compiling a layer.

`profile` lists the operators of one update of the base model by self time; `compiled` times one
feed-forward and one convolutional layer with their residual sums, eager and compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.shapes import (
    make_model,
    random_batch,
    settings_of,
    square_shapes,
)
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, Row, Workload, facts, run_in_process
from benchmarks.training_speed import make_updater, updating
from nmtgrid.layers.grid.convolution import AllRows
from nmtgrid.layers.kernels.dropout import residual_dropout
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.models.pervasive.model import PervasiveAttention

SHOWN = 14
"""Number of operators in the table."""


def profile_update(conditions: Conditions) -> list[Row]:
    """Return the operators that take the most time in an update."""
    conditions.begin()
    settings = settings_of("pervasive", conditions)
    updater = make_updater(make_model(settings, conditions.device), settings, conditions)
    count, size = square_shapes(conditions)[-1]
    workload = updating(updater, [random_batch([(size, size)] * count)])
    workload()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if conditions.device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        conditions.clock().once(workload)
    return busiest(profile.key_averages(), conditions.device)


def busiest(events: Any, device: str) -> list[Row]:
    """Return the operators with the most self time, and their shares."""
    name = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    times = [(float(getattr(event, name)), event.key, event.count) for event in events]
    total = sum(spent for spent, _, _ in times)
    return [
        {"operator": key, "calls": count, "ms": spent / 1000, "share": spent / total}
        for spent, key, count in sorted(times, reverse=True)[:SHOWN]
    ]


def layers(conditions: Conditions) -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    """Return one layer of each kind with its residual sum, and its input."""
    settings = settings_of("pervasive", conditions)
    model = make_model(settings, conditions.device).train()
    assert isinstance(model, PervasiveAttention)
    count, size = square_shapes(conditions)[-1]
    lengths = torch.full((count,), size, device=conditions.device)
    cells = AllRows(GridLayout.make(lengths, lengths))
    features = torch.randn(count * size * size, settings.model.size, device=conditions.device)
    features = features.to(conditions.dtype).requires_grad_()
    layers: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {}
    for name, layer in zip(("convolution", "feed-forward"), model.network.layers, strict=False):

        def run(before: Tensor, layer: Any = layer) -> Tensor:
            return residual_dropout(before, layer(before, cells), 0.2, 0.5**0.5, True)

        layers[name] = run, features
    return layers


def both_ways(run: Callable[[Tensor], Tensor], x: Tensor, conditions: Conditions) -> Workload:
    """Return the workload of a forward and backward pass of a layer."""

    def workload() -> None:
        with conditions.cast():
            out = run(x)
        out.backward(torch.ones_like(out))

    return workload


def compare_forms(conditions: Conditions) -> list[Row]:
    """Return the milliseconds of each layer, eager and compiled with dynamic shapes."""
    conditions.begin()
    rows: list[Row] = []
    for name, (run, x) in layers(conditions).items():
        compiled = torch.compile(run, dynamic=True)
        workloads = {"eager": both_ways(run, x, conditions),
                 "compiled": both_ways(compiled, x, conditions)}  # fmt: skip
        began = time.perf_counter()
        try:
            workloads["compiled"]()
        except Exception as fault:  # without a C++ compiler, report that and continue
            rows.append({"layer": name, "fault": str(fault).strip().splitlines()[0]})
            continue
        first = time.perf_counter() - began
        seconds = conditions.clock(4).best(workloads)
        rows.append({
            "layer": name, "eager ms": 1000 * seconds["eager"],
            "compiled ms": 1000 * seconds["compiled"],
            "times eager": seconds["eager"] / seconds["compiled"],
            "seconds of compiling": first,
        })  # fmt: skip
    return rows


def profile(conditions: Conditions) -> Section:
    """Profile one update."""
    rows = run_in_process(profile_update, conditions)
    return section(facts(conditions.device), {"Operators of an update": rows})


def compiled(conditions: Conditions) -> Section:
    """Compare eager and compiled layers."""
    rows = run_in_process(compare_forms, conditions)
    return section(facts(conditions.device), {"A layer, forward and backward": rows})
