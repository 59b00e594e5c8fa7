"""Projects the time of a whole training run and of translating a test set from samples.

Batches are formed as in `train` over all lengths of the corpus; a sample from small to large is
measured. Their seconds per valid cell, times the mean number of cells per update of the preset, are
the seconds of an update. On a GPU the measured batches are those of the preset; on a CPU they are
smaller, at the same cost per cell. Each measured batch is a separate update, so that the optimiser
of a preset with gradient accumulation is slightly overcounted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.decoding_speed import (
    BEAM,
    SENTENCES,
    batches_of,
    cells_of,
    decoding,
    spread_test_set,
)
from benchmarks.shapes import (
    Lengths,
    affordable,
    cell_count,
    make_model,
    plan_of,
    real_batches,
    settings_of,
    training_lengths,
    useful_flops,
    valid_cells,
)
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, Row, facts, run_in_process
from benchmarks.training_speed import make_updater, updating


@dataclasses.dataclass(frozen=True)
class Epoch:
    """Statistics of one pass over a corpus in batches of a preset."""

    batches: int
    cells: int
    """Total number of valid cells."""
    fill: float
    """Share of the cells that are valid."""
    skipped: int

    @property
    def cells_per_batch(self) -> float:
        """Mean number of valid cells per batch."""
        return self.cells / self.batches


def epoch_of(lengths: Lengths, batches: Any) -> Epoch:
    """Return the epoch of pairs with these lengths, in batches with the settings `batches`."""
    plan = plan_of(lengths, batches)
    epoch: list[NDArray[Any]] = plan.epoch(0)
    valid = int(valid_cells(lengths, epoch).sum())
    return Epoch(len(epoch), valid, valid / sum(map(plan.cells, epoch)), plan.skipped)


def project(
    epoch: Epoch, seconds: Sequence[float], cells: Sequence[int], accumulation: int, updates: int
) -> Row:
    """Return the minutes of `updates`, from measured `seconds` of batches with `cells`.

    The error is that of a mean over randomly drawn batches; since the measured ones are evenly
    spread, it is an upper bound.
    """
    rate = sum(seconds) / sum(cells)
    off = np.array(seconds) - rate * np.array(cells)
    error = float(np.sqrt((off**2).sum() / max(len(off) - 1, 1) * len(off)) / sum(seconds))
    each = rate * epoch.cells_per_batch * accumulation
    return {
        "updates": updates,
        "cells per update": epoch.cells_per_batch * accumulation,
        "ms per update": 1000 * each,
        "minutes": each * updates / 60,
        "plus or minus": each * updates / 60 * error,
    }


def measure_updates(conditions: Conditions) -> list[Row]:
    """Return the projection of a whole training run of the IWSLT'14 model."""
    conditions.begin()
    lengths, _ = training_lengths(conditions.lengths)
    settings = settings_of("pervasive", conditions)
    model = make_model(settings, conditions.device)
    updater = make_updater(model, settings, conditions)
    accumulation = settings.batches.accumulation
    count = 2 if conditions.quick else 32 if conditions.is_large else 4
    batches = real_batches(lengths, affordable(settings, conditions), count)
    clock, seconds = conditions.clock(), []
    for batch in batches:
        seconds.append(clock.best({"": updating(updater, [batch])})[""])
    epoch = epoch_of(lengths, settings.batches)
    cells = list(map(cell_count, batches))
    row = project(epoch, seconds, cells, accumulation, settings.training.max_updates)
    rate = useful_flops(model, batches) / sum(seconds) / 1e9
    return [{
        "model": f"pervasive, {settings.preset}", **row, "GFLOP/s": rate, "fill": epoch.fill,
        "batches measured": len(batches),
    }]  # fmt: skip


def measure_translation(conditions: Conditions) -> list[Row]:
    """Return the projection of translating the test set, greedily and with beam search."""
    conditions.begin()
    lengths, _ = training_lengths(conditions.lengths)
    settings = settings_of("pervasive", conditions)
    model = make_model(settings, conditions.device).eval()
    rows = []
    for beam in (1, BEAM):
        batches = batches_of(lengths, beam, conditions)
        workload = decoding(model, batches, beam, conditions)
        share = cells_of(batches) / cells_of([spread_test_set(lengths)])
        seconds = conditions.clock().best({"": workload})[""]
        rows.append({
            "model": f"pervasive, {settings.preset}", "beam": beam, "sentences": SENTENCES,
            "seconds": seconds / share, "sentences measured": sum(map(len, batches)),
            "share of the cells": share,
        })  # fmt: skip
    return rows


def measure(conditions: Conditions) -> Section:
    """Project training and translation."""
    _, origin = training_lengths(conditions.lengths)
    tables = {
        "A whole training": run_in_process(measure_updates, conditions),
        "The test set": run_in_process(measure_translation, conditions),
    }
    return section(facts(conditions.device), tables, [origin])
