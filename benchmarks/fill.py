"""Cost of padding in an update on a CPU: batches of equal work with different fill ratios.

    python -m benchmarks.fill [--rounds 5] [--out benchmarks/results/fill.json]

Sentences have the same length on both sides, and all batches have nearly the same number of cells
(for a Transformer: tokens); the fill is their share of the padded batch. For grids, convolving
groups of similar sentences is compared with convolving the whole padded batch, interleaved in one
process.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.shapes import GRIDS, cell_count, make_model, random_batch, settings_of, token_count
from benchmarks.store import report, section
from benchmarks.timing import Conditions, Row, Workload, facts
from benchmarks.twins import Stepper, fused_loss
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels import grid_conv

FILLS = (0.55, 0.8, 0.95)
SENTENCES, LENGTH = {"pervasive": 12, "transformer": 40}, 20
"""Sentences of a batch by architecture, and their length if all had the same."""


def lengths(fill: float, count: int, power: int) -> list[int]:
    """Return lengths with evenly spaced powers, whose mean is `fill` times the largest."""
    spread = 1.0 / fill - 1.0
    sizes = np.linspace(1.0 - spread, 1.0 + spread, count) * LENGTH**power
    return [max(1, int(size)) for size in np.rint(sizes ** (1.0 / power))]


def measure_architecture(name: str, conditions: Conditions, rounds: int) -> list[Row]:
    """Return a row for each fill."""
    conditions.begin()
    model = make_model(settings_of(name, conditions))
    stepper = Stepper(model, fused_loss(model), conditions)
    is_grid = name in GRIDS
    batches: dict[float, Batch] = {}
    workloads: dict[str, Workload] = {}
    for fill in FILLS:
        sizes = lengths(fill, SENTENCES[name], 2 if is_grid else 1)
        batches[fill] = random_batch([(size, size) for size in sizes])
        update = stepper.workload([batches[fill]])
        workloads[f"{fill} after"] = update
        if is_grid:
            # Convolve all grids of a batch together, including padding.
            whole = mock.patch.object(grid_conv, "CALL_ELEMENTS", 2**62)
            workloads[f"{fill} before"] = whole(update)
    seconds = conditions.clock(rounds).best(workloads)
    rows: list[Row] = []
    for fill, batch in batches.items():
        rectangle = len(batch) * batch.target_input.shape[1]
        if is_grid:
            rectangle *= batch.source.shape[1]
        units = cell_count(batch) if is_grid else token_count(batch)
        row = {
            "architecture": name, "fill": units / rectangle, "sentences": len(batch),
            "cells": cell_count(batch), "target tokens": token_count(batch),
            "target tokens/s": token_count(batch) / seconds[f"{fill} after"],
        }  # fmt: skip
        if is_grid:
            row["cells/s"] = cell_count(batch) / seconds[f"{fill} after"]
            row["cells/s, whole rectangles"] = cell_count(batch) / seconds[f"{fill} before"]
        rows.append(row)
    return rows


def measure(rounds: int, *, quick: bool = False) -> dict[str, Any]:
    """Measure all architectures."""
    conditions = Conditions(runs=1, quick=quick)
    rows = [row for name in SENTENCES for row in measure_architecture(name, conditions, rounds)]
    notes = [
        "Processor seconds of one thread, the best of "
        f"{rounds} rounds in turn; models are the presets `iwslt14-de-en`.",
    ]
    return section(facts("cpu"), {"Updates by fill": rows}, notes)


def main() -> None:
    """Measure, print, and store as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small models, to test that it runs")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report("fill", measure(options.rounds, quick=options.quick), options.out)


if __name__ == "__main__":
    main()
