"""The steps of the protocol for validating a GPU (first_gpu.py), each run in a separate process.

A step updates `figures.json` in its folder whenever it has new figures. On a CPU, and with `quick`
conditions, all steps use small models.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.decoding_speed import decoding as search_workload
from benchmarks.kernels import KERNEL, SIZE, convolution, lay_out, library_convolution
from benchmarks.shapes import (
    affordable,
    make_model,
    random_batch,
    real_batches,
    settings_of,
    training_lengths,
)
from benchmarks.timing import Conditions, Row
from benchmarks.training_speed import make_updater, updating
from nmtgrid.base.io.atomic import nan_to_none, write_json
from nmtgrid.cli.objectives import objectives
from nmtgrid.layers.kernels.triton_support import has_triton
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.cuda_graphs import Graphs, Recorder
from nmtgrid.search.engine import search
from nmtgrid.training.prepare import Request, resolve

PROJECT = Path(__file__).resolve().parent.parent
TRITON_TESTS = tuple(
    f"tests/unit/{name}.py"
    for name in (
        "kernels/test_grid_conv_triton", "kernels/test_dropout_triton", "kernels/test_relu_triton",
        "kernels/test_scaled_sum_triton", "search/test_graphs",
    )
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Step:
    """A step with its time limit in `minutes` and the `expected` result."""

    name: str
    minutes: float
    measure: Callable[[Conditions, Path], None]
    expected: str


def keep(folder: Path, figures: Row) -> None:
    """Store the figures of a step so far."""
    write_json(folder / "figures.json", nan_to_none(figures))


def environment(conditions: Conditions, folder: Path) -> None:
    """Record versions, the GPU, the C compiler, and whether Triton works."""
    figures: Row = {"torch": torch.__version__, "cuda": torch.version.cuda}
    figures["compiler"] = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    with contextlib.suppress(ImportError):
        import triton

        figures["triton"] = triton.__version__
    if shutil.which("nvidia-smi"):
        figures["nvidia-smi"] = subprocess.run(
            ["nvidia-smi"], capture_output=True, text=True
        ).stdout.splitlines()
    if conditions.device == "cuda":
        figures |= {"gpus": torch.cuda.device_count(), "name": torch.cuda.get_device_name()}
        keep(folder, figures)
        figures["has_triton"] = has_triton()
    keep(folder, figures)


def tests(conditions: Conditions, folder: Path) -> None:
    """Run the tests that need a GPU, and those of the Triton kernels and CUDA graphs."""
    chosen = [["-m", "gpu", "tests"], [*TRITON_TESTS]]
    if conditions.quick:
        chosen = [["--version"]]
    figures: Row = {}
    for words in chosen:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
            cwd=PROJECT, capture_output=True, text=True,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        figures[" ".join(words)] = {"code": done.returncode, "end": done.stdout.splitlines()[-1:]}
        keep(folder, figures)
    if any(figure["code"] for figure in figures.values()):
        sys.exit(1)


@contextlib.contextmanager
def _warned_of_waits(device: str) -> Iterator[list[warnings.WarningMessage]]:
    """Yield a list to which each synchronisation of the host adds a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def waits(conditions: Conditions, folder: Path) -> None:
    """Count synchronisations of the host in three updates, and list the lines that cause them."""
    figures: Row = {}
    preset = "toy" if conditions.quick else "iwslt14-de-en"
    for arch, objective, changes in (
        ("pervasive", "likelihood", ()),
        ("transformer", "likelihood", ()),
        ("transformer", "exits-mixed", ("model.exits=tied",)),
    ):
        settings = resolve(Request(arch, preset, objective, changes), objectives)
        updater = make_updater(make_model(settings, conditions.device), settings, conditions)
        workload = updating(updater, [random_batch([(9, 8), (7, 5)])])
        workload()
        with _warned_of_waits(conditions.device) as caught:
            for _ in range(3):
                workload()
        lines = [f"{Path(w.filename).name}:{w.lineno}" for w in caught]
        figures[f"{arch} {objective}"] = {"an update": len(lines) / 3, "lines": sorted(set(lines))}
        keep(folder, figures)


def convolutions(conditions: Conditions, folder: Path) -> None:
    """Time the grid convolution with one to three strips, and the library's convolution."""
    clock, sentences = conditions.clock(2), 2 if conditions.quick else 284
    figures: Row = {"rows": []}
    if conditions.device == "cuda":
        from nmtgrid.layers.kernels import grid_conv_triton

        layout = lay_out(clock.device, sentences)
        x = torch.randn(layout.cell_count, SIZE, device=clock.device).bfloat16()
        taps = torch.randn(KERNEL // 2 + 1, KERNEL, SIZE, device=clock.device)
        shape, left = (taps.shape[0], taps.shape[1]), KERNEL // 2
        default = grid_conv_triton.PARTS
        for parts in (1, 2, 3):
            grid_conv_triton.PARTS = parts
            seconds = clock.best({
                "forward": lambda: grid_conv_triton.convolve_cells(x, taps, layout, left),
                "reversed": lambda: grid_conv_triton.convolve_cells(
                    x, taps, layout, left, reverse=True
                ),
                "weight": lambda: grid_conv_triton.weight_gradient(x, x, layout, shape, left),
            })  # fmt: skip
            case = {"case": f"Triton, {parts} strips"}
            figures["rows"].append(case | {f"{k} ms": 1000 * s for k, s in seconds.items()})
            keep(folder, figures)
        grid_conv_triton.PARTS = default
    figures["rows"] += convolution(clock, "bfloat16", sentences)
    for order in (torch.channels_last, torch.contiguous_format):
        figures["rows"].append(library_convolution(clock, "bfloat16", sentences, order))
        keep(folder, figures)


def update(conditions: Conditions, folder: Path) -> None:
    """Time updates of the preset on true lengths: seconds, tokens, kernels, GPU load, memory.

    Reserved memory is recorded after the first pass over the batches and after the last one.
    """
    figures: Row = {}
    count = 1 if conditions.quick else 20
    for arch in ("pervasive", "transformer"):
        settings = settings_of(arch, conditions)
        lengths, figures["lengths"] = training_lengths(conditions.lengths)
        batches = real_batches(lengths, affordable(settings, conditions), count)
        updater = make_updater(make_model(settings, conditions.device), settings, conditions)
        workload = updating(updater, batches)
        workload()
        row: Row = {f"{name}, first pass": size for name, size in _memory(conditions).items()}
        seconds = conditions.clock().best({"": workload})[""]
        tokens = sum(batch.token_count for batch in batches)
        row |= {"ms an update": 1000 * seconds / count, "target tokens/s": tokens / seconds}
        row |= _memory(conditions)
        figures[arch] = row
        keep(folder, figures)
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if conditions.device == "cuda":
            kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            wall = conditions.clock().once(workload)
        events = profile.key_averages()
        name = "self_cpu_time_total" if conditions.device == "cpu" else "self_device_time_total"
        row["busy"] = sum(float(getattr(event, name)) for event in events) / 1e6 / wall
        row["kernels an update"] = sum(event.count for event in events) / count
        keep(folder, figures)


def _memory(conditions: Conditions) -> Row:
    """Return the memory that torch has reserved, and the peak of allocated memory."""
    if conditions.device != "cuda":
        return {}
    sizes = torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
    return {"reserved MiB": sizes[0] / 2**20, "allocated MiB": sizes[1] / 2**20}


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "nmtgrid", *map(str, words)]


def run(words: list[str]) -> None:
    """Run a command. Raises CalledProcessError if it fails."""
    subprocess.run(words, check=True)


def _training_options(conditions: Conditions, folder: Path, updates: int) -> list[object]:
    """Return the words of a training command on a toy dataset, which is made if missing."""
    data = folder / "data"
    if not data.exists():
        run(_command("preprocess", "--toy", 60 if conditions.quick else 4000, "--out", data))
        run(_command("bpe", "learn", data, "--merges", 100))
    small = ["--set", "model.depth=1", "--set", "model.size=8"] if conditions.quick else []
    return ["train", data, "--arch", "pervasive", "--preset", "toy", "--device", conditions.device,
            "--max-updates", updates, "--set", "training.log_updates=1",
            "--set", "training.validate_bleu=false", *small]  # fmt: skip


def _losses(model: Path) -> list[Any]:
    log = model / "metrics.jsonl"
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    updates = [line for line in lines if line["event"] == "updated"]
    return [(line["update"], line["loss"]) for line in updates]


def training(conditions: Conditions, folder: Path) -> None:
    """Compare a training that a signal interrupts and that resumes with an uninterrupted one."""
    updates = 4 if conditions.quick else 400
    common = _training_options(conditions, folder, updates)
    figures: Row = {}
    alone, resumed = folder / "alone", folder / "resumed"
    for model in (alone, resumed):
        shutil.rmtree(model, ignore_errors=True)
    began = time.monotonic()
    run(_command(*common, "--out", alone))
    figures["seconds"] = time.monotonic() - began
    keep(folder, figures)
    process = subprocess.Popen(_command(*common, "--out", resumed))
    while process.poll() is None and len(_losses(resumed)) < updates // 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    figures["code of the one that was ended"] = process.wait()
    run(_command(*common, "--out", resumed, "--resume"))
    first, second = dict(_losses(alone)), dict(_losses(resumed))
    shared = sorted(first.keys() & second.keys())
    figures["updates compared"] = len(shared)
    figures["largest difference"] = max((abs(first[u] - second[u]) for u in shared), default=None)
    figures["last losses"] = [first[u] for u in shared[-3:]]
    keep(folder, figures)


def decoding(conditions: Conditions, folder: Path) -> None:
    """Time searches with and without CUDA graphs, and check that tokens are equal in fp32."""
    figures: Row = {"rows": []}
    quick = conditions.quick
    lengths, _ = training_lengths(conditions.lengths)
    pairs = lengths[(lengths.min(1) > 0) & (lengths.max(1) <= (12 if quick else 100))]
    pairs = pairs[:: max(1, len(pairs) // (4 if quick else 2000))]
    pairs = pairs[pairs[:, 0].argsort(kind="stable")]
    batches = [pairs[first : first + 64] for first in range(0, len(pairs), 64)]
    # A batch takes as many steps as its longest translation has tokens, including the end symbol.
    steps = sum(int(pairs[:, 1].max()) + 1 for pairs in batches)
    for arch in ("pervasive", "transformer"):
        model = make_model(settings_of(arch, conditions), conditions.device).eval()
        for beam in (1, 5):
            row: Row = {"architecture": arch, "beam": beam, "steps": steps}
            for name, is_recorded in (("graphs", True), ("eager", False)):
                workload = search_workload(model, batches, beam, conditions, is_recorded)
                row[f"{name}, first pass, s"] = conditions.clock().once(workload)
                seconds = row[f"{name}, second pass, s"] = conditions.clock().once(workload)
                row[f"{name}, ms a step"] = 1000 * seconds / steps
            row |= _memory(conditions)
            figures["rows"].append(row)
            keep(folder, figures)
        figures[f"{arch}: equal tokens in fp32"] = _are_equal(model, conditions)
        keep(folder, figures)


def _are_equal(model: Any, conditions: Conditions) -> bool:
    """Return whether searches with CUDA graphs and eager ones in fp32 yield the same tokens."""
    device = torch.device(conditions.device)
    graphs = Graphs(Recorder(device)) if device.type == "cuda" else None
    batch = random_batch([(9, 5), (4, 4), (12, 9)]).to(device)
    plan = SearchPlan(max_length_a=30.0, max_length_b=0.0)
    tokens = []
    for form in (None, graphs, graphs):
        lists = search([model], batch.source, batch.source_lengths, plan, graphs=form)
        tokens.append([best.tokens for best, *_ in lists])
    return tokens[0] == tokens[1] == tokens[2]


def memory(conditions: Conditions, folder: Path) -> None:
    """Grow the batch until memory runs out and the update is split into micro-batches."""
    settings = settings_of("pervasive", conditions)
    updater = make_updater(make_model(settings, conditions.device), settings, conditions)
    figures: Row = {"rows": []}
    sentences, most = (2, 4) if conditions.quick else (256, 2**20)
    while sentences <= most:
        batch = random_batch([(33, 33)] * sentences)
        result = updater.apply([batch], 1e-4)
        row: Row = {"cells": result.cells, "loss per token": result.loss / result.tokens,
                    "halved": result.oom_splits}  # fmt: skip
        row |= _memory(conditions)
        figures["rows"].append(row)
        keep(folder, figures)
        if result.oom_splits:
            break
        sentences *= 2


def processes(conditions: Conditions, folder: Path) -> None:
    """Compare two processes with one: on two GPUs over NCCL, on a CPU over gloo."""
    if conditions.device == "cuda" and torch.cuda.device_count() < 2:
        keep(folder, {"skipped": "there is only one GPU"})
        return
    figures: Row = {}
    options = [*_training_options(conditions, folder, 4 if conditions.quick else 50),
               "--precision", "fp32"]  # fmt: skip
    for name in ("dropout", "embedding_dropout", "output_dropout"):
        options += ["--set", f"model.{name}=0"]  # processes draw their own masks
    if conditions.quick:
        # Small batches, so that each process has several.
        options += ["--set", "batches.max_tokens=100"]
    losses: dict[str, dict[int, float]] = {}
    for name, more in (
        ("one", ("--set", "batches.accumulation=2")),
        ("two", ()),
        ("two, sharded", ("--set", "training.shard=true")),
    ):
        model = folder / name.replace(", ", "-")
        shutil.rmtree(model, ignore_errors=True)
        words = _command(*options, "--out", model, *more)
        if name == "one":
            run(words)
        else:
            launcher = [words[0], "-m", "torch.distributed.run", "--nproc-per-node", "2"]
            os.environ["NCCL_DEBUG"] = "WARN"
            run([*launcher, *words[1:]])
        losses[name] = dict(_losses(model))
        shared = losses["one"].keys() & losses[name].keys()
        figures[name] = {
            "updates compared": len(shared),
            "largest difference": max(
                (abs(losses["one"][u] - losses[name][u]) for u in shared), default=None
            ),
        }  # fmt: skip
        keep(folder, figures)
