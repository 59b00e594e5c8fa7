"""Updates of every architecture as in `train`: loss, gradients, clipping, optimiser.

Measured on batches of equal lengths and of true lengths, interleaved with matrix products for the
ceiling. Each architecture has a separate process, so that its peak memory is measured separately.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.machine import with_ceiling
from benchmarks.shapes import (
    affordable,
    cell_count,
    make_model,
    random_batch,
    real_batches,
    settings_of,
    square_shapes,
    token_count,
    training_lengths,
    useful_flops,
)
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, Memory, Row, Workload, facts, run_in_process
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.optimiser import make_optimiser
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import Updater


def make_updater(model: TranslationModel, settings: RunSettings, conditions: Conditions) -> Updater:
    """Return an updater of `model`, as `train` makes it."""
    objective = objectives.get(settings.objective_name).make(settings.objective)
    optimiser = make_optimiser(model, settings.training)
    device = torch.device(conditions.device)
    clip_norm, trained = settings.training.clip_norm, TrainedModel(model, objective)
    return Updater(trained, optimiser, device, bf16=conditions.bf16, clip_norm=clip_norm)


def updating(updater: Updater, batches: Sequence[Batch]) -> Workload:
    """Return the workload of one update on each of `batches`."""

    def workload() -> None:
        for batch in batches:
            updater.launch([batch], 1e-6)

    return workload


def measure_one(name: str, conditions: Conditions) -> list[Row]:
    """Return one architecture's rows."""
    conditions.begin()
    lengths, _ = training_lengths(conditions.lengths)
    settings = settings_of(name, conditions)
    cases = {
        f"{count} x {size} x {size}": [random_batch([(size, size)] * count)]
        for count, size in square_shapes(conditions)
    }
    count = 8 if conditions.is_large else 2
    cases["true lengths"] = real_batches(lengths, affordable(settings, conditions), count)
    memory = Memory(conditions.device)
    model = make_model(settings, conditions.device)
    updater = make_updater(model, settings, conditions)
    rows = []
    for case, batches in cases.items():
        memory.reset()
        workload = updating(updater, batches)
        workload()
        peak = memory.peak()
        seconds, ceiling = with_ceiling(conditions.clock(), conditions, {case: workload})
        spent, work = seconds[case], useful_flops(model, batches) / 1e9
        rows.append({
            "architecture": name,
            "parameters": model.count_parameters(),
            "batch": case,
            "seconds per update": spent / len(batches),
            "target tokens/s": sum(map(token_count, batches)) / spent,
            "cells/s": sum(map(cell_count, batches)) / spent,
            "GFLOP/s": work / spent,
            "of the products' rate": work / spent / ceiling,
            "peak MiB": peak,
        })  # fmt: skip
    return rows


def measure(conditions: Conditions, names: Sequence[str]) -> Section:
    """Measure updates of the architectures `names`."""
    _, origin = training_lengths(conditions.lengths)
    rows = [row for name in names for row in run_in_process(measure_one, name, conditions)]
    return section(facts(conditions.device), {"Updates": rows}, [origin])
