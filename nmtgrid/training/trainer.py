"""The training loop: a generator of events that prints nothing."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.devices import give_back
from nmtgrid.base.errors import DataError, ModelError, TrainingError
from nmtgrid.base.seeding import random_states, restore_random_states, seed_everything
from nmtgrid.data.batches import Batch, BatchPlan, DataCursor
from nmtgrid.models.api import TranslationModel
from nmtgrid.training import events
from nmtgrid.training.api import Objective
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.distributed import Processes, pack_states, unpack_states
from nmtgrid.training.events import Meter
from nmtgrid.training.optimiser import (
    Clock,
    LearningRate,
    make_optimiser,
    optimiser_tensors,
    restore_optimiser,
)
from nmtgrid.training.progress import Progress, StopRequest, Stopwatch, end_reason, is_due
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.update import GradientWatch, Updater, gradient_ratio
from nmtgrid.training.validate import Best, Outcome, Selection, Validator
from nmtgrid.training.weights import RunningAverage, Weights, make_weights

_OPTIMISER, _RANDOM, _AVERAGE = "optimiser|", "state|", "ema|"


def saved_tensors(
    weights: Weights,
    optimiser: torch.optim.Optimizer,
    average: RunningAverage | None,
    processes: Processes,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return moments, running average, and the random states of all processes."""
    held = weights.full(optimiser_tensors(optimiser, weights.model))
    found = {f"{_OPTIMISER}{name}": value for name, value in held.items()}
    if average is not None:
        averaged = weights.full(average.weights)
        found |= {f"{_AVERAGE}{name}": value for name, value in averaged.items()}
    if processes.count == 1:
        return found | {f"{_RANDOM}{name}": held for name, held in random_states(device).items()}
    for rank, packed in enumerate(processes.gather(pack_states(random_states(device)))):
        states = unpack_states(packed)
        found |= {f"{_RANDOM}{rank}.{name}": value for name, value in states.items()}
    return found


def restore_tensors(
    tensors: dict[str, Tensor],
    weights: Weights,
    optimiser: torch.optim.Optimizer,
    average: RunningAverage | None,
    average_steps: int,
) -> None:
    """Put back moments and running average; one that there was not begins with the weights."""
    restore_optimiser(optimiser, weights.model, _below(tensors, _OPTIMISER), weights.like)
    if average is not None:
        average.restore(_below(tensors, _AVERAGE), average_steps, weights.put)


def restore_random(
    tensors: dict[str, Tensor], processes: Processes, device: torch.device, seed: int
) -> None:
    """Put back this process' random states, or begin others by `seed` where it had none.

    So a run that goes on with another number of processes draws other dropout masks.
    """
    own = "" if processes.count == 1 else f"{processes.rank}."
    states = _below(tensors, f"{_RANDOM}{own}")
    if "random.cpu" in states:
        restore_random_states(states, device)
    else:
        seed_process(seed, processes)


def seed_process(seed: int, processes: Processes) -> None:
    """Begin each process' random numbers at another place; one alone keeps those of `seed`."""
    seed_everything((seed + 1_000_003 * processes.rank) % 2**63)


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, without it."""
    held = tensors.items()
    return {name[len(prefix) :]: value for name, value in held if name.startswith(prefix)}


_PIECE = 1 << 20
_SAME = "Resume it with the dataset that it was begun with."


class Pairs(Protocol):
    """What the trainer reads: a split of a dataset."""

    @property
    def source_lengths(self) -> NDArray[Any]: ...

    @property
    def target_lengths(self) -> NDArray[Any]: ...

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch: ...


def describe_pairs(pairs: Pairs, usable: int) -> dict[str, Any]:
    """Return what tells these pairs, in this order, from others: `usable` ones, their lengths."""
    found = hashlib.sha256()
    for lengths in (pairs.source_lengths, pairs.target_lengths):
        for start in range(0, len(lengths), _PIECE):
            piece = lengths[start : start + _PIECE]
            found.update(numpy.ascontiguousarray(piece, numpy.int64).tobytes())
    return {"pairs": usable, "lengths": found.hexdigest()}


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise DataError unless the run of the state `saved` was begun on the pairs of `now`."""
    if saved["pairs"] != now["pairs"]:
        raise DataError(
            f"The run was begun on {saved['pairs']:,} usable training pairs, but there are "
            f"{now['pairs']:,} now.", _SAME,
        )  # fmt: skip
    if saved.get("lengths") not in (None, now["lengths"]):
        raise DataError("The run was begun on other training pairs, as many as these.", _SAME)


class BatchReader:
    """Reads `count` batches of `plan` an update, over all `processes`, from `place` on."""

    def __init__(
        self,
        pairs: Pairs,
        plan: BatchPlan,
        place: DataCursor,
        count: int,
        processes: Processes,
        *,
        ahead: bool,
        pinned: bool = False,
    ) -> None:
        self.pairs, self.plan, self.processes = pairs, plan, processes
        self.count, self.pinned = count, pinned
        self._walk = plan.walk(place)
        self._thread = concurrent.futures.ThreadPoolExecutor(1) if ahead else None
        self._next = self._thread.submit(self._read) if self._thread else None

    @classmethod
    def of(
        cls,
        pairs: Pairs,
        plan: BatchPlan,
        place: DataCursor,
        count: int,
        processes: Processes,
        device: torch.device,
    ) -> BatchReader:
        """Return the reader for `device`."""
        is_gpu = device.type == "cuda"
        return cls(pairs, plan, place, count, processes, ahead=is_gpu, pinned=is_gpu)

    def __iter__(self) -> Iterator[tuple[DataCursor, list[Batch]]]:
        """Yield the batches of each update, with the place that follows them."""
        try:
            while True:
                if self._thread is None or self._next is None:
                    yield self._read()
                    continue
                found = self._next.result()
                self._next = self._thread.submit(self._read)
                yield found
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True, cancel_futures=True)

    def _read(self) -> tuple[DataCursor, list[Batch]]:
        taken = [next(self._walk) for _ in range(self.count)]
        mine = self.processes.share([self.plan.cells(indices) for _, indices in taken])
        batches = [self.pairs.batch(taken[place][1]) for place in mine]
        return taken[-1][0], [batch.pinned() if self.pinned else batch for batch in batches]


_GIVE_BACK_EVERY = 20
"""Updates after which freed memory goes back to the system: batches of ever-changing shapes leave
holes in the heap, gigabytes within an hour."""


class Trainer:
    """Trains `model` on `train`; the model directory `folder` gets weights and states.

    `validator` scores weights (None: no validation, the last weights count). `resume()` before
    `run()` goes on from the newest saved state.
    """

    def __init__(
        self,
        model: TranslationModel,
        objective: Objective,
        train: Pairs,
        settings: RunSettings,
        folder: Path,
        device: torch.device,
        *,
        bf16: bool = False,
        validator: Validator | None = None,
        stop: StopRequest | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.model, self.train, self.settings = model.to(device), train, settings
        self.device, self.bf16 = device, bf16
        self.processes = processes or Processes()
        self.processes.broadcast([*model.parameters(), *model.buffers()])
        self.validator = validator
        training, batches = settings.training, settings.batches
        self.plan = BatchPlan(
            train.source_lengths, train.target_lengths, batches.max_tokens, batches.max_cells,
            batches.max_length, training.seed,
        )  # fmt: skip
        if not self.plan.count:
            raise DataError(
                f"All {self.plan.skipped:,} training pairs are empty or longer than "
                f"{batches.max_length} tokens.", "Set a larger `batches.max_length`.",
            )  # fmt: skip
        self.weights = make_weights(model, objective, self.processes, device, shard=training.shard)
        self.optimiser = make_optimiser(model, training)
        self.updater = Updater(
            model, objective, self.optimiser, device, bf16=bf16, clip_norm=training.clip_norm,
            processes=self.processes, weights=self.weights,
        )  # fmt: skip
        every = training.watch_gradients
        self.watch = GradientWatch(model, every) if every else None
        self.rate = LearningRate(training)
        self.average = RunningAverage(model, training.ema_decay) if training.ema_decay else None
        self.checkpoints = Checkpoints(folder, training.average)
        self.selection = Selection(self.weights, validator, self.average)
        self.progress = Progress()
        self.meter = Meter()
        self._data_facts = describe_pairs(train, self.plan.count)
        self._batches = batches.accumulation * self.processes.count
        """Of an update, over all processes."""
        self._world_size_changed = False
        self.stopwatch = Stopwatch(training.clock, stop or StopRequest(), self.processes)

    @property
    def minutes(self) -> float:
        """Minutes that the run has taken, those before a resumption included."""
        return self.stopwatch.minutes

    def resume(self) -> bool:
        """Go on from the newest saved state; return False if there is none."""
        snapshot = self.checkpoints.load()
        if snapshot is None:
            return False
        facts, tensors = snapshot.facts, snapshot.tensors
        check_same(facts, self._data_facts)
        try:
            self.weights.load(snapshot.weights)
        except RuntimeError as fault:
            raise ModelError(
                f"The saved weights do not fit the model of {self.checkpoints.model_folder}: its "
                "settings have been changed.", "Restore its `config.json`.",
            ) from fault  # fmt: skip
        self._redistribute(facts)
        restore_tensors(tensors, self.weights, self.optimiser, self.average, facts["ema_steps"])
        restore_random(
            tensors, self.processes, self.device,
            self.settings.training.seed + facts["progress"]["update"],
        )  # fmt: skip
        self.rate.restore(facts["rate"])
        self.meter = Meter(**facts["meter"])
        self.progress = Progress.from_json(facts["progress"])
        self.selection.best = Best(**facts["best"])
        self.stopwatch.go_on(self.progress.minutes)
        return True

    def _redistribute(self, facts: dict[str, Any]) -> None:
        """Keep to as many batches an update as before, whatever the number of processes."""
        self._batches = facts.get("batches", self.settings.batches.accumulation)
        self._world_size_changed = facts.get("processes", 1) != self.processes.count
        self.processes.check(self._batches, even=self.weights.is_sharded)

    def run(self) -> Iterator[events.Event]:
        """Train until a limit is reached, or `stop` asks for the end.

        Raises: TrainingError when the loss is not finite or another process is gone, DeviceError
        when a pair does not fit into memory, StorageError when a state cannot be written; what was
        saved stays.
        """
        self.stopwatch.agree()
        yield self._start_event()
        is_new = torch.tensor(float(not self.checkpoints.existing()))
        # All ask before the first one writes.
        if self.processes.sum(is_new).item():
            yield self._save(None)
        try:
            yield from self._train()
        except TrainingError as fault:
            raise TrainingError(
                f"After update {self.progress.update}: {fault.problem}",
                f"{fault.advice} The last saved state is kept: `--resume` goes on from there.",
            ) from fault

    def _train(self) -> Iterator[events.Event]:
        """Train, from the second event to the last."""
        reader = iter(BatchReader.of(
            self.train, self.plan, self.progress.cursor, self._batches, self.processes, self.device,
        ))  # fmt: skip
        if self.progress.update and is_due(self.settings.training, self.progress, self.minutes):
            yield from self._validate(due=True)  # a run that was stopped just before
        reason = self._end_reason()
        while not reason:
            yield from self._update(reader)
            self.stopwatch.agree()
            if self.stopwatch.stopped:
                break
            if is_due(self.settings.training, self.progress, self.minutes):
                yield from self._validate(due=True)
            elif self._save_is_due():
                yield self._save(None)
            reason = self._end_reason()
        if not self.stopwatch.stopped:
            yield from self._conclude()
        elif self.progress.update != self.progress.saved_update:
            yield self._save(None)
        best, stopped = self.selection.best, self.stopwatch.stopped
        yield events.Finished(
            self.progress.update, self.progress.cursor.epoch, self.minutes, stopped or reason,
            bool(stopped), best.weights, best.update, best.nll, best.bleu, best.cider,
            best.criterion,
        )  # fmt: skip

    def _update(self, reader: Iterator[tuple[DataCursor, list[Batch]]]) -> Iterator[events.Event]:
        """Do one update."""
        began = self.stopwatch.now()
        place, batches = next(reader)
        rate = self.rate.at(Clock(self.progress.update, self.minutes))
        watch = self.watch and self.watch.due(self.progress.update + 1)
        result = self.updater.apply(batches, rate, watch)
        self.progress.update += 1
        self.progress.cursor = place
        training = self.settings.training
        if self.average is not None and self.progress.update % training.ema_updates == 0:
            self.average.step()
        self.meter.add(result, self.stopwatch.now() - began)
        if result.gradients:
            yield events.Gradients(
                self.progress.update, self.progress.cursor.epoch, self.minutes, result.gradients,
                gradient_ratio(result.gradients),
            )  # fmt: skip
        if result.oom_splits:
            is_exact = not self.model.traits.batch_statistics
            yield events.Split(self.progress.update, result.oom_splits, is_exact)
        if self.device.type == "cpu" and self.progress.update % _GIVE_BACK_EVERY == 0:
            give_back()
        if self.progress.update % training.log_updates == 0:
            yield self._log(rate)

    def _log(self, rate: float) -> events.Updated:
        meter, self.meter = self.meter, Meter()
        left = meter.minutes_left(
            self.settings.training, self.progress, self.minutes, self.plan, self._batches
        )
        return meter.event(self.progress, self.minutes, rate, left)

    def _validate(self, *, due: bool) -> Iterator[events.Event]:
        """Score the weights, keep them if they are the best, and save."""
        self.progress.validated(self.minutes, due=due)
        # Running statistics, of batch normalisation, are each process' own, and so are their means.
        averaged = [] if self.average is None else self.average.buffers()
        self.processes.broadcast([*self.model.buffers(), *averaged])
        if self.validator is None:
            yield self._save(None)
            return
        began = self.stopwatch.now()
        outcome = self.selection.evaluate(self.progress.update)
        self.stopwatch.agree()
        if due:
            self.rate.evaluated(outcome.score.value)
            self.progress.evaluated(outcome.score.value)
        yield self._validated(outcome, began)
        yield self._save(outcome.best)

    def _validated(self, outcome: Outcome, began: float) -> events.Validated:
        score, quality = outcome.score, outcome.quality
        losses = {name: held.nll for name, held in outcome.scores.items()}
        return events.Validated(
            self.progress.update, self.progress.cursor.epoch, self.minutes, score.nll,
            outcome.weights, losses, quality.bleu, outcome.is_best,
            self.stopwatch.now() - began, quality.cider, score.criterion, score.extra,
        )  # fmt: skip

    def _conclude(self) -> Iterator[events.Event]:
        """Validate what has not been, and the average of the last checkpoints and this state."""
        if self.progress.update != self.progress.validated_update:
            yield from self._validate(due=False)
        elif self.progress.update != self.progress.saved_update:
            yield self._save(None)
        if self.settings.training.average < 2:
            return
        averaged = self.checkpoints.average()
        if self.processes.is_first:
            self.checkpoints.write_average(averaged)
        if self.validator is None:
            return
        began = self.stopwatch.now()
        outcome = self.selection.evaluate_average(self.progress.update, averaged)
        yield self._validated(outcome, began)
        if outcome.is_best:
            yield self._save(outcome.best)

    def _save(self, best: dict[str, torch.Tensor] | None) -> events.Saved:
        self.progress.saved(self.minutes)
        tensors = saved_tensors(
            self.weights, self.optimiser, self.average, self.processes, self.device
        )
        facts = {
            **self._data_facts,
            "progress": self.progress.to_json(),
            "rate": self.rate.state(),
            "meter": dataclasses.asdict(self.meter),
            "best": dataclasses.asdict(self.selection.best),
            "ema_steps": self.average.steps if self.average is not None else 0,
            "batches": self._batches,
            "processes": self.processes.count,
        }
        if best is None and self.selection.best.nll is None:
            # Nothing has been validated yet: the newest weights are the chosen ones.
            best = self.weights.state()
        snapshot = Snapshot(self.weights.state(), tensors, facts)
        place = self.checkpoints.save(snapshot, best) if self.processes.is_first else Path()
        told, *_ = self.processes.gather(os.fsencode(place))
        return events.Saved(self.progress.update, self.minutes, os.fsdecode(told))

    def _save_is_due(self) -> bool:
        wait = self.settings.training.save_minutes
        return wait > 0 and self.minutes - self.progress.saved_minutes >= wait

    def _end_reason(self) -> str:
        training = self.settings.training
        return self.stopwatch.stopped or end_reason(training, self.progress, self.minutes)

    def _start_event(self) -> events.Started:
        return events.Started(
            self.progress.update, self.minutes, self.plan.count, self.plan.skipped,
            self.model.count_parameters(), self.device.type, "bf16" if self.bf16 else "fp32",
            self.processes.count, self._world_size_changed,
        )  # fmt: skip
