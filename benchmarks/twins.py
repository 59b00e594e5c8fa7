"""Pervasive Attention against a naive twin with the same weights (`naive`), interleaved.

Updates of the base model with max-pooling: on equal lengths, on batches of true lengths, on random
pairs, which need much padding, and on the same batches with padding computed like real tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import with_ceiling
from benchmarks.naive import NaivePervasive
from benchmarks.shapes import (
    affordable,
    cell_count,
    make_model,
    padded,
    random_batch,
    real_batches,
    settings_of,
    square_shapes,
    training_lengths,
    useful_flops,
)
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, Row, Workload, facts, run_in_process
from nmtgrid.base.config import override
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.pervasive.model import PervasiveAttention
from nmtgrid.training.likelihood import site_loss
from nmtgrid.training.settings import RunSettings

SMOOTHING = 0.1
Loss = Callable[[Batch], Tensor]


class Stepper:
    """Plain updates for both sides: forward, backward, AdamW."""

    def __init__(self, model: nn.Module, loss: Loss, conditions: Conditions) -> None:
        self.model, self.loss, self.conditions = model.train(), loss, conditions
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def workload(self, batches: Sequence[Batch], bf16: bool | None = None) -> Workload:
        """Return the workload of one update on each batch; `bf16` (None: as the conditions say)."""
        device = torch.device(self.conditions.device)
        on_device = [batch.to(device) for batch in batches]
        cast: contextlib.AbstractContextManager[object] = self.conditions.cast()
        if bf16 is not None:
            cast = torch.autocast(device.type, torch.bfloat16, enabled=bf16)

        def run() -> None:
            for batch in on_device:
                with cast:
                    loss = self.loss(batch)
                loss.backward()
                self.optimiser.step()
                self.optimiser.zero_grad(set_to_none=True)

        return run


def fused_loss(model: TranslationModel) -> Loss:
    """Return the loss as `train` computes it."""
    return lambda batch: (
        site_loss(model, batch, PredictionSites.offline(batch), label_smoothing=SMOOTHING).total
    )


def check_twins(model: PervasiveAttention, naive: NaivePervasive, device: str) -> float:
    """Return the largest difference of the twins' logits in fp32, without dropout."""
    batch = random_batch([(7, 5), (4, 6)]).to(torch.device(device))
    model.eval(), naive.eval()
    sites = PredictionSites.offline(batch)
    with torch.no_grad():
        ours = model.classify(model.features(batch, sites))
        theirs = naive(batch.source, batch.target_input, batch.source_lengths)
    difference = float((ours - theirs[sites.sentence, sites.position]).abs().max())
    if not difference < 1e-3:
        raise SystemExit(f"the twins' logits differ by {difference}")
    return difference


def base_settings(conditions: Conditions) -> RunSettings:
    """Return the settings of the thesis' base model in the variant that the twin supports."""
    settings = settings_of("pervasive", conditions)
    changes = {"model.aggregation": "max", "model.output_map": False,
               "model.accumulate_scale": "count"}  # fmt: skip
    changed: RunSettings = override(settings, changes)
    return changed


def compare(conditions: Conditions) -> tuple[list[Row], float]:
    """Return a row for each kind of batch, and the largest difference of the twins' logits."""
    conditions.begin()
    settings = base_settings(conditions)
    model = make_model(settings, conditions.device)
    assert isinstance(model, PervasiveAttention)
    naive = NaivePervasive(model).to(conditions.device)
    difference = check_twins(model, naive, conditions.device)
    ours = Stepper(model, fused_loss(model), conditions)
    theirs = Stepper(naive, lambda batch: naive.loss(batch, SMOOTHING), conditions)
    rows = []
    for case, batches in cases(settings, conditions).items():
        wide = [padded(batch) for batch in batches]
        fill = sum(map(cell_count, batches)) / sum(map(cell_count, wide))
        workloads = {"ours": ours.workload(batches), "naive": theirs.workload(batches)}
        if fill < 1:
            workloads["padded"] = ours.workload(wide)
        seconds, ceiling = with_ceiling(conditions.clock(), conditions, workloads)
        rate = useful_flops(model, batches) / seconds["ours"] / 1e9
        row = {
            "batches": case,
            "fill": fill,
            "valid cells/s": sum(map(cell_count, batches)) / seconds["ours"],
            "of the products' rate": rate / ceiling,
            "times the naive twin": seconds["naive"] / seconds["ours"],
        }
        if "padded" in workloads:
            row |= {"1 / fill": 1 / fill, "gain of valid cells": seconds["padded"]
                    / seconds["ours"]}  # fmt: skip
        rows.append(row)
    return rows, difference


def cases(settings: RunSettings, conditions: Conditions) -> dict[str, list[Batch]]:
    """Return the batches by kind."""
    lengths, _ = training_lengths(conditions.lengths)
    batches, (count, size) = affordable(settings, conditions), square_shapes(conditions)[-1]
    shapes = {f"{count} x {size} x {size}": [random_batch([(size, size)] * count)]}
    if conditions.quick:
        return shapes
    short = lengths[lengths.max(1) < 100]
    sentences = 64 if conditions.is_large else 6
    mixed = np.random.default_rng(1).integers(0, len(short), (2, sentences))
    shapes["buckets of both lengths"] = real_batches(lengths, batches, 2)
    shapes["pairs at random"] = [
        random_batch([(s + 1, t + 1) for s, t in short[some]]) for some in mixed
    ]
    return shapes


def measure(conditions: Conditions) -> Section:
    """Measure updates against the naive twin."""
    rows, difference = run_in_process(compare, conditions)
    _, origin = training_lengths(conditions.lengths)
    notes = [origin, f"Largest difference of the twins' logits in fp32: {difference:.1e}."]
    return section(facts(conditions.device), {"Updates beside the naive twin": rows}, notes)
