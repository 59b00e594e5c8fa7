"""Decoding with every architecture: one step, greedy search and beam search, at fixed lengths.

Weights are random, so the end of each search is forced: a translation is as long as the target side
of its pair.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import with_ceiling
from benchmarks.shapes import (
    Lengths,
    make_model,
    random_batch,
    settings_of,
    strata,
    training_lengths,
)
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, Memory, Row, Workload, facts, run_in_process
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.constraints import StaticConstraint
from nmtgrid.search.cuda_graphs import Graphs, Recorder
from nmtgrid.search.engine import SearchRun, search
from nmtgrid.search.translate import TranslationOptions
from nmtgrid.text.vocabulary import END

BEAM = 5
_ENDLESS = 100_000
"""A number of tokens that no search here reaches."""
SENTENCES = 6750
"""Sentences in the test set of IWSLT'14."""
GPU_TOKENS = 32_000
"""Source tokens of a batch times beam size on a GPU: `decode --batch-tokens`."""


@dataclasses.dataclass(frozen=True)
class EndsAt(StaticConstraint):
    """Forces the end symbol after exactly `lengths` [B] tokens."""

    lengths: Tensor

    def apply(self, log_probabilities: Tensor, step: int | Tensor, sentence: Tensor) -> Tensor:
        """Return log-probabilities [R, V] of only the end symbol, or of all other tokens."""
        is_end = (self.lengths[sentence] <= step)[:, None]
        end = log_probabilities[:, END].clone()
        log_probabilities = log_probabilities.masked_fill(is_end, -math.inf)
        log_probabilities[:, END] = torch.where(is_end[:, 0], end, -math.inf)
        return log_probabilities


def decoding(
    model: TranslationModel,
    batches: Sequence[Lengths],
    beam: int,
    conditions: Conditions,
    is_recorded: bool = True,
) -> Workload:
    """Return the workload of translating `batches` of sentences of these lengths."""
    tasks = []
    for pairs in batches:
        batch = random_batch([(s + 1, t + 1) for s, t in pairs]).to(torch.device(conditions.device))
        tasks.append((batch, EndsAt(batch.target_lengths - 1)))
    device = torch.device(conditions.device)
    graphs = Graphs(Recorder(device)) if device.type == "cuda" and is_recorded else None
    longest = max(int(pairs[:, 1].max()) for pairs in batches)
    plan = SearchPlan(beam=beam, max_length_a=float(longest), max_length_b=0.0)

    def workload() -> None:
        for batch, ends in tasks:
            with conditions.cast():
                search(
                    [model], batch.source, batch.source_lengths, plan, constraints=[ends],
                    graphs=graphs,
                )  # fmt: skip

    return workload


def batches_of(lengths: Lengths, beam: int, conditions: Conditions) -> list[Lengths]:
    """Return the test-set batches of `nmtgrid decode`; on a CPU, 8 pairs each of a few batches.

    The test set has the length distribution of the training pairs of at most 100 tokens.
    """
    most = GPU_TOKENS if conditions.is_large else TranslationOptions().batch_tokens
    batches = cut(spread_test_set(lengths), most // beam)
    if conditions.is_large:
        return batches
    chosen = strata(np.array([len(pairs) for pairs in batches]), 1 if conditions.quick else 4)
    return [batches[index][:8] for index in chosen]


def spread_test_set(lengths: Lengths) -> Lengths:
    """Return as many pairs as in the test set of IWSLT'14, with the same distribution of cells."""
    kept = lengths[(lengths.min(1) > 0) & (lengths.max(1) <= 100)]
    chosen: Lengths = kept[strata((kept + 1).prod(1), SENTENCES)]
    return chosen


def cells_of(batches: Sequence[Lengths]) -> int:
    """Return the number of cells of all pairs, including end symbols."""
    return sum(int((pairs + 1).prod(1).sum()) for pairs in batches)


def cut(lengths: Lengths, most: int) -> list[Lengths]:
    """Return batches of pairs by source length, in which rows x longest is at most `most`."""
    lengths = lengths[lengths[:, 0].argsort(kind="stable")]
    batches, first = [], 0
    for index, longest in enumerate(lengths[:, 0]):
        if index > first and (index + 1 - first) * (longest + 1) > most:
            batches.append(lengths[first:index])
            first = index
    return [*batches, lengths[first:]]


def stepping(
    model: TranslationModel,
    rows: int,
    width: int,
    conditions: Conditions,
    graphs: Graphs | None = None,
) -> Workload:
    """Return the workload of one step of greedy search at S = `width`, after 12 steps.

    It is replayed from `graphs`, if given.
    """
    batch = random_batch([(width, 14)] * rows).to(torch.device(conditions.device))
    endless = SearchPlan(min_length=_ENDLESS, max_length_a=_ENDLESS, max_length_b=0.0)
    with torch.no_grad():
        state = model.begin(batch.source, batch.source_lengths)
        run = SearchRun(
            [model], [state], batch.source, batch.source_lengths, endless, graphs=graphs
        )
    steps = itertools.count()

    @torch.no_grad()
    def workload() -> None:
        run.advance(next(steps))

    for _ in range(12):
        workload()
    return workload


def measure_steps(name: str, conditions: Conditions) -> list[Row]:
    """Return the milliseconds of an architecture's steps, on CUDA also with CUDA graphs."""
    conditions.begin()
    model = make_model(settings_of(name, conditions), conditions.device).eval()
    counts = (1, 2) if conditions.quick else (1, 16, 512) if conditions.is_large else (1, 16)
    width, steps = 8 if conditions.quick else 24, []
    for rows in counts:
        row: Row = {"architecture": name, "rows": rows}
        # One autocast context around all steps keeps the cast weights.
        with conditions.cast():
            workloads = {"ms per step": stepping(model, rows, width, conditions)}
            device = torch.device(conditions.device)
            if device.type == "cuda":
                graphs = Graphs(Recorder(device))
                workloads["ms as a graph"] = stepping(model, rows, width, conditions, graphs)
            seconds = conditions.clock(8).best(workloads)
        steps.append(row | {title: 1000 * spent for title, spent in seconds.items()})
    return steps


def measure_searches(name: str, conditions: Conditions) -> list[Row]:
    """Return the speeds of an architecture's searches."""
    conditions.begin()
    lengths, _ = training_lengths(conditions.lengths)
    memory = Memory(conditions.device)
    model = make_model(settings_of(name, conditions), conditions.device).eval()
    count, size = (2, 8) if conditions.quick else (256, 24) if conditions.is_large else (16, 24)
    square, rows = [np.full((count, 2), size - 1)], []
    for beam in (1, BEAM):
        cases = {f"{count} x {size} x {size}": square}
        cases["true lengths"] = batches_of(lengths, beam, conditions)
        for case, batches in cases.items():
            memory.reset()
            workload = decoding(model, batches, beam, conditions)
            workload()
            peak = memory.peak()
            seconds, ceiling = with_ceiling(conditions.clock(), conditions, {"": workload})
            row = {
                "architecture": name, "sentences": case, "beam": beam,
                "sentences/s": sum(map(len, batches)) / seconds[""],
                "target tokens/s": sum(int((p[:, 1] + 1).sum()) for p in batches) / seconds[""],
            }  # fmt: skip
            if beam == 1:
                reports = (model.report(s + 1.0, t + 1.0) for pairs in batches for s, t in pairs)
                work = sum(report.flops_per_pair for report in reports) / 3e9
                row["GFLOP/s"] = work / seconds[""]
                row["of the products' rate"] = work / seconds[""] / ceiling
            rows.append({**row, "peak MiB": peak})
    return rows


def measure(conditions: Conditions, names: Sequence[str]) -> Section:
    """Measure decoding with the architectures `names`."""
    _, origin = training_lengths(conditions.lengths)
    steps = [row for name in names for row in run_in_process(measure_steps, name, conditions)]
    searches = [row for name in names for row in run_in_process(measure_searches, name, conditions)]
    width = 8 if conditions.quick else 24
    tables = {f"Steps at S = {width}, after 12 rows": steps, "Searches": searches}
    return section(facts(conditions.device), tables, [origin])
