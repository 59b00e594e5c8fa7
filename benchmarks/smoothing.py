"""Cost of loss smoothing: forward and backward passes relative to maximum likelihood.

    python -m benchmarks.smoothing DATA [--arch bilstm] [--preset multi30k] [--out FILE]

One batch of a hundred pairs of median length; all losses are interleaved in one process, so that
other load on the machine affects all equally; processor seconds on one thread, medians of eight.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy
import torch

from benchmarks.store import report, section
from benchmarks.timing import Row, facts
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.dataset import Dataset
from nmtgrid.training.prepare import Request, build_model, make_objective, resolve
from nmtgrid.training.update import has_fast_bf16

TOKEN, SEQUENCE = "smoothing.token.", "smoothing.sequence."
LOSSES = {
    "maximum likelihood": [],
    "entropy": ["smoothing.entropy=0.1"],
    "token, 100 neighbours": [f"{TOKEN}alpha=0.1", f"{TOKEN}neighbours=100"],
    "token, all types": [f"{TOKEN}alpha=0.1"],
    "sequence, L = 1": [f"{SEQUENCE}alpha=0.3"],
    "sequence, BLEU, L = 3": [
        f"{SEQUENCE}alpha=0.3", f"{SEQUENCE}samples=3", f"{SEQUENCE}reward=bleu",
    ],
    "lazy, L = 1": [f"{SEQUENCE}alpha=0.3", f"{SEQUENCE}lazy=true"],
    "lazy, BLEU, L = 3": [
        f"{SEQUENCE}alpha=0.3", f"{SEQUENCE}samples=3", f"{SEQUENCE}reward=bleu",
        f"{SEQUENCE}lazy=true",
    ],
    "lazy, CIDEr, L = 3": [
        f"{SEQUENCE}alpha=0.3", f"{SEQUENCE}samples=3", f"{SEQUENCE}reward=cider",
        f"{SEQUENCE}lazy=true",
    ],
}  # fmt: skip


def measure(data: Path, arch: str, preset: str, times: int = 8) -> list[Row]:
    """Return the time of each loss, in seconds and relative to maximum likelihood."""
    dataset, device = Dataset.open(data), torch.device("cpu")
    train = dataset.split("train")
    middle = float(numpy.median(train.target_lengths))
    indices = numpy.argsort(numpy.abs(train.target_lengths - middle), kind="stable")[:100]
    batch = train.batch(indices)
    asked = {
        name: resolve(Request(arch, preset, None, request), objectives)
        for name, request in LOSSES.items()
    }
    losses = {
        name: make_objective(settings, dataset, device, objectives)
        for name, settings in asked.items()
    }
    model = build_model(asked["maximum likelihood"], dataset).train()
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(times):
        for name, objective in losses.items():
            began = time.process_time()
            with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bf16(device)):
                total = objective.loss(model, batch).total
            total.backward()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(spent) for name, spent in seconds.items()}
    return [
        {"loss": name, "seconds": median, "ratio": median / medians["maximum likelihood"]}
        for name, median in medians.items()
    ]


def main() -> None:
    """Measure, print, and store as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--arch", default="bilstm")
    parser.add_argument("--preset", default="multi30k")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = measure(options.data, options.arch, options.preset)
    title = f"A forward and a backward pass of {options.arch}, preset {options.preset}"
    note = "Processor seconds of one thread, medians; `ratio` is to those of maximum likelihood."
    report("smoothing", section(facts("cpu"), {title: rows}, [note]), options.out)


if __name__ == "__main__":
    main()
