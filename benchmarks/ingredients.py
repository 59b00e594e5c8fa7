"""Cost of each training technique: target tokens per second of processor time.

    python -m benchmarks.ingredients --data DATA [--archs pervasive transformer] [--rounds 7]
        [--updates 25] [--preset multi30k] [--out FILE]

Each system trains on DATA with one setting changed, using the trainer of `nmtgrid train`
(including reading, BPE-dropout, updates and running averages; without validation). All runs of an
architecture are interleaved in one process: `updates` updates of one, then of the next, on the same
batches (except BPE-dropout, which changes the lengths). `times` is the median over rounds of a
run's tokens per second as a multiple of those of "plain", which is AdamW only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Row, facts
from nmtgrid.base.devices import find_device
from nmtgrid.base.io.atomic import write_json
from nmtgrid.cli.objectives import objectives
from nmtgrid.training.events import Event, Updated
from nmtgrid.training.prepare import Request, prepare, resolve

PLAIN = "plain"
INGREDIENTS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    "Muon": ("training.optimiser=muon",),
    "running average of the weights (EMA)": ("training.ema_decay=0.99",),
    "BPE-dropout, source": ("batches.source_bpe_dropout=0.1",),
    "BPE-dropout, both": ("batches.source_bpe_dropout=0.1", "batches.target_bpe_dropout=0.1"),
    "source word dropout": ("batches.source_word_dropout=0.1",),
    "R-Drop": ("training.r_drop=1",),
    "no label smoothing": ("objective.label_smoothing=0",),
}
"""Name -> settings that override the preset's."""


def begin(
    data: Path, arch: str, preset: str, changes: tuple[str, ...], folder: Path, updates: int
) -> Iterator[Event]:
    """Return the events of a run that reports every `updates` updates, without validation."""
    always = (
        "training.optimiser=adamw", "training.ema_decay=0", "training.clock=processor",
        f"training.log_updates={updates}",
        "training.save_minutes=0", "training.validate_minutes=0", "training.validate_epochs=0",
        "training.schedule=constant",
    )  # fmt: skip
    request = Request(arch=arch, preset=preset, changes=[*always, *changes])
    settings = resolve(request, objectives)
    return prepare(data, settings, folder, find_device("cpu", is_training=True), objectives).run()


def report_of(events: Iterator[Event]) -> Updated:
    """Advance a run to its next report; return that."""
    return next(event for event in events if isinstance(event, Updated))


def measure(data: Path, arch: str, preset: str, rounds: int, updates: int) -> list[Row]:
    """Return a row for each ingredient; the first round is a warm-up."""
    speeds: dict[str, list[float]] = {name: [] for name in INGREDIENTS}
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: begin(data, arch, preset, changes, Path(folder) / str(number), updates)
            for number, (name, changes) in enumerate(INGREDIENTS.items())
        }
        for number in range(rounds + 1):
            for name, events in runs.items():
                report = report_of(events)
                if number:
                    speeds[name].append(report.tokens_per_second)
    rows = []
    for name, values in speeds.items():
        ratios = [value / plain for value, plain in zip(values, speeds[PLAIN], strict=True)]
        rows.append({
            "architecture": arch, "preset": preset, "ingredient": name,
            "settings": list(INGREDIENTS[name]), "tokens_per_second": statistics.median(values),
            "times": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        })  # fmt: skip
    return rows


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--archs", nargs="+", default=["pervasive", "transformer"])
    parser.add_argument("--preset", default="multi30k")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=25, help="updates per round")
    parser.add_argument("--out", type=Path, help="where to store the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Any] = {
        **facts("cpu"), "rounds": options.rounds, "updates": options.updates, "rows": []
    }  # fmt: skip
    for arch in options.archs:
        rows = measure(options.data, arch, options.preset, options.rounds, options.updates)
        table["rows"] += rows
        for row in rows:
            print(json.dumps(row), flush=True)
        if options.out:
            write_json(options.out, table)


if __name__ == "__main__":
    main()
