"""Inputs of the benchmarks: models of the zoo, and random batches with true lengths."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import Conditions
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import Batch, BatchPlan, collate
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.prepare import Request, resolve
from nmtgrid.training.settings import BatchSettings, RunSettings

SOURCE_TYPES, TARGET_TYPES = 8848, 6632
GRIDS = ("pervasive", "pervasive-densenet")
"""Architectures whose cost is proportional to the cells of the grid."""
Lengths = NDArray[Any]
"""[pairs, 2]: source and target lengths, without end symbols."""


def settings_of(name: str, conditions: Conditions) -> RunSettings:
    """Return the settings of an architecture's IWSLT'14 model (if quick, its toy model)."""
    preset = "toy" if conditions.quick else "iwslt14-de-en"
    return resolve(Request(arch=name, preset=preset), objectives)


def make_model(settings: RunSettings, device: str = "cpu") -> TranslationModel:
    """Return a model with random weights."""
    torch.manual_seed(1)
    model = zoo.from_config(settings.arch, settings.model, SOURCE_TYPES, TARGET_TYPES)
    return model.to(device)


def square_shapes(conditions: Conditions) -> list[tuple[int, int]]:
    """Return (sentences, tokens on either side) of batches with equal sentence lengths."""
    if conditions.quick:
        return [(2, 8)]
    return [(16, 24), (284, 24)] if conditions.is_large else [(16, 24)]


def random_batch(shapes: list[tuple[int, int]]) -> Batch:
    """Return a batch of sentences with these (source, target) lengths, end symbols included."""
    generator = np.random.default_rng(1)
    sources = [generator.integers(4, SOURCE_TYPES, s - 1).tolist() for s, _ in shapes]
    targets = [generator.integers(4, TARGET_TYPES, t - 1).tolist() for _, t in shapes]
    return collate(sources, targets)


def padded(batch: Batch) -> Batch:
    """Return `batch` with all sentences as long as the longest, so that padding is computed."""
    count, width, height = len(batch), batch.source.shape[1], batch.target_input.shape[1]
    return Batch(
        batch.source.clamp(min=4), torch.full((count,), width), batch.target_input.clamp(min=4),
        batch.target_output.clamp(min=4), torch.full((count,), height), batch.indices,
    )  # fmt: skip


def cell_count(batch: Batch) -> int:
    """Return the number of valid cells."""
    return int((batch.source_lengths * batch.target_lengths).sum())


def token_count(batch: Batch) -> int:
    """Return the number of target tokens, end symbols included."""
    return int(batch.target_lengths.sum())


def useful_flops(model: TranslationModel, batches: list[Batch]) -> float:
    """Return the FLOPs of forward and backward passes, without padding."""
    return sum(
        model.report(float(s), float(t)).flops_per_pair
        for batch in batches
        for s, t in zip(batch.source_lengths, batch.target_lengths, strict=True)
    )


def training_lengths(file: Path | None) -> tuple[Lengths, str]:
    """Return the lengths of IWSLT'14's training pairs in BPE units, and a note on their origin.

    They are read from `file` or the folder NMTGRID_DATA, or else sampled such that their
    percentiles (5, 50, 95) are close to the true ones, (7, 19, 58) and (7, 19, 56).
    """
    folder = os.environ.get("NMTGRID_DATA")
    path = file
    if path is None and folder:
        path = Path(folder) / "iwslt14.de-en" / "train-bpe-lengths.txt.xz"
    if path is not None and (file is not None or path.is_file()):
        lengths = np.loadtxt(path, dtype=np.int64, ndmin=2)
        return lengths, f"Lengths: those of the {len(lengths):,} pairs in {path.name}."
    generator = np.random.default_rng(1)
    source = np.exp(generator.normal(3.0, 0.62, 160_239)).round().clip(1, 175)
    target = (source * np.exp(generator.normal(0.0, 0.15, len(source)))).round().clip(1, 175)
    drawn = np.stack([source, target], 1).astype(np.int64)
    return drawn, "Lengths: drawn, log-normal, with percentiles near IWSLT'14's."


def affordable(settings: RunSettings, conditions: Conditions) -> BatchSettings:
    """Return batch settings that take some seconds on the device: smaller grids on a CPU."""
    batches: BatchSettings = settings.batches
    if conditions.quick:
        return dataclasses.replace(batches, max_tokens=100, max_cells=1000, max_length=30)
    if conditions.device == "cpu" and settings.arch in GRIDS:
        return dataclasses.replace(batches, max_tokens=600, max_cells=24_000)
    return batches


def plan_of(lengths: Lengths, batches: BatchSettings) -> BatchPlan:
    """Return the plan by which `train` forms batches of pairs with these lengths."""
    return BatchPlan(
        lengths[:, 0], lengths[:, 1], batches.max_tokens, batches.max_cells, batches.max_length
    )


def valid_cells(lengths: Lengths, batches: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the number of cells of each batch [batches], with end symbols, without padding."""
    areas = (lengths[:, 0] + 1) * (lengths[:, 1] + 1)
    return np.array([areas[indices].sum() for indices in batches])


def strata(sizes: NDArray[Any], count: int) -> list[int]:
    """Return `count` indices: the middle elements of as many equal groups by size."""
    order = np.argsort(sizes, kind="stable")
    count = min(count, len(order))
    return [int(order[int((index + 0.5) * len(order) / count)]) for index in range(count)]


def real_batches(lengths: Lengths, batches: BatchSettings, count: int) -> list[Batch]:
    """Return `count` batches as `train` forms them, spread from small to large by cells."""
    cut = plan_of(lengths, batches).epoch(0)
    chosen = strata(valid_cells(lengths, cut), count)
    return [random_batch([(s + 1, t + 1) for s, t in lengths[cut[index]]]) for index in chosen]
