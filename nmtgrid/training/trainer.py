"""The training loop: a generator of events that prints nothing.

`prepare.py` builds a `Trainer`; the command `train` prints and logs its events (events.py). A run
continues from its newest checkpoint bit for bit, with any number of processes: this module decides
which batches and random numbers each process gets.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.devices import HeapTrimmer, random_states, restore_random_states
from nmtgrid.base.errors import DataError, ModelError, TrainingError
from nmtgrid.base.io.lock import FolderLock
from nmtgrid.base.io.records import convert
from nmtgrid.data.batches import Batch, BatchPlan, DataCursor, Pairs, check_usable
from nmtgrid.data.dropout import ResegmentedPairs, drop_words
from nmtgrid.models.api import TranslationModel
from nmtgrid.training import events
from nmtgrid.training.api import Objective
from nmtgrid.training.checkpoint import Checkpoints, RunState, Snapshot
from nmtgrid.training.distributed import ALONE, Processes, pack_states, unpack_states
from nmtgrid.training.metrics_log import UpdateSums
from nmtgrid.training.optimiser import (
    LearningRate,
    make_optimiser,
    optimiser_tensors,
    restore_optimiser,
)
from nmtgrid.training.progress import (
    Progress,
    StopRequest,
    Stopwatch,
    end_reason,
    fraction_done,
    validation_is_due,
)
from nmtgrid.training.settings import RunSettings, TrainingSettings
from nmtgrid.training.trained_model import ShardedModel, TrainedModel
from nmtgrid.training.update import (
    GradientWatch,
    NotFiniteError,
    Updater,
    UpdateResult,
    gradient_ratio,
    has_fast_bf16,
)
from nmtgrid.training.validate import Outcome, Selection, Validator
from nmtgrid.training.weights import ExponentialMovingAverage

_OPTIMISER, _RANDOM, _EMA = "optimiser|", "state|", "ema|"
_HASHED_AT_ONCE = 1 << 20
_TRIM_EVERY = 20
"""Updates between trims of the heap on a CPU: batches of ever-changing shapes leave holes in it,
gigabytes within an hour."""


def plan_batches(
    train: Pairs, settings: RunSettings, resegmented: ResegmentedPairs | None
) -> BatchPlan:
    """Return the batches of a run. Raises DataError if no pair is left."""
    batches = settings.batches
    plan = BatchPlan(
        train.source_lengths, train.target_lengths, batches.max_tokens, batches.max_cells,
        batches.max_length, settings.training.seed,
        resegmented=None if resegmented is None else resegmented.lengths,
    )  # fmt: skip
    check_usable(plan)
    return plan


def read_batches(
    read_batch: Callable[[NDArray[Any], int], Batch],
    plan: BatchPlan,
    cursor: DataCursor,
    count: int,
    processes: Processes,
    *,
    ahead: bool,
) -> Iterator[tuple[DataCursor, list[Batch]]]:
    """Yield this process' batches of each update, with the cursor after them.

    An update takes `count` batches of `plan` over all `processes`, starting at `cursor`. For a GPU
    the batches of the next update are read `ahead`, in a thread, into pinned memory. `read_batch`
    returns the batch of given pairs in an epoch.
    """
    walk, epoch = plan.walk(cursor), cursor.epoch
    is_pinned = ahead and torch.cuda.is_available()

    def read() -> tuple[DataCursor, list[Batch]]:
        nonlocal epoch
        steps = []
        for _ in range(count):
            following, indices = next(walk)
            steps.append((indices, epoch))
            epoch = following.epoch
        # Every process walks the whole plan and reads its share, so that none has to send any.
        own = processes.share([plan.cells(indices) for indices, _ in steps])
        batches = [read_batch(*steps[index]) for index in own]
        return following, [batch.pinned() if is_pinned else batch for batch in batches]

    if not ahead:
        while True:
            yield read()
    thread = concurrent.futures.ThreadPoolExecutor(1)
    try:
        following = thread.submit(read)
        while True:
            batches = following.result()
            following = thread.submit(read)
            yield batches
    finally:
        thread.shutdown(wait=True, cancel_futures=True)


class Trainer:
    """Trains `model` on `train`; the model directory `folder` gets weights and checkpoints.

    `validator` scores weights (None: no validation; the last weights count) on the pairs `valid`.
    `resegmented` are the pairs of `train` under BPE-dropout. Call `resume()` before `run()` to
    continue from the newest checkpoint.
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
        valid: Pairs | None = None,
        stop: StopRequest | None = None,
        processes: Processes = ALONE,
        resegmented: ResegmentedPairs | None = None,
    ) -> None:
        self.model, self.train, self.settings = model.to(device), train, settings
        self.resegmented = resegmented
        self.lock: FolderLock | None = None  # of `folder`, released when the run ends
        self.device, self.bf16, self.validator = device, bf16, validator
        self.processes = processes
        # Sampled with one seed, but perhaps on unlike machines: those of the first process count.
        self.processes.broadcast([*model.parameters(), *model.buffers()])
        training, batches = settings.training, settings.batches
        self.plan = plan_batches(train, settings, resegmented)
        # A single process has complete weights, whatever `shard` says.
        self.trained = TrainedModel(model, objective)
        if training.shard and self.processes.count > 1:
            self.trained = ShardedModel(model, objective, self.processes, device)
        self.optimiser = make_optimiser(model, training)
        self.updater = Updater(
            self.trained, self.optimiser, device, bf16=bf16, clip_norm=training.clip_norm,
            processes=self.processes,
        )  # fmt: skip
        every = training.watch_gradients
        self.watch = GradientWatch(model, every) if every else None
        self.rate = LearningRate(training)
        decay = training.ema_decay
        self.ema = ExponentialMovingAverage(model, decay) if decay else None
        self.checkpoints = Checkpoints(folder, training.average)
        self.selection = Selection(self.trained, validator, self.ema, training.best_by)
        self.progress = Progress()
        self.meter = UpdateSums.empty()
        self._heap = HeapTrimmer()
        self._data_facts = {
            "pairs": self.plan.count,
            "lengths": _checksum_of_lengths(train),
            "valid_lengths": None if valid is None else _checksum_of_lengths(valid),
        }
        self._batches = batches.accumulation * self.processes.count
        """Number of batches per update, over all processes."""
        self._world_size_changed = False
        self.notes = [*self._notes_on_validation(valid), *_notes_on_precision(bf16, device)]
        """Warnings to show before the run."""
        self.stop_request = stop or StopRequest()
        self.stopwatch = Stopwatch(training.clock, self.stop_request, self.processes)

    def _notes_on_validation(self, valid: Pairs | None) -> list[str]:
        training, notes = self.settings.training, [] if valid is None else _notes_on_blank(valid)
        if valid is not None and training.validate_bleu:
            longest = int(self.plan.lengths()[0].max())
            translated = valid.source_lengths[: training.validate_sentences or None]
            notes += _notes_on_length(translated, longest)
        if self.validator is None and self.ema is not None:
            notes.append(
                "There are no validation pairs to compare the average of `training.ema_decay` with "
                "the last weights: the model will have the last weights."
            )
        return notes

    def resume(self) -> bool:
        """Continue from the newest checkpoint; return False if there is none.

        Raises DataError unless the run was started and validated on the same pairs, ModelError if
        the weights belong to another model.
        """
        snapshot = self.checkpoints.load()
        if snapshot is None:
            return False
        try:
            state = convert(snapshot.facts, RunState)
            progress = Progress.from_json(state.progress)
        except ValueError as fault:
            raise self.checkpoints.damaged(fault) from fault
        advice = "Resume it with its original dataset."
        if state.pairs != self._data_facts["pairs"]:
            raise DataError(
                f"The run was started on {state.pairs:,} usable training pairs, but now there are "
                f"{self._data_facts['pairs']:,}.", advice,
            )  # fmt: skip
        if state.lengths not in (None, self._data_facts["lengths"]):
            raise DataError("The run was started on other training pairs.", advice)
        valid_lengths = state.valid_lengths, self._data_facts["valid_lengths"]
        if None not in valid_lengths and len(set(valid_lengths)) > 1:
            # The best loss so far is that of the previous pairs.
            raise DataError("The run was started on other validation pairs.", advice)
        try:
            self.trained.load(snapshot.weights)
        except RuntimeError as fault:
            raise ModelError(
                f"The saved weights do not match the model of {self.checkpoints.model_folder}: its "
                "settings, or the code of an own architecture, have been changed.",
                "Restore its `config.json`, or that code.",
            ) from fault  # fmt: skip
        # As many batches per update as before, redistributed over the current processes.
        self._batches = state.batches or self.settings.batches.accumulation
        self._world_size_changed = state.processes != self.processes.count
        self.processes.check(self._batches, even=self.trained.is_sharded)
        try:
            self._restore(state, progress, snapshot.tensors)
        except ValueError as fault:
            raise self.checkpoints.damaged(fault) from fault
        self.stopwatch.resume_at(progress.minutes)
        return True

    def compare_schedules(self, before: TrainingSettings) -> None:
        """Add notes if the next update differs from what it would be with the saved settings.

        They concern its learning rate, and whether settings that begin at a share of the run are
        active.
        """
        now, progress = self.settings.training, self.progress
        shares = [fraction_done(settings, progress, progress.minutes) for settings in (before, now)]
        starts = {"training.r_drop_from": now.r_drop_from if now.r_drop else 0.0}
        starts["objective.exits_from"] = getattr(self.settings.objective, "exits_from", 0.0)
        for name, start in starts.items():
            if (shares[0] >= start) != (shares[1] >= start):
                state = "has begun" if shares[1] >= start else "has not begun yet"
                self.notes.append(
                    f"The phase that `{name}={start:g}` starts {state} with the new limit: "
                    f"{100 * shares[1]:.0f} % of the run is done, instead of "
                    f"{100 * shares[0]:.0f} % with the previous limit."
                )
        self._compare_rates(before)

    def _compare_rates(self, before: TrainingSettings) -> None:
        now, progress = self.settings.training, self.progress
        saved = LearningRate(before)
        saved.restore(self.rate.state())
        rates = [rate.at(progress.update, progress.minutes) for rate in (saved, self.rate)]
        if rates[0] == rates[1]:
            return
        changed = ", ".join(
            f"`training.{name}` was {old}, is {getattr(now, name)}"
            for name, old in dataclasses.asdict(before).items()
            if old != getattr(now, name)
        )
        self.notes.append(
            f"The learning rate of update {progress.update + 1:,} is {rates[1]:.3g} with the new "
            f"settings ({changed}); with the previous ones it would have been {rates[0]:.3g}."
        )

    def _restore(self, state: RunState, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Restore counters and tensors. Raises ValueError if they do not fit the run."""
        last = max(state.best.update, state.ema_steps)
        if last > progress.update:
            raise ValueError(f"`best` or `ema_steps` refer to update {last:,}, after the last one")
        rank = "" if state.processes == 1 else f"{state.processes - 1}."
        if f"{_RANDOM}{rank}random.cpu" not in tensors:
            raise ValueError(f"it lacks the random numbers of {state.processes:,} processes")
        # An epoch has at least one batch.
        if progress.cursor.epoch > progress.update * self._batches or not self.plan.has(
            progress.cursor
        ):
            raise ValueError(f"there is no batch of the data at {progress.cursor}")
        restore_optimiser(
            self.optimiser, self.model, _below(tensors, _OPTIMISER), self.trained.like
        )
        if self.ema is not None:
            weights = _below(tensors, _EMA)
            self.ema.restore(weights, state.ema_steps, self.trained.put)
        # The seed is used if no random states were saved for this number of processes.
        seed = self.settings.training.seed + progress.update
        restore_random(tensors, self.processes, self.device, seed)
        self.rate.restore(state.rate)
        self.meter, self.progress, self.selection.best = state.meter, progress, state.best

    def run(self) -> Iterator[events.Event]:
        """Train until a limit is reached, or a stop is requested.

        Raises TrainingError if the loss is not finite or another process has gone, DeviceError if a
        pair does not fit into memory, StorageError if a checkpoint cannot be written; saved
        checkpoints stay.
        """
        try:
            yield from self._run()
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock of the folder."""
        if self.lock is not None:
            self.lock.release()

    def _run(self) -> Iterator[events.Event]:
        self.stopwatch.synchronise()
        yield events.Started(
            update=self.progress.update,
            minutes=self.stopwatch.minutes,
            pairs=self.plan.count,
            skipped=self.plan.skipped,
            parameters=self.model.count_parameters(),
            device=self.device.type,
            precision="bf16" if self.bf16 else "fp32",
            processes=self.processes.count,
            world_size_changed=self._world_size_changed,
        )
        is_new = torch.tensor(float(not self.checkpoints.existing()))
        # All processes check before the first one writes.
        if self.processes.sum(is_new).item():
            yield self._save(None)
        try:
            yield from self._train()
        except TrainingError as fault:
            # An update is counted before its loss is read.
            update = fault.done if isinstance(fault, NotFiniteError) else self.progress.update
            raise TrainingError(
                f"After update {update}: {fault.problem}",
                f"{fault.advice} The last saved state is kept: `--resume` continues from there.",
            ) from fault

    def _train(self) -> Iterator[events.Event]:
        """Train; yield the events after the first one."""
        training, progress, stopwatch = self.settings.training, self.progress, self.stopwatch
        reader = read_batches(
            self._read, self.plan, progress.cursor, self._batches, self.processes,
            ahead=self.device.type == "cuda",
        )  # fmt: skip
        # A run that was stopped just before a validation catches up on it.
        if progress.update and validation_is_due(training, progress, stopwatch.minutes):
            yield from self._validate(due=True)
        reason = stopwatch.stopped or end_reason(training, progress, stopwatch.minutes)
        while not reason:
            yield from self._update(reader)
            stopwatch.synchronise()
            if stopwatch.stopped:
                break
            wait = training.save_minutes
            if validation_is_due(training, progress, stopwatch.minutes):
                yield from self._validate(due=True)
            elif wait > 0 and stopwatch.minutes - progress.saved_minutes >= wait:
                yield self._save(None)
            reason = stopwatch.stopped or end_reason(training, progress, stopwatch.minutes)
        if not stopwatch.stopped:
            yield from self._conclude()
        elif progress.update != progress.saved_update:
            yield self._save(None)
        best, stopped = self.selection.best, stopwatch.stopped
        yield events.Finished(
            update=progress.update,
            epoch=progress.cursor.epoch,
            minutes=stopwatch.minutes,
            reason=stopped or reason,
            interrupted=bool(stopped),
            best=best.weights,
            best_update=best.update,
            best_nll=best.nll,
            bleu=best.bleu,
            cider=best.cider,
            best_criterion=best.criterion,
            was_validated=self.validator is not None and progress.validated_update > 0,
        )

    def _read(self, indices: NDArray[Any], epoch: int) -> Batch:
        """Return the batch of these pairs as the model sees them in an epoch."""
        rates = self.settings.batches.word_dropout
        if self.resegmented is None:
            batch = self.train.batch(indices)
        else:
            batch = self.resegmented.batch(indices, epoch)
        if any(rates):
            batch = drop_words(batch, rates, self.settings.training.seed, epoch)
        return batch

    def _update(self, reader: Iterator[tuple[DataCursor, list[Batch]]]) -> Iterator[events.Event]:
        """Do one update."""
        training, progress = self.settings.training, self.progress
        start = self.stopwatch.now()
        cursor, batches = next(reader)
        rate = self.rate.at(progress.update, self.stopwatch.minutes)
        share = fraction_done(training, progress, self.stopwatch.minutes)
        alpha = training.r_drop if training.r_drop and share >= training.r_drop_from else None
        # Whatever objectives change during training depends only on these numbers, so a resumed run
        # does the same.
        batches = [
            dataclasses.replace(batch, r_drop=alpha, update=progress.update, fraction_done=share)
            for batch in batches
        ]
        is_watched = self.watch is not None and self.watch.is_due(progress.update + 1)
        results = self.updater.launch(batches, rate, self.watch if is_watched else None)
        # Only now: an update that fails is not counted, and its batches are read again.
        progress.update += 1
        progress.cursor = cursor
        if self.ema is not None and progress.update % training.ema_updates == 0:
            self.ema.step()
        is_logged = progress.update % training.log_updates == 0
        if is_logged:
            results += self.updater.finish()
        self.meter.seconds += self.stopwatch.now() - start
        for result in results:
            yield from self._count(result)
        if self.device.type == "cpu" and progress.update % _TRIM_EVERY == 0:
            self._heap.trim()
        if is_logged:
            meter, self.meter = self.meter, UpdateSums.empty()
            minutes = self.stopwatch.minutes
            yield meter.event(training, progress, minutes, rate, self.plan, self._batches)

    def _count(self, result: UpdateResult) -> Iterator[events.Event]:
        """Add the result of an update to the meter; yield its gradients and split batches."""
        self.meter.add(result)
        progress = self.progress
        if result.gradients:
            yield events.Gradients(
                update=progress.update,
                epoch=progress.cursor.epoch,
                minutes=self.stopwatch.minutes,
                gradients=result.gradients,
                gradient_ratio=gradient_ratio(result.gradients),
            )
        if result.oom_splits:
            is_exact = not self.model.traits.batch_statistics
            yield events.BatchSplit(
                update=progress.update, times=result.oom_splits, is_exact=is_exact
            )

    def _validate(self, *, due: bool) -> Iterator[events.Event]:
        """Score the weights, keep them if they are the best, and save."""
        self._read_results()
        # Running statistics (batch normalisation) differ between processes, and so do their means.
        ema_buffers = [] if self.ema is None else self.ema.buffers()
        self.processes.broadcast([*self.model.buffers(), *ema_buffers])
        outcome, start = None, self.stopwatch.now()
        if self.validator is not None:
            outcome = self.selection.evaluate(self.progress.update)
            self.stopwatch.synchronise()
        # Only now: the next interval begins when the validation ends, however long that took.
        self.progress.validated(self.stopwatch.minutes, due=due)
        if outcome is None:
            yield self._save(None)
            return
        # A validation at the end of a run was not due: it must not affect a run that continues.
        value, progress = outcome.value, self.progress
        if due:
            self.rate.evaluated(outcome.score.value)
            progress.waited += 1
            # A loss that is not finite is no improvement, not even the first one.
            if value < (math.inf if progress.least_loss is None else progress.least_loss):
                progress.waited, progress.least_loss = 0, value
        # Saved after every validation, so that the best weights match the counters.
        yield self._validated(outcome, start)
        yield self._save(outcome.best)

    def _conclude(self) -> Iterator[events.Event]:
        """Validate the last weights unless done, and the average of the last checkpoints."""
        if self.progress.update != self.progress.validated_update:
            yield from self._validate(due=False)
        elif self.progress.update != self.progress.saved_update:
            yield self._save(None)
        most = self.settings.training.average
        if most < 2:
            return
        # All processes read the states: the mean is scored by all of them.
        average = self.checkpoints.average()
        if self.processes.is_first:
            self.checkpoints.write_average(average)
        yield events.Averaged(self.progress.update, self.checkpoints.averaged, most)
        if self.validator is None:
            return
        start = self.stopwatch.now()
        outcome = self.selection.evaluate(self.progress.update, average)
        yield self._validated(outcome, start)
        if outcome.best is not None:
            yield self._save(outcome.best)

    def _validated(self, outcome: Outcome, start: float) -> events.Validated:
        score, quality = outcome.score, outcome.quality
        return events.Validated(
            update=self.progress.update,
            epoch=self.progress.cursor.epoch,
            minutes=self.stopwatch.minutes,
            nll=score.nll,
            weights=outcome.weights,
            losses=outcome.losses,
            bleu=quality.bleu,
            is_best=outcome.best is not None,
            seconds=self.stopwatch.now() - start,
            cider=quality.cider,
            criterion=score.criterion,
            extra=score.extra,
        )

    def _read_results(self) -> None:
        """Wait for the last update: weights are not saved before its loss is known."""
        for result in self.updater.finish():
            self.meter.add(result)

    def _save(self, best: dict[str, Tensor] | None) -> events.Saved:
        """Save a state; called by all processes, each of which has shards and random states."""
        self._read_results()
        progress = self.progress
        progress.minutes = progress.saved_minutes = self.stopwatch.minutes
        progress.saved_update = progress.update
        moments = self.trained.unsharded(optimiser_tensors(self.optimiser, self.model))
        tensors = {f"{_OPTIMISER}{name}": value for name, value in moments.items()}
        if self.ema is not None:
            ema_weights = self.trained.unsharded(self.ema.weights)
            tensors |= {f"{_EMA}{name}": value for name, value in ema_weights.items()}
        states = random_states(self.device)
        if self.processes.count == 1:
            tensors |= {f"{_RANDOM}{name}": value for name, value in states.items()}
        else:
            for rank, packed in enumerate(self.processes.gather(pack_states(states))):
                for name, value in unpack_states(packed).items():
                    tensors[f"{_RANDOM}{rank}.{name}"] = value
        facts = {
            **self._data_facts,
            "progress": dataclasses.asdict(progress),
            "rate": dataclasses.asdict(self.rate.state()),
            "meter": dataclasses.asdict(self.meter),
            "best": dataclasses.asdict(self.selection.best),
            "ema_steps": self.ema.steps if self.ema is not None else 0,
            "batches": self._batches,
            "processes": self.processes.count,
        }
        weights = self.trained.unsharded(self.model.state_dict())
        if best is None and self.selection.best.nll is None:
            # Nothing has been validated yet: the newest weights are the best ones.
            best = weights
        snapshot = Snapshot(weights, tensors, facts, is_trained=progress.update > 0)
        folder = self.checkpoints.save(snapshot, best) if self.processes.is_first else Path()
        # Also a barrier: no process continues before the state is on the disk.
        first, *_ = self.processes.gather(os.fsencode(folder))
        minutes = self.stopwatch.minutes
        return events.Saved(update=self.progress.update, minutes=minutes, folder=os.fsdecode(first))


def restore_random(
    tensors: dict[str, Tensor], processes: Processes, device: torch.device, seed: int
) -> None:
    """Restore this process' random states, or start new ones from `seed`.

    A run that continues with another number of processes thus samples other dropout masks. Raises
    ValueError for an invalid state.
    """
    rank = "" if processes.count == 1 else f"{processes.rank}."
    states = _below(tensors, f"{_RANDOM}{rank}")
    if "random.cpu" in states:
        try:
            restore_random_states(states, device)
        except (RuntimeError, TypeError) as fault:
            raise ValueError("a random state is invalid") from fault
    else:
        seed_process(seed, processes)


def seed_process(seed: int, processes: Processes) -> None:
    """Seed the random numbers of each process differently; a single one uses `seed` itself."""
    torch.manual_seed((seed + 1_000_003 * processes.rank) % 2**63)


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, which is removed."""
    return {
        name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
    }


def _notes_on_blank(valid: Pairs) -> list[str]:
    """Return a warning if validation pairs have an empty side."""
    blank = int(((valid.source_lengths == 0) | (valid.target_lengths == 0)).sum())
    if not blank:
        return []
    return [
        f"{blank:,} of {len(valid.source_lengths):,} validation pairs have no text on one side and "
        "do not count in the loss: are the files parallel?"
    ]


def _notes_on_length(lengths: NDArray[Any], longest: int) -> list[str]:
    """Return a warning if validation sources are far longer than the `longest` in training."""
    far_longer = int((lengths > 2 * longest).sum())
    if not far_longer:
        return []
    return [
        f"{far_longer:,} of {len(lengths):,} validation sources are more than twice as long as any "
        f"in training ({longest:,} units), the longest one {lengths.max():,}: validation "
        "translates them whole, which takes long, whereas `decode` splits them. Split or remove "
        "these lines, or set `training.validate_bleu=false`."
    ]


def _notes_on_precision(bf16: bool, device: torch.device) -> list[str]:
    """Return a warning if bf16 is slower than fp32."""
    if not bf16 or device.type != "cpu" or has_fast_bf16(device):
        return []
    return [
        "`training.precision=bf16` is slower than fp32 on this processor: `auto` takes the faster "
        "one."
    ]


def _checksum_of_lengths(pairs: Pairs) -> str:
    """Return a checksum that identifies these pairs in this order."""
    digest = hashlib.sha256()
    for lengths in (pairs.source_lengths, pairs.target_lengths):
        # In parts: lengths of a mapped file are not copied into memory as a whole.
        for start in range(0, len(lengths), _HASHED_AT_ONCE):
            part = lengths[start : start + _HASHED_AT_ONCE]
            digest.update(numpy.ascontiguousarray(part, numpy.int64).tobytes())
    return digest.hexdigest()
