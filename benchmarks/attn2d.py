"""Our Pervasive Attention against the authors' code, interleaved in one process.

The model (N=14, 11x11, d=256, attention; theirs also has biases in its depthwise convolutions and
its attention), the batch, the loss and the optimiser are the same; both run in fp32 and, if the
processor has bf16 products, under bf16 autocast, although theirs is written for fp32 (or fp16 on a
GPU).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import nn

from benchmarks.decoding_speed import stepping
from benchmarks.peers.attn2d import Steps, build, loss
from benchmarks.shapes import (
    SOURCE_TYPES,
    TARGET_TYPES,
    cell_count,
    make_model,
    random_batch,
    settings_of,
    square_shapes,
)
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, Row, Workload, facts, precisions, run_in_process
from benchmarks.twins import SMOOTHING, Stepper, fused_loss
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import TranslationModel

QUOTED_CELLS, QUOTED_STEP = 1258, 107
"""Cells per CPU-second of training at 16 x 24 x 24 and milliseconds of a step of 16 rows at S = 24,
as measured with the authors' code in fp32 on one core, without the optimiser."""


def rows_of(cells: int, seconds: dict[str, float], steps: dict[str, float]) -> list[Row]:
    """Return a row for each side, with its speedup over theirs in fp32."""
    theirs, step = seconds["attn2d fp32"], steps["attn2d fp32"]
    return [
        {
            "code": name, "cells/s, training": cells / seconds[name],
            "times attn2d, training": theirs / seconds[name], "ms per step": 1000 * steps[name],
            "times attn2d, step": step / steps[name],
        }
        for name in seconds
    ]  # fmt: skip


def compare(conditions: Conditions, folder: Path) -> tuple[list[Row], list[str]]:
    """Return the rows, and notes on the comparison."""
    conditions.begin()
    settings, device = settings_of("pervasive", conditions), torch.device(conditions.device)
    model = make_model(settings, conditions.device)
    other = build(folder, settings.model, (SOURCE_TYPES, TARGET_TYPES)).to(device)
    count, size = square_shapes(conditions)[-1]
    batch = random_batch([(size, size)] * count)
    ours = Stepper(model, fused_loss(model), conditions)
    theirs = Stepper(other, lambda batch: loss(other, batch, SMOOTHING), conditions)
    sides = {"attn2d": theirs, "nmtgrid": ours}
    updates = {
        f"{name} {precision}": side.workload([batch], precision == "bf16")
        for name, side in sides.items()
        for precision in precisions(device.type)
    }
    seconds = conditions.clock().best(updates)
    steps = time_steps(conditions, batch.to(device), model, other)
    counts = [sum(p.numel() for p in side.parameters()) for side in (model, other)]
    shape = f"{count} x {size} x {size}; a step of {count} rows at S = {size}, after 12 rows."
    note = f"Parameters: nmtgrid {counts[0]:,}, attn2d {counts[1]:,} (filters with masked taps)."
    return rows_of(cell_count(batch), seconds, steps), [f"Updates with AdamW at {shape}", note]


def time_steps(
    conditions: Conditions, batch: Batch, model: TranslationModel, other: nn.Module
) -> dict[str, float]:
    """Return the seconds of one step after 12 rows, for each side and precision."""
    model.eval(), other.eval()
    device = batch.source.device.type

    def within(workload: Workload, bf16: bool) -> Workload:
        def run() -> None:
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                workload()

        return run

    workloads: dict[str, Workload] = {}
    # An outer autocast context keeps the cast weights until it ends.
    with torch.autocast(device, torch.bfloat16, enabled=False):
        for precision in precisions(device):
            bf16 = precision == "bf16"
            with_precision = dataclasses.replace(conditions, precision=precision)
            with with_precision.cast():
                ours = stepping(model, len(batch), batch.source.shape[1], with_precision)
                theirs = Steps(other, batch.source)
                for _ in range(12):
                    theirs()
            workloads |= {f"attn2d {precision}": within(theirs, bf16)}
            workloads |= {f"nmtgrid {precision}": within(ours, bf16)}
        return conditions.clock(8).best(workloads)


def measure(conditions: Conditions, folder: Path | None) -> Section:
    """Measure both; without a folder, or if its code cannot be loaded, quote earlier figures."""
    machine = facts(conditions.device)
    quoted = (
        f"Quoted, measured elsewhere with the authors' code in fp32 on one CPU core, without the "
        f"optimiser: {QUOTED_CELLS:,} cells/s in training at 16 x 24 x 24, {QUOTED_STEP} ms a "
        "step of 16 rows at S = 24."
    )
    if folder is None:
        return section(machine, {}, ["No folder was given (--attn2d).", quoted])
    try:
        rows, notes = run_in_process(compare, conditions, folder.resolve())
    except ImportError as fault:
        return section(machine, {}, [str(fault), quoted])
    return section(machine, {"Beside the authors' code": rows}, [*notes, quoted])
