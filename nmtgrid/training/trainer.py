"""The training loop: a generator of events that prints nothing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from nmtgrid.base.errors import DataError, ModelError, TrainingError
from nmtgrid.base.memory import give_back
from nmtgrid.base.seeding import random_states, restore_random_states
from nmtgrid.data.batches import BatchPlan, Place
from nmtgrid.models.api import TranslationModel
from nmtgrid.training import events
from nmtgrid.training.api import Objective
from nmtgrid.training.averaging import RunningAverage
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.gradients import GradientWatch, gradient_ratio
from nmtgrid.training.limits import Progress, end_reason, is_due, minutes_left
from nmtgrid.training.meters import Meter
from nmtgrid.training.optimiser import (
    Clock,
    LearningRate,
    make_optimiser,
    optimiser_tensors,
    restore_optimiser,
)
from nmtgrid.training.pairs import Pairs, check_same, describe_pairs
from nmtgrid.training.selection import Best, Outcome, Selection
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.update import Updater
from nmtgrid.training.validate import Validator

_GIVE_BACK_EVERY = 20
"""Updates after which freed memory goes back to the system: batches of ever-changing shapes leave
holes in the heap, gigabytes within an hour."""


@dataclasses.dataclass
class StopRequest:
    """Set from outside (by a signal): the run ends after the update that it is in."""

    reason: str = ""


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
    ) -> None:
        self.model, self.train, self.settings = model.to(device), train, settings
        self.device, self.bf16 = device, bf16
        self.validator, self.stop = validator, stop or StopRequest()
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
        self.optimiser = make_optimiser(model, training)
        self.updater = Updater(
            model, objective, self.optimiser, device, bf16=bf16, clip_norm=training.clip_norm
        )
        every = training.watch_gradients
        self.watch = GradientWatch(model, every) if every else None
        self.rate = LearningRate(training)
        self.average = RunningAverage(model, training.ema_decay) if training.ema_decay else None
        self.checkpoints = Checkpoints(folder, training.average)
        self.selection = Selection(model, validator, self.average)
        self.progress = Progress()
        self.meter = Meter()
        self._data_facts = describe_pairs(train, self.plan.count)
        self._clock = time.process_time if training.clock == "processor" else time.monotonic
        self._started = self._clock()
        self._carried = 0.0

    @property
    def minutes(self) -> float:
        """Minutes that the run has taken, those before a resumption included."""
        return self._carried + (self._clock() - self._started) / 60

    def resume(self) -> bool:
        """Go on from the newest saved state; return False if there is none."""
        snapshot = self.checkpoints.load()
        if snapshot is None:
            return False
        facts, tensors = snapshot.facts, snapshot.tensors
        check_same(facts, self._data_facts)
        try:
            self.model.load_state_dict(snapshot.weights)
        except RuntimeError as fault:
            raise ModelError(
                f"The saved weights do not fit the model of {self.checkpoints.model_folder}: its "
                "settings have been changed.", "Restore its `config.json`.",
            ) from fault  # fmt: skip
        restore_optimiser(self.optimiser, self.model, _below(tensors, "optimiser|"))
        restore_random_states(_below(tensors, "state|"))
        if self.average is not None:
            # A run that had no running average yet begins it with the weights of now.
            held = _below(tensors, "ema|") or dict(self.model.named_parameters())
            self.average.restore(held, facts["ema_steps"])
        self.rate.restore(facts["rate"])
        self.meter = Meter(**facts["meter"])
        self.progress = Progress.from_json(facts["progress"])
        self.selection.best = Best(**facts["best"])
        self._carried, self._started = self.progress.minutes, self._clock()
        return True

    def run(self) -> Iterator[events.Event]:
        """Train until a limit is reached, or `stop` asks for the end.

        Raises: TrainingError when the loss is not finite, DeviceError when a single pair does not
        fit into memory, StorageError when a state cannot be written; what was saved stays.
        """
        yield self._start_event()
        if not self.checkpoints.existing():
            yield self._save(None)
        walk = self.plan.walk(self.progress.place)
        reason = self._end_reason()
        while not reason:
            yield from self._update(walk)
            if self.stop.reason:
                break
            if is_due(self.settings.training, self.progress, self.minutes):
                yield from self._validate()
            elif self._save_is_due():
                yield self._save(None)
            reason = self._end_reason()
        if not self.stop.reason:
            yield from self._conclude()
        elif self.progress.update != self.progress.saved_update:
            yield self._save(None)
        best = self.selection.best
        yield events.Finished(
            self.progress.update, self.progress.place.epoch, self.minutes,
            self.stop.reason or reason, bool(self.stop.reason), best.weights, best.update,
            best.nll, best.bleu,
        )  # fmt: skip

    def _update(self, walk: Iterator[tuple[Place, NDArray[Any]]]) -> Iterator[events.Event]:
        """Do one update."""
        began = self._clock()
        taken = [next(walk) for _ in range(self.settings.batches.accumulation)]
        batches = [self.train.batch(indices) for _, indices in taken]
        rate = self.rate.at(Clock(self.progress.update, self.minutes))
        watch = self.watch and self.watch.due(self.progress.update + 1)
        try:
            result = self.updater.apply(batches, rate, watch)
        except TrainingError as fault:
            raise TrainingError(
                f"Update {self.progress.update + 1}: {fault.problem}",
                f"{fault.advice} The state of update {self.progress.saved_update} is kept: "
                "`--resume` goes on from there.",
            ) from fault
        self.progress.update += 1
        self.progress.place = taken[-1][0]
        training = self.settings.training
        if self.average is not None and self.progress.update % training.ema_updates == 0:
            self.average.step()
        self.meter.add(result, self._clock() - began)
        if result.gradients:
            yield events.Gradients(
                self.progress.update, self.progress.place.epoch, self.minutes, result.gradients,
                gradient_ratio(result.gradients),
            )  # fmt: skip
        if result.splits:
            yield events.Split(self.progress.update, result.splits)
        if self.device.type == "cpu" and self.progress.update % _GIVE_BACK_EVERY == 0:
            give_back()
        if self.progress.update % training.log_updates == 0:
            yield self._log(rate)

    def _log(self, rate: float) -> events.Updated:
        meter, self.meter = self.meter, Meter()
        seconds = max(meter.seconds, 1e-9)
        left = minutes_left(
            self.settings.training, self.progress, self.minutes, seconds / 60 / meter.updates,
            self.plan.count / max(meter.pairs, 1) * seconds / 60,
        )  # fmt: skip
        return events.Updated(
            update=self.progress.update,
            epoch=self.progress.place.epoch,
            minutes=self.minutes,
            learning_rate=rate,
            loss=meter.loss / meter.tokens,
            nll=meter.nll / meter.tokens,
            gradient_norm=meter.gradient_norm,
            tokens_per_second=meter.tokens / seconds,
            cells_per_second=meter.cells / seconds,
            minutes_left=left,
            extra={name: value / meter.tokens for name, value in meter.extra.items()},
            tokens=meter.tokens,
        )

    def _validate(self) -> Iterator[events.Event]:
        """Score the weights, keep them if they are the best, and save."""
        self.progress.validated(self.minutes)
        if self.validator is None:
            yield self._save(None)
            return
        began = self._clock()
        outcome = self.selection.evaluate(self.progress.update)
        self.rate.evaluated(outcome.nll)
        self.progress.waited = 0 if outcome.is_best else self.progress.waited + 1
        yield self._validated(outcome, began)
        yield self._save(outcome.best)

    def _validated(self, outcome: Outcome, began: float) -> events.Validated:
        return events.Validated(
            self.progress.update, self.progress.place.epoch, self.minutes, outcome.nll,
            outcome.weights, outcome.losses, outcome.bleu, outcome.is_best,
            self._clock() - began,
        )  # fmt: skip

    def _conclude(self) -> Iterator[events.Event]:
        """Validate what has not been, and the average of the last states."""
        if self.progress.update != self.progress.validated_update:
            yield from self._validate()
        elif self.progress.update != self.progress.saved_update:
            yield self._save(None)
        count = self.settings.training.average
        averaged = self.checkpoints.average(count) if count > 1 else None
        if averaged is None:
            return
        self.checkpoints.write_average(averaged)
        if self.validator is None:
            return
        began = self._clock()
        outcome = self.selection.evaluate_average(self.progress.update, averaged)
        yield self._validated(outcome, began)
        if outcome.is_best:
            yield self._save(outcome.best)

    def _save(self, best: dict[str, torch.Tensor] | None) -> events.Saved:
        self.progress.saved(self.minutes)
        tensors = {f"state|{name}": value for name, value in random_states().items()}
        held = optimiser_tensors(self.optimiser, self.model)
        tensors |= {f"optimiser|{name}": value for name, value in held.items()}
        if self.average is not None:
            tensors |= {f"ema|{name}": value for name, value in self.average.weights.items()}
        facts = {
            **self._data_facts,
            "progress": self.progress.to_json(),
            "rate": self.rate.state(),
            "meter": dataclasses.asdict(self.meter),
            "best": dataclasses.asdict(self.selection.best),
            "ema_steps": self.average.steps if self.average is not None else 0,
        }
        if best is None and self.selection.best.nll is None:
            # Nothing has been validated yet: the newest weights are the chosen ones.
            best = self.model.state_dict()
        place = self.checkpoints.save(Snapshot(self.model.state_dict(), tensors, facts), best)
        return events.Saved(self.progress.update, self.minutes, str(place))

    def _save_is_due(self) -> bool:
        wait = self.settings.training.save_minutes
        return wait > 0 and self.minutes - self.progress.saved_minutes >= wait

    def _end_reason(self) -> str:
        return self.stop.reason or end_reason(self.settings.training, self.progress, self.minutes)

    def _start_event(self) -> events.Started:
        return events.Started(
            self.progress.update, self.minutes, self.plan.count, self.plan.skipped,
            self.model.count_parameters(), self.device.type, "bf16" if self.bf16 else "fp32",
        )  # fmt: skip


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors whose names start with `prefix`, without it."""
    held = tensors.items()
    return {name[len(prefix) :]: value for name, value in held if name.startswith(prefix)}
