"""Decoding with every architecture: one step, greedy search and beams, at given lengths.

Weights are drawn, so searches are told where to end: each translation is as long as its pair's
other side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import with_ceiling
from benchmarks.shapes import (
    TARGET_TYPES,
    Lengths,
    make_model,
    random_batch,
    settings_of,
    strata,
    training_lengths,
)
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, Deed, Memory, Row, apart, facts
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.search.graphs import Graphs, graphs_for
from nmtgrid.search.translate import TranslationOptions
from nmtgrid.text.vocabulary import END

BEAM = 5
GPU_TOKENS = 32_000
"""Source tokens of a batch times the width of the search on a GPU: `decode --batch-tokens`."""


@dataclasses.dataclass(frozen=True)
class EndsAt:
    """The end symbol comes after `lengths` [B] tokens, not before and not later."""

    lengths: Tensor

    def apply(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Return log-probabilities [R, V] of the end symbol alone, or of all else."""
        is_end = (self.lengths[sentence] <= step)[:, None]
        end = log_probabilities[:, END].clone()
        log_probabilities = log_probabilities.masked_fill(is_end, -math.inf)
        log_probabilities[:, END] = torch.where(is_end[:, 0], end, -math.inf)
        return log_probabilities


def decoding(
    model: TranslationModel, lengths: Lengths, beam: int, conditions: Conditions
) -> tuple[Deed, list[int]]:
    """Return the deed of translating sentences of `lengths`, and the tokens of each batch.

    Batches are those of `nmtgrid decode`: in order of length, rows x longest source limited.
    """
    most = GPU_TOKENS if conditions.is_large else TranslationOptions().batch_tokens
    batches, tokens = [], []
    for pairs in cut(lengths, most // beam):
        held = random_batch([(s + 1, t + 1) for s, t in pairs]).to(torch.device(conditions.device))
        batches.append((held, EndsAt(held.target_lengths - 1)))
        tokens.append(int(held.target_lengths.sum()))
    graphs = graphs_for(torch.device(conditions.device))
    plan = SearchPlan(beam=beam, max_length_a=float(lengths[:, 1].max()), max_length_b=0.0)

    def deed() -> None:
        for held, ends in batches:
            with conditions.cast():
                search(
                    [model], held.source, held.source_lengths, plan, constraints=[ends],
                    graphs=graphs,
                )  # fmt: skip

    return deed, tokens


def cut(lengths: Lengths, most: int) -> list[Lengths]:
    """Return the pairs in order of source length, cut where rows x longest exceed `most`."""
    lengths = lengths[lengths[:, 0].argsort(kind="stable")]
    found, first = [], 0
    for place, longest in enumerate(lengths[:, 0]):
        if place > first and (place + 1 - first) * (longest + 1) > most:
            found.append(lengths[first:place])
            first = place
    return [*found, lengths[first:]]


def stepping(
    model: TranslationModel,
    rows: int,
    width: int,
    conditions: Conditions,
    graphs: Graphs | None = None,
) -> Deed:
    """Return the deed of one step at S = `width`, after 12 steps; `graphs` replay it."""
    device = torch.device(conditions.device)
    batch = random_batch([(width, 14)] * rows).to(device)
    tokens = torch.randint(4, TARGET_TYPES, (rows,), device=device)
    held: dict[str, Any] = {}

    @torch.no_grad()
    def deed() -> None:
        if graphs is None:
            held["state"] = model.step(tokens, held["state"]).state
        else:
            held["state"] = graphs.step(0, model, tokens, held["state"], 1, False).state

    with torch.no_grad():
        held["state"] = model.begin(batch.source, batch.source_lengths)
    for _ in range(12):
        deed()
    return deed


def measure_steps(name: str, conditions: Conditions) -> list[Row]:
    """Return the milliseconds of an architecture's steps, on CUDA also as graphs."""
    conditions.begin()
    model = make_model(settings_of(name, conditions), conditions.device).eval()
    counts = (1, 2) if conditions.quick else (1, 16, 512) if conditions.is_large else (1, 16)
    width, found = 8 if conditions.quick else 24, []
    for rows in counts:
        row: Row = {"architecture": name, "rows": rows}
        # One autocast around all steps: the cast weights are then kept.
        with conditions.cast():
            deeds = {"ms per step": stepping(model, rows, width, conditions)}
            graphs = graphs_for(torch.device(conditions.device))
            if graphs is not None:
                deeds["ms as a graph"] = stepping(model, rows, width, conditions, graphs)
            seconds = conditions.clock(8).best(deeds)
        found.append(row | {title: 1000 * spent for title, spent in seconds.items()})
    return found


def measure_searches(name: str, conditions: Conditions, sample: Lengths) -> list[Row]:
    """Return the rates of an architecture's searches."""
    conditions.begin()
    memory = Memory(conditions.device)
    model = make_model(settings_of(name, conditions), conditions.device).eval()
    count, size = (2, 8) if conditions.quick else (256, 24) if conditions.is_large else (16, 24)
    square = np.full((count, 2), size - 1)
    found = []
    for case, lengths in ((f"{count} x {size} x {size}", square), ("true lengths", sample)):
        for beam in (1, BEAM):
            memory.again()
            deed, tokens = decoding(model, lengths, beam, conditions)
            deed()
            peak = memory.peak()
            seconds, ceiling = with_ceiling(conditions.clock(), conditions, {"": deed})
            row = {
                "architecture": name, "sentences": case, "beam": beam,
                "sentences/s": len(lengths) / seconds[""],
                "target tokens/s": sum(tokens) / seconds[""],
            }  # fmt: skip
            if beam == 1:
                pairs = (model.report(s + 1.0, t + 1.0) for s, t in lengths)
                work = sum(pair.flops_per_pair for pair in pairs) / 3e9
                row["GFLOP/s"] = work / seconds[""]
                row["of the products' rate"] = work / seconds[""] / ceiling
            found.append({**row, "peak MiB": peak})
    return found


def sample_of(lengths: Lengths, count: int) -> Lengths:
    """Return `count` pairs whose cells are spread as those of all pairs of at most 100 tokens."""
    kept = lengths[(lengths.min(1) > 0) & (lengths.max(1) <= 100)]
    chosen: Lengths = kept[strata((kept + 1).prod(1), count)]
    return chosen


def measure(conditions: Conditions, names: Sequence[str]) -> Section:
    """Measure decoding with the architectures `names`."""
    lengths, origin = training_lengths(conditions.lengths)
    sample = sample_of(lengths, 2 if conditions.quick else 1024 if conditions.is_large else 24)
    steps = [row for name in names for row in apart(measure_steps, name, conditions)]
    searches = [row for name in names for row in apart(measure_searches, name, conditions, sample)]
    width = 8 if conditions.quick else 24
    tables = {f"Steps at S = {width}, after 12 rows": steps, "Searches": searches}
    return section(facts(conditions.device), tables, [origin])
