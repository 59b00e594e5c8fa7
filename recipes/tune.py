"""The sweep of recipes/tune.sh: checks all settings, trains, and writes the table and figure.

python -m recipes.tune DATA --out FOLDER --grid GRID ... -- OPTION...
    FOLDER/runs/NAME is a model directory, NAME.json its record and NAME.log its output;
    FOLDER/table.{md,json,png} has all settings, best first. Arguments after `--` are options of
    `nmtgrid train` for every run. Started again, it trains nothing twice.

Exit codes: 0; 1 if no run finished; 2 for wrong input; 128 + signal if interrupted.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from nmtgrid.analysis.training_curves import read_run, summary
from nmtgrid.base import console
from nmtgrid.base.errors import DataError, InputError, NmtgridError, StorageError
from nmtgrid.base.io.atomic import digest, make_folder, write_json
from nmtgrid.base.io.lock import FolderLock
from nmtgrid.base.io.records import read_json
from nmtgrid.cli import app
from nmtgrid.data.dataset import Dataset
from nmtgrid.training.checkpoint import FOLDER as CHECKPOINTS
from nmtgrid.training.prepare import METRICS
from recipes.machine import machine, software
from recipes.tune_plan import PlanError, Sweep, Training, parse
from recipes.tune_table import Record, bits, described, ranked, report

_PAUSE = 0.2
"""Seconds between checks of the running processes."""


class Interrupted(Exception):
    """A signal ended the sweep; `number` is the signal number."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__()


def check(sweep: Sweep) -> list[int]:
    """Return the number of parameters of each setting's model, from `train --dry-run`.

    Raises PlanError with the errors of all settings that it rejects, each error once.
    """
    if not len(Dataset.open(sweep.data).split("valid")):
        raise DataError(f"{sweep.data} has no validation pairs to compare settings on.")
    last, sizes = sweep.schedule()[-1], []
    faults: dict[str, str] = {}
    warnings: dict[str, None] = {}
    for index, settings in enumerate(sweep.settings()):
        training = sweep.training(index, settings, last)
        words = ["train", str(sweep.data), *training.options, "--dry-run", "--json", "-"]
        with (
            # The report is written as bytes.
            contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as output,
            contextlib.redirect_stderr(io.StringIO()) as messages,
        ):
            code = app.main(words)
        lines = messages.getvalue().splitlines()
        if code >= 128:
            raise Interrupted(code - 128)
        if code:
            start = next((n for n, line in enumerate(lines) if line.startswith("error: ")), 0)
            fault = "\n".join(lines[start:]).removeprefix("error: ")
            faults.setdefault(fault, described(settings))
            continue
        warnings |= dict.fromkeys(line for line in lines if line.startswith("warning: "))
        output.seek(0)
        sizes.append(json.load(output)["parameters"])
    for warning in warnings:
        console.warn(warning.removeprefix("warning: "))
    if faults:
        raise PlanError("\n".join(f"{fault}\n       (with {at})" for fault, at in faults.items()))
    return sizes


class Trainings:
    """The runs of a sweep: trains those without a record, `sweep.jobs` of them in parallel."""

    def __init__(self, sweep: Sweep, sizes: Sequence[int]) -> None:
        self.sweep, self.sizes = sweep, sizes
        self.folder = sweep.out / "runs"
        self.signals: list[int] = []
        self._running: dict[subprocess.Popen[bytes], Training] = {}
        rungs = sweep.schedule()
        self._total = sum(rung.count for rung in rungs)
        self._left = sum(rung.count * rung.budget.amount for rung in rungs)
        self._ended, self._trained, self._start = 0, 0.0, time.monotonic()

    def record(self, training: Training) -> Record | None:
        """Return the record of a run that has ended, None if it has not or must be retried."""
        path = self._path(training, "json")
        if not path.exists():
            return None
        record: Record = read_json(path)
        is_kept = record.get("outcome") == "finished" or not self.sweep.retry
        return record if is_kept else None

    def train(self, trainings: Sequence[Training]) -> list[Record]:
        """Return the records of these runs, after training those without one.

        A run that fails is recorded, and the others continue. Raises Interrupted after a signal,
        once all running processes have saved their state, and StorageError if a record cannot be
        written.
        """
        make_folder(self.folder)
        records = {training.index: self.record(training) for training in trainings}
        waiting = deque(training for training in trainings if records[training.index] is None)
        for training in trainings:
            if records[training.index] is not None:
                self._advance(training, was_trained=False)
        try:
            while (waiting and not self.signals) or self._running:
                while waiting and len(self._running) < self.sweep.jobs and not self.signals:
                    self._begin(waiting.popleft())
                time.sleep(_PAUSE)
                for process in [running for running in self._running if running.poll() is not None]:
                    training = self._running.pop(process)
                    if not self.signals or process.returncode == 0:
                        records[training.index] = self._end(training, process.returncode)
        finally:
            # If the sweep itself fails, leave no process behind.
            self.stop()
            for process in self._running:
                process.wait()
        if self.signals:
            raise Interrupted(self.signals[0])
        return [record for record in records.values() if record is not None]

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Make all running processes save and exit; also the signal handler."""
        if number:
            self.signals.append(number)
            console.say("Stopping: running trainings save their state.")
        for process in self._running:
            process.terminate()

    def _path(self, training: Training, ending: str) -> Path:
        return self.folder / f"{training.name}.{ending}"

    def _begin(self, training: Training) -> None:
        model, log = self.folder / training.name, self._path(training, "log")
        # If only the parent of an earlier sweep was killed, its training may still be running.
        FolderLock(model, "recipes/tune.py").release()
        states = model / CHECKPOINTS
        way = "--resume" if states.is_dir() and any(states.iterdir()) else "--overwrite"
        words = [*self.sweep.command(training, model)[1:], way]
        verb = "resumes" if way == "--resume" else "starts"
        console.say(f"{described(training.settings)} {verb} ({training.rung.budget}; {log})")
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "nmtgrid", *words], stdin=subprocess.DEVNULL,
                stdout=file, stderr=file,
                # Only this program receives Ctrl-C and forwards it once; twice would not save.
                start_new_session=True,
            )  # fmt: skip
        self._running[process] = training

    def _end(self, training: Training, code: int) -> Record:
        record = self._result(training, code)
        write_json(self._path(training, "json"), record)
        self._advance(training, was_trained=True)
        loss = record["valid_nll"]
        outcome = f"failed: {record['reason']}"
        if record["outcome"] == "finished":
            outcome = f"validation {loss:.4f} nats, {bits(loss):.4f} bits per token"
        left = max(0.0, self._left) * (time.monotonic() - self._start) / self._trained / 60
        console.say(
            f"[{self._ended} of {self._total}] rung {training.rung.number}, "
            f"{described(training.settings)}: {outcome}; about {left:.1f} minutes left"
        )
        return record

    def _advance(self, training: Training, *, was_trained: bool) -> None:
        amount = training.rung.budget.amount
        self._ended += 1
        self._left -= amount
        self._trained += amount * was_trained

    def _result(self, training: Training, code: int) -> Record:
        """Return the record of a run that ended with `code`."""
        rung, model = training.rung, self.folder / training.name
        record: Record = {
            "settings": training.settings,
            "rung": rung.number,
            "budget": str(rung.budget),
            "seed": self.sweep.seed,
            "parameters": self.sizes[training.index],
            "command": shlex.join(self.sweep.command(training, "MODEL")),
            "outcome": "failed" if code else "finished",
            "exit_code": code,
            "reason": self._last_words(training, code) if code else "",
            "valid_nll": None,
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "software": software(),
        }
        try:
            run = read_run(model / METRICS, training.name)
        except (InputError, StorageError) as fault:
            # A run that failed at once has no metrics.
            return record | {"outcome": "failed", "reason": record["reason"] or str(fault)}
        facts = summary(run)
        names = ("updates", "minutes", "tokens_per_second", "best_update", "valid_bleu")
        record |= {name: facts[name] for name in names} | {"valid_nll": facts["valid_loss"]}
        points = [row for row in run.validation if row["nll"] == row["nll"]]
        record["curve"] = {name: [row[name] for row in points] for name in ("minutes", "nll")}
        if not code and record["valid_nll"] is None:
            record |= {"outcome": "failed", "reason": "no validation gave a finite loss"}
        return record

    def _last_words(self, training: Training, code: int) -> str:
        """Return the error message or the signal that ended a run."""
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        lines = self._path(training, "log").read_text("utf-8", "replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"exit code {code}"


def run(sweep: Sweep, trainings: Trainings) -> list[Record]:
    """Train rung by rung; return all records. Settings are selected by validation loss only."""
    records: list[Record] = []
    chosen = list(enumerate(sweep.settings()))
    for rung in sweep.schedule():
        # Fewer than planned if too many have failed.
        chosen = chosen[: rung.count]
        if not chosen:
            break
        if rung.number > 1:
            console.say(f"Rung {rung.number}: the best {len(chosen)} for {rung.budget}.")
        ended = trainings.train([sweep.training(*choice, rung) for choice in chosen])
        records += ended
        chosen = [chosen[index] for index in ranked(ended)]
    return records


def check_same_data(sweep: Sweep) -> None:
    """Raise StorageError if the runs in the sweep's folder were trained on other data."""
    # Sizes and checksums of its files: the same if the dataset is regenerated.
    path, data = sweep.out / "sweep.json", digest(Dataset.open(sweep.data).manifest["files"])
    if path.exists():
        if read_json(path)["data"] != data:
            raise StorageError(
                f"The runs in {sweep.out} were trained on other data than {sweep.data}.",
                "Give this sweep another name (LABEL=...), or remove that folder.",
            )
        return
    write_json(path, {"data": data})


@contextlib.contextmanager
def _signals(trainings: Trainings) -> Iterator[None]:
    """Stop the sweep in an orderly way on SIGINT, SIGTERM and SIGHUP inside the context."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, trainings.stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """Run the command line."""
    try:
        sweep = parse(sys.argv[1:])
        rungs = sweep.schedule()
        sizes = check(sweep)
        plan = ", then ".join(f"{rung.count} for {rung.budget}" for rung in rungs)
        console.say(f"Settings: {plan} each; {sweep.jobs} in parallel.")
        make_folder(sweep.out)
        with FolderLock(sweep.out, "recipes/tune.py"):
            check_same_data(sweep)
            trainings = Trainings(sweep, sizes)
            with _signals(trainings):
                records = run(sweep, trainings)
            return report(sweep, records)
    except PlanError as fault:
        console.error(str(fault))
    except NmtgridError as fault:
        console.error(fault.problem, fault.advice)
    except Interrupted as fault:
        console.say("Interrupted. Run the same command to resume.")
        return 128 + fault.number
    return 2


if __name__ == "__main__":
    sys.exit(main())
