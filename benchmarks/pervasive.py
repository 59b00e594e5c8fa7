"""Training steps and decoding of Pervasive Attention against a naive twin and the GEMM peak.

    python -m benchmarks.pervasive [--threads 1] [--precision bf16] [--quick] [--out FILE.json]

All is measured in one process, the sides in turn, the best of several runs counting. Lengths
are those of IWSLT'14 when NMTGRID_DATA names a folder that has them, else drawn alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.naive import NaivePervasive
from benchmarks.timing import Clock, facts
from nmtgrid.data.batches import Batch, BatchPlan, collate
from nmtgrid.layers.kernels.linear_loss import linear_cross_entropy
from nmtgrid.models import zoo
from nmtgrid.models.api import Sites
from nmtgrid.models.pervasive import PervasiveAttention

SOURCE_TYPES, TARGET_TYPES, SMOOTHING = 8848, 6632, 0.1
SIZE, WIDE = 256, 1024


def gemm_peak(clock: Clock, dtype: torch.dtype) -> float:
    """Return the best GFLOP/s of the model's own shapes of `nn.functional.linear`."""
    rates = []
    for inputs, outputs in ((SIZE, WIDE), (WIDE, SIZE), (SIZE, SIZE)):
        x = torch.randn(9216, inputs).to(dtype)
        weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)

        def multiply(x: Tensor = x, weight: Tensor = weight, bias: Tensor = bias) -> Tensor:
            return F.linear(x, weight, bias)

        rates.append(2e-9 * 9216 * inputs * outputs / clock.best({"": multiply})[""])
    return max(rates)


def make_model(aggregation: str) -> PervasiveAttention:
    """Return the thesis' base model (N=14, 11x11, d=256)."""
    torch.manual_seed(1)
    model = zoo.build(
        "pervasive", None, {"aggregation": aggregation},
        source_vocab_size=SOURCE_TYPES, target_vocab_size=TARGET_TYPES,
    )  # fmt: skip
    assert isinstance(model, PervasiveAttention)
    return model


def random_batch(shapes: list[tuple[int, int]]) -> Batch:
    """Return a batch of sentences with these (source, target) lengths, end symbols included."""
    generator = np.random.default_rng(1)
    sources = [generator.integers(4, SOURCE_TYPES, s - 1).tolist() for s, _ in shapes]
    targets = [generator.integers(4, TARGET_TYPES, t - 1).tolist() for _, t in shapes]
    return collate(sources, targets)


def padded(batch: Batch) -> Batch:
    """Return `batch` with every sentence as long as the longest: padding computed as if real."""
    count, width, height = len(batch), batch.source.shape[1], batch.target_input.shape[1]
    return Batch(
        batch.source.clamp(min=4), torch.full((count,), width), batch.target_input.clamp(min=4),
        batch.target_output.clamp(min=4), torch.full((count,), height), batch.indices,
    )  # fmt: skip


class Stepper:
    """Whole updates: forward, backward, Adam."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], Tensor], bf16: bool) -> None:
        self.model, self.loss, self.bf16 = model.train(), loss, bf16
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def __call__(self, batches: list[Batch]) -> None:
        for batch in batches:
            cast = torch.autocast("cpu", torch.bfloat16) if self.bf16 else contextlib.nullcontext()
            with cast:
                loss = self.loss(batch)
            loss.backward()
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)


def fused_loss(model: PervasiveAttention) -> Callable[[Batch], Tensor]:
    """Return the loss as `train` computes it."""

    def loss(batch: Batch) -> Tensor:
        sites = Sites.offline(batch)
        features, held = model.features(batch, sites), model.classifier()
        targets = batch.target_output[sites.sentence, sites.position]
        total, _ = linear_cross_entropy(
            features, held.weight, held.bias, targets, label_smoothing=SMOOTHING
        )
        return total

    return loss


def check_twins(model: PervasiveAttention, naive: NaivePervasive) -> float:
    """Return the largest difference of the twins' logits, without dropout, in fp32."""
    batch = random_batch([(7, 5), (4, 6)])
    model.eval(), naive.eval()
    sites = Sites.offline(batch)
    with torch.no_grad():
        ours = model.classify(model.features(batch, sites))
        theirs = naive(batch.source, batch.target_input, batch.source_lengths)
    difference = float((ours - theirs[sites.sentence, sites.position]).abs().max())
    if not difference < 1e-3:
        raise SystemExit(f"the twins' logits differ by {difference}")
    return difference


def iwslt_lengths() -> tuple[np.ndarray[Any, Any], str]:
    """Return training lengths [pairs, 2] in BPE units, and where they come from."""
    folder = os.environ.get("NMTGRID_DATA")
    path = Path(folder or "") / "iwslt14.de-en" / "train-bpe-lengths.txt.xz"
    if folder and path.is_file():
        with lzma.open(path, "rt") as file:
            return np.loadtxt(file, dtype=np.int64), "IWSLT'14 De-En, the true training lengths"
    generator = np.random.default_rng(1)
    source = np.exp(generator.normal(3.0, 0.62, 160_000)).round().clip(1, 175)
    target = (source * np.exp(generator.normal(0.0, 0.15, len(source)))).round().clip(1, 175)
    return np.stack([source, target], 1).astype(np.int64), "drawn, log-normal"


def real_batches(tokens: int, cells: int, count: int) -> tuple[list[Batch], list[Batch], str]:
    """Return batches as `train` cuts them, others of pairs at random, and whence the lengths are.

    Pairs at random show what padding costs where there is much of it.
    """
    lengths, origin = iwslt_lengths()
    plan = BatchPlan(lengths[:, 0], lengths[:, 1], tokens, cells, 100, 1)
    chosen = plan.epoch(0)[:count]
    mixed = np.random.default_rng(1).integers(0, len(lengths), (2, 6))
    bucketed, drawn = (
        [random_batch([(min(s, 100) + 1, min(t, 100) + 1) for s, t in lengths[i]]) for i in some]
        for some in (chosen, mixed)
    )
    return bucketed, drawn, origin


def cell_count(batch: Batch) -> int:
    """Return the number of valid cells."""
    return int((batch.source_lengths * batch.target_lengths).sum())


def useful_flops(model: PervasiveAttention, batches: list[Batch]) -> float:
    """Return the FLOPs of forward and backward passes over the valid cells."""
    return sum(
        model.report(float(s), float(t)).flops_per_pair
        for batch in batches
        for s, t in zip(batch.source_lengths, batch.target_lengths, strict=True)
    )


def measure_steps(clock: Clock, bf16: bool, peak: float, quick: bool) -> dict[str, Any]:
    """Measure updates at 16 x 24 x 24 and on batches of real lengths."""
    model = make_model("max")
    naive = NaivePervasive(model)
    difference = check_twins(model, naive)
    ours = Stepper(model, fused_loss(model), bf16)
    theirs = Stepper(naive, lambda batch: naive.loss(batch, SMOOTHING), bf16)
    square = [random_batch([(24, 24)] * 16)]
    deeds: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(square), "naive": lambda: theirs(square)
    }  # fmt: skip
    seconds = clock.best(deeds)
    rate = useful_flops(model, square) / seconds["ours"] / 1e9
    result = {
        "largest difference of the twins' logits": difference,
        "16 x 24 x 24": {
            "seconds": seconds["ours"],
            "naive seconds": seconds["naive"],
            "times the naive twin": seconds["naive"] / seconds["ours"],
            "gflops": rate,
            "fraction of the gemm peak": rate / peak,
        },
    }
    if quick:
        return result
    bucketed, mixed, origin = real_batches(600, 24_000, 3)
    result["lengths"] = origin
    for name, batches in (("buckets of both lengths", bucketed), ("pairs at random", mixed)):
        result[name] = measure_real(clock, ours, theirs, batches, model, peak)
    return result


def measure_real(
    clock: Clock,
    ours: Stepper,
    theirs: Stepper,
    batches: list[Batch],
    model: PervasiveAttention,
    peak: float,
) -> dict[str, Any]:
    """Measure updates on batches of real lengths: valid cells, all cells, and the naive twin."""
    wide = [padded(batch) for batch in batches]
    deeds: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(batches), "padded": lambda: ours(wide),
        "naive": lambda: theirs(batches),
    }  # fmt: skip
    seconds = clock.best(deeds)
    cells, all_cells = sum(map(cell_count, batches)), sum(map(cell_count, wide))
    rate = useful_flops(model, batches) / seconds["ours"] / 1e9
    return {
        "batches": len(batches),
        "fill": cells / all_cells,
        "1 / fill": all_cells / cells,
        "gain of valid cells over padded ones": seconds["padded"] / seconds["ours"],
        "times the naive twin": seconds["naive"] / seconds["ours"],
        "valid cells per second": cells / seconds["ours"],
        "fraction of the gemm peak": rate / peak,
    }


def measure_decoding(bf16: bool, runs: int) -> dict[str, Any]:
    """Measure one step at S = 24 after 12 rows, against its own matrix products alone."""
    model = make_model("max").eval()
    dtype = torch.bfloat16 if bf16 else torch.float32
    found: dict[str, Any] = {}
    for rows in (1, 16):
        source = torch.randint(4, SOURCE_TYPES, (rows, 24))
        tokens = torch.randint(4, TARGET_TYPES, (rows,))
        cast = torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()
        with torch.inference_mode(), cast:
            state = model.begin(source, torch.full((rows,), 24))
            for _ in range(12):
                state = model.step(tokens, state).state
            held = {"state": state}

            def step(tokens: Tensor = tokens, held: dict[str, Any] = held) -> None:
                held["state"] = model.step(tokens, held["state"]).state

            products = gemms_of_a_step(rows * 24, rows, dtype)
            seconds = Clock("cpu", 8 * runs).best({"step": step, "gemm": products})
        found[f"B = {rows}"] = {
            "milliseconds per step": 1000 * seconds["step"],
            "milliseconds of its products alone": 1000 * seconds["gemm"],
            "times the products alone": seconds["step"] / seconds["gemm"],
        }
    return found


def gemms_of_a_step(cells: int, rows: int, dtype: torch.dtype) -> Callable[[], None]:
    """Return a deed that does the matrix products of one step of the base model and no more."""
    shapes = [(cells, SIZE, SIZE), (cells, SIZE, WIDE), (cells, WIDE, SIZE)]
    held = [
        [(torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)) for m, k, n in shapes]
        for _ in range(14)
    ]
    output = torch.randn(rows, SIZE).to(dtype), torch.randn(TARGET_TYPES, SIZE).to(dtype)

    def run() -> None:
        for layer in held:
            for x, weight in layer:
                F.linear(x, weight)
        F.linear(*output)

    return run


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["bf16", "fp32", "both"], default="both")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="leave out batches of real lengths")
    parser.add_argument("--out", type=Path, help="where to store the figures as JSON")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    result, clock = facts("cpu"), Clock("cpu", given.runs)
    for precision in ("bf16", "fp32") if given.precision == "both" else (given.precision,):
        bf16 = precision == "bf16"
        peak = gemm_peak(clock, torch.bfloat16 if bf16 else torch.float32)
        result[precision] = {
            "gemm peak, gflops": peak,
            "update": measure_steps(clock, bf16, peak, given.quick),
            "decoding step, S = 24": measure_decoding(bf16, given.runs),
        }
    print(json.dumps(result, indent=2))
    if given.out:
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
