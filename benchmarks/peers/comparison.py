"""nmtgrid against Eole, Joey NMT and CTranslate2: training, greedy search, beam 5, on one core.

    python -m benchmarks.peers --data DATA --peers-python PATH [--rounds 3] [--out FILE]

DATA is a dataset directory with splits `train` and `test`; PATH is the Python interpreter of an
environment with the peers (missing ones are skipped). Every system has a separate process, which is
set up once and then runs round by round, interleaved with the others: A, B, C, A, B, C. All decode
with the same weights.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.data import SETTINGS, plain_weights, train_common, write_task
from benchmarks.peers.nmtgrid import model_settings
from benchmarks.store import Section, section, to_markdown
from benchmarks.timing import Conditions, facts, precisions
from nmtgrid.base.config import to_json
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.base.io.atomic import write_json
from nmtgrid.convert import to_ctranslate2
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search.translate import default_plan

PROJECT = Path(__file__).resolve().parents[2]
FLOORS = {
    ("train", "eole"): 1.0, ("train", "joeynmt"): 2.2,
    ("greedy", "eole"): 1.0, ("beam 5", "eole"): 1.4,
}  # fmt: skip
"""Speedups over a peer that nmtgrid must reach in fp32."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A row of the table: a worker and its options."""

    name: str
    worker: str
    quantization: str = "float32"
    bf16: bool = False
    sentences: int = 1_000_000
    """Number of test sentences to translate."""

    @property
    def trains(self) -> bool:
        """Whether the system can train."""
        return self.worker != "ctranslate2" and self.quantization == "float32"


CONTESTANTS = (
    Contestant("nmtgrid", "nmtgrid"),
    Contestant("eole", "eole"),
    Contestant("joeynmt", "joeynmt", sentences=128),
    Contestant("ctranslate2", "ctranslate2"),
    Contestant("ctranslate2 int8", "ctranslate2", "int8"),
    Contestant("nmtgrid bf16", "nmtgrid", bf16=True),
    Contestant("nmtgrid int8", "nmtgrid", "int8"),
)


class Worker:
    """A running process of `benchmarks.peers.worker`."""

    def __init__(self, python: str, module: str, task: dict[str, Any], log: Path) -> None:
        one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.worker", module], cwd=PROJECT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                env={**os.environ, **one_thread},
            )  # fmt: skip
        self.log = log
        self.greeting = self.ask(task)

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command and return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            last = self.log.read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise SystemExit(f"{self.log.stem} ended: {' '.join(last)} (all of it in {self.log})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Close the pipe and wait for the process to end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def start(task: dict[str, Any], python: str, folder: Path) -> dict[str, Worker]:
    """Start the contestants' workers; print which are missing."""
    workers: dict[str, Worker] = {}
    for contestant in CONTESTANTS:
        if contestant.bf16 and "bf16" not in precisions("cpu"):
            print(f"{contestant.name} is left out: this processor has no bf16 products")
            continue
        alike = next(
            other.name for other in CONTESTANTS
            if (other.worker, other.bf16) == (contestant.worker, contestant.bf16)
        )  # fmt: skip
        if alike in workers:
            workers[contestant.name] = workers[alike]
            continue
        chosen = sys.executable if contestant.worker in ("nmtgrid", "ctranslate2") else python
        log = folder / f"{contestant.name.replace(' ', '-')}.log"
        worker = Worker(chosen, contestant.worker, {**task, "bf16": contestant.bf16}, log)
        if "missing" in worker.greeting:
            print(f"{contestant.name} is left out: {worker.greeting['missing']} is not installed")
            worker.close()
        else:
            workers[contestant.name] = worker
    return workers


def commands(seconds: float) -> dict[str, dict[str, Any]]:
    """Return the command of each workload."""
    return {
        "train": {"do": "train", "seconds": seconds},
        "greedy": {"do": "translate", "beam": 1},
        "beam 5": {"do": "translate", "beam": 5},
    }


def measure(
    workers: dict[str, Worker], rounds: int, seconds: float, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the tokens per processor second of each contestant, by workload and round."""
    results: dict[str, Any] = {}
    for workload, command in commands(seconds).items():
        if only and workload not in only:
            continue
        rows: dict[str, Any] = {}
        for turn in range(-1, rounds):  # the first round only warms up
            for contestant in CONTESTANTS:
                name = contestant.name
                if name not in workers or (workload == "train" and not contestant.trains):
                    continue
                request = {**command, "count": contestant.sentences}
                request["quantization"] = contestant.quantization
                if turn < 0:
                    request |= {"seconds": seconds / 3, "count": 64}
                answer = workers[name].ask(request)
                row = rows.setdefault(name, {"tokens_per_second": [], "share_of_core": []})
                if turn >= 0:
                    row["tokens_per_second"].append(answer["tokens"] / answer["cpu"])
                    row["share_of_core"].append(answer["cpu"] / answer["wall"])
                row |= {key: answer[key] for key in ("tokens", "updates", "lines") if key in answer}
                print(f"{workload:7} round {turn + 1}  {name:17} "
                      f"{answer['tokens'] / answer['cpu']:9,.0f}", file=sys.stderr)  # fmt: skip
        results[workload] = summarise(workload, rows)
    return results


def summarise(workload: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Add medians, our speedups, floors, and the number of translations identical to ours."""
    ours = rows["nmtgrid"]
    for name, row in rows.items():
        row["median"] = statistics.median(row["tokens_per_second"])
        pairs = zip(ours["tokens_per_second"], row["tokens_per_second"], strict=True)
        row["ours_to_it"] = statistics.median(mine / its for mine, its in pairs)
        if (workload, name) in FLOORS:
            row["floor"] = FLOORS[workload, name]
            row["met"] = row["ours_to_it"] >= row["floor"]
        if workload == "train":
            row["tokens_per_update"] = row["tokens"] / row.pop("updates")
            del row["tokens"]
        else:
            row["sentences"] = len(row["lines"])
            lines = zip(ours["lines"], row["lines"], strict=False)
            row["same_as_ours"] = sum(mine == its for mine, its in lines)
    for row in rows.values():
        row.pop("lines", None)
    return rows


def as_section(results: dict[str, Any]) -> Section:
    """Return a table for each workload: tokens per processor second, and our speedup."""
    tables = {
        f"{workload}, tokens per second of processor": [
            {"system": name, "tokens/s": row["median"], "nmtgrid is so many times as fast":
             row["ours_to_it"], "floor": row.get("floor")}
            for name, row in results[workload].items()
        ]
        for workload in commands(0) if workload in results
    }  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return section(facts("cpu"), tables, [f"fp32 where nothing else is said. {versions}."])


def prepare(data: Path, folder: Path, model: Path | None, minutes: float) -> dict[str, Any]:
    """Write the inputs of all systems; return the task. Weights are from `model` or a new model."""
    dataset = Dataset.open(data)
    task = write_task(dataset, folder)
    if model is not None:
        task["model"] = str(model)
    elif not (Path(task["model"]) / "model.safetensors").exists():
        train_common(task, minutes)
    loaded = load_model(task["model"])
    check_same(task, loaded, dataset)
    save_tensors(Path(task["weights"]), plain_weights(to_ctranslate2.check(loaded.model)))
    shutil.rmtree(task["ctranslate2"], ignore_errors=True)
    with contextlib.suppress(ConfigError):
        search = to_json(default_plan(loaded))
        to_ctranslate2.export(loaded, Path(task["ctranslate2"]), search)
    return task


def check_same(task: dict[str, Any], loaded: LoadedModel, dataset: Dataset) -> None:
    """Raise SystemExit unless the model and vocabularies are those of the benchmark."""
    config, free = loaded.model.config, "dropout"
    wrong = [
        f"{name}={getattr(config, name, None)}"
        for name, value in model_settings(task).items()
        if free not in name and getattr(config, name, None) != value
    ]
    sides = ("source_vocabulary", "target_vocabulary")
    wrong += [
        f"another {side}" for side in sides
        if getattr(loaded.pipeline, side).types != getattr(dataset.pipeline, side).types
    ]  # fmt: skip
    if getattr(config, "output_bias", False):
        wrong.append("output_bias=True")
    if wrong:
        raise SystemExit(f"{loaded.folder} is not the benchmark's model: {', '.join(wrong)}")


def contest(
    data: Path, python: str, folder: Path, model: Path | None = None, *,
    minutes: float, rounds: int, seconds: float, only: Sequence[str] = (),
    sentences: int = SETTINGS["sentences"],
) -> dict[str, Any]:  # fmt: skip
    """Prepare, measure all interleaved, and return the figures with their conditions."""
    task = prepare(data.resolve(), folder, model and model.resolve(), minutes)
    task["sentences"] = sentences
    workers = start(task, python, folder)
    try:
        versions = {name: worker.greeting["version"] for name, worker in workers.items()}
        results = measure(workers, rounds, seconds, only)
    finally:
        for worker in set(workers.values()):
            worker.close()
    settings = {name: value for name, value in task.items() if isinstance(value, int | float)}
    about = {**facts("cpu"), "rounds": rounds, "versions": versions, "settings": settings}
    return {**about, **results}


def measure_part(conditions: Conditions, data: Path | None, python: str, folder: Path) -> Section:
    """Compare with the toolkits installed for `python`, as a part of `python -m benchmarks`."""
    if data is None:
        return section(facts("cpu"), {}, ["No dataset was given (--data)."])
    minutes, rounds, seconds = (0.2, 1, 2.0) if conditions.quick else (30.0, 3, 12.0)
    return as_section(
        contest(data, python, folder, minutes=minutes, rounds=rounds, seconds=seconds)
    )


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12, help="of training per round")
    parser.add_argument(
        "--only", action="append", choices=tuple(commands(0)), help="a part; may be repeated"
    )
    parser.add_argument(
        "--sentences", type=int, default=SETTINGS["sentences"], help="per batch of decoding"
    )
    parser.add_argument("--core", type=int, help="pin all work to this core")
    parser.add_argument("--model", type=Path, help="the common weights (default: train them)")
    parser.add_argument("--minutes", type=float, default=30, help="of processor time for that")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="working folder")
    parser.add_argument("--out", type=Path, help="where to store the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    results = contest(
        options.data, options.peers_python, options.folder.resolve(), options.model,
        minutes=options.minutes, rounds=options.rounds, seconds=options.seconds,
        only=options.only or (), sentences=options.sentences,
    )  # fmt: skip
    print(to_markdown("peers", as_section(results)))
    if options.out:
        write_json(options.out, results)
