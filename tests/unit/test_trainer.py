"""The training loop: limits, events, and what happens when something goes wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError, DataError, TrainingError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.train.run import show
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, Traits, TranslationModel
from nmtgrid.training import events
from nmtgrid.training.progress import Progress, StopRequest, end_reason, is_due, minutes_left
from nmtgrid.training.settings import BatchSettings, TrainingSettings
from nmtgrid.training.validate import Score
from tests.unit.tiny_run import Scores, Sentences, TinyModel, trainer


class Exploding(TinyModel):
    """Its features are not numbers once it has seen `good` batches in training."""

    good = 3

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        found = super().features(batch, sites)
        if not self.training:
            return found
        self.good -= 1
        return found * (math.nan if self.good < 0 else 1.0)


def test_a_loss_that_is_not_finite_stops_with_the_place_and_keeps_the_state(
    tmp_path: Path,
) -> None:
    sentences = Sentences()
    made = trainer(
        tmp_path, model=Exploding(), sentences=sentences, save_minutes=1e-9, max_updates=9
    )
    before: dict[str, Tensor] = {}
    with pytest.raises(TrainingError, match=r"After update 3: .*not finite") as caught:
        for event in made.run():
            if isinstance(event, events.Saved) and event.update == 3:
                before = {name: t.clone() for name, t in made.model.state_dict().items()}
                sentences.read = []
    # Lines count from 1.
    lines = ", ".join(str(place + 1) for place in sorted(sentences.read)[:20])
    assert f"(lines) {lines}" in caught.value.problem
    assert "learning rate" in caught.value.problem
    assert "last saved state is kept" in caught.value.advice
    assert all(torch.equal(t, before[n]) for n, t in made.model.state_dict().items())
    kept = load_tensors(tmp_path / "model.safetensors")
    assert all(torch.equal(t, before[n]) for n, t in kept.items())


@pytest.mark.parametrize("meeting", [2, 3])
def test_a_process_that_is_gone_is_told_with_the_way_on(
    tmp_path: Path, meeting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the others notice it: here where they agree on whether to stop."""
    made = trainer(tmp_path, max_updates=9)
    meetings = []

    def agree() -> None:
        meetings.append(made.progress.update)
        if len(meetings) == meeting:
            raise TrainingError("Another process is gone.", "It says why.")

    monkeypatch.setattr(made.stopwatch, "synchronise", agree)
    with pytest.raises(TrainingError, match=rf"^After update {meeting - 1}: Another") as caught:
        list(made.run())
    assert caught.value.advice.startswith("It says why. ")
    assert "`--resume` goes on from there" in caught.value.advice
    assert meetings == list(range(meeting))


class Narrow(TinyModel):
    """It holds two sentences, and perhaps takes statistics of what it holds."""

    def __init__(self, batch_statistics: bool) -> None:
        super().__init__()
        self.traits = Traits(batch_statistics=batch_statistics)

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        if len(batch) > 2:
            raise MemoryError
        return super().features(batch, sites)


@pytest.mark.parametrize("batch_statistics", [False, True])
def test_halves_are_called_exact_where_they_are(
    tmp_path: Path, told: list[str], batch_statistics: bool
) -> None:
    made = trainer(tmp_path, model=Narrow(batch_statistics), max_updates=4)
    split = [event for event in made.run() if isinstance(event, events.Split)]
    assert split and all(event.is_exact != batch_statistics for event in split)
    show(split[0], None)
    assert ("the update is exact" in told[-1]) != batch_statistics


def test_events_tell_the_run(tmp_path: Path) -> None:
    made = trainer(tmp_path, validator=Scores(3.0, 2.0), max_updates=4, validate_updates=2)
    told = list(made.run())
    kinds = [type(event).__name__ for event in told]
    assert kinds == [
        "Started", "Saved", "Updated", "Updated", "Validated", "Saved",
        "Updated", "Updated", "Validated", "Saved", "Finished",
    ]  # fmt: skip
    first = told[0]
    assert isinstance(first, events.Started) and first.pairs == 40 and first.skipped == 0
    last = told[-1]
    assert isinstance(last, events.Finished)
    assert (last.best_nll, last.best_update, last.best) == (2.0, 4, "last")
    assert last.reason == "4 updates are done" and not last.interrupted


def test_the_loss_falls_and_starts_near_log_v(tmp_path: Path) -> None:
    made = trainer(tmp_path, max_updates=150, log_updates=1, learning_rate=0.05)
    losses = [e.nll for e in made.run() if isinstance(e, events.Updated)]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_best_weights_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    made = trainer(
        tmp_path, validator=Scores(3.0, 1.0, 2.0, math.nan), max_updates=4, validate_updates=1
    )
    kept: dict[str, Tensor] = {}
    for event in made.run():
        if isinstance(event, events.Validated):
            assert event.is_best == (event.update <= 2)
            if event.update == 2:
                kept = {name: t.clone() for name, t in made.model.state_dict().items()}
    best = load_tensors(tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in best.items())
    last = load_tensors(tmp_path / "last.safetensors")
    assert not torch.equal(last["bias"], best["bias"])


def test_patience_ends_the_run(tmp_path: Path) -> None:
    made = trainer(
        tmp_path, validator=Scores(3.0, 2.0, 2.0, 2.5, 1.0), max_updates=50, validate_updates=1,
        patience=2,
    )  # fmt: skip
    *_, last = made.run()
    assert isinstance(last, events.Finished)
    assert last.update == 4 and "no improvement in 2" in last.reason


class Preferring(Scores):
    """Prefers weights whose bias is near `wanted`."""

    def __init__(self, wanted: float) -> None:
        super().__init__(0.0)
        self.wanted = wanted
        self.seen: list[Tensor] = []

    def score(self, model: TranslationModel) -> Score:
        assert isinstance(model, TinyModel)
        self.seen.append(model.bias.detach().clone())
        return Score(float((model.bias.detach() - self.wanted).abs().mean()))


def test_the_running_average_is_a_candidate(tmp_path: Path) -> None:
    # Biases start at zero and move away: the average lags behind and stays nearer to zero.
    made = trainer(
        tmp_path, validator=Preferring(0.0), validate_updates=4, ema_decay=0.9, ema_updates=1
    )
    told = [event for event in made.run() if isinstance(event, events.Validated)]
    assert made.average is not None
    assert told[-1].weights == "ema" and set(told[-1].losses) == {"last", "ema"}
    best = load_tensors(tmp_path / "model.safetensors")
    assert torch.equal(best["bias"], made.average.weights["bias"])
    last = load_tensors(tmp_path / "last.safetensors")
    assert torch.equal(last["bias"], made.model.state_dict()["bias"])
    assert not torch.equal(last["bias"], best["bias"])


def test_the_average_of_the_last_states_is_a_candidate(tmp_path: Path) -> None:
    validator = Preferring(0.0)
    made = trainer(tmp_path, validator=validator, validate_updates=2, average=2, max_updates=6)
    seen = {}
    for event in made.run():
        if isinstance(event, events.Saved):
            seen[event.update] = made.model.state_dict()["bias"].clone()
    mean = (seen[4].double() + seen[6].double()) / 2
    averaged = load_tensors(tmp_path / "average.safetensors")
    assert torch.equal(averaged["bias"], mean.float())
    # The first evaluation, nearest to zero, stays the best; the average was scored at the end.
    assert torch.equal(validator.seen[-1], averaged["bias"])
    assert made.selection.best.update == 2


def test_a_stop_request_ends_after_the_update_and_saves(tmp_path: Path) -> None:
    stop = StopRequest()
    made = trainer(tmp_path, stop=stop, max_updates=100, validator=Scores(1.0))
    told = []
    for event in made.run():
        told.append(event)
        if isinstance(event, events.Updated) and event.update == 3:
            stop.reason = "stopped by SIGTERM"
    last = told[-1]
    assert isinstance(last, events.Finished) and last.interrupted and last.update == 3
    assert not any(isinstance(event, events.Validated) for event in told)
    again = trainer(tmp_path)
    assert again.resume() and again.progress.update == 3


def test_data_without_a_usable_pair_is_refused(tmp_path: Path) -> None:
    sentences = Sentences(3)
    sentences.pairs = [([5] * 200, [5])]
    with pytest.raises(DataError, match="longer than 100"):
        trainer(tmp_path, sentences=sentences)


def test_limits_and_intervals() -> None:
    made = TrainingSettings(
        max_updates=100, max_minutes=5, max_epochs=2, validate_updates=10, validate_minutes=3,
        validate_epochs=0,
    )  # fmt: skip
    progress = Progress(update=10)
    assert end_reason(made, progress, 4.9) == ""
    assert end_reason(made, progress, 5.0) == "5 minutes are over"
    assert end_reason(made, Progress(update=100), 0) == "100 updates are done"
    assert is_due(made, progress, 0.0)
    progress.validated(0.0, due=True)
    assert not is_due(made, progress, 9.0)
    progress.update = 11
    assert not is_due(made, progress, 2.9)
    assert is_due(made, progress, 3.0)
    # 89 updates of 0.1 minutes, 4 minutes of the clock, 2 epochs of 30 minutes.
    assert minutes_left(made, progress, 1.0, 0.0, 0.1, 30.0) == pytest.approx(4.0)
    assert minutes_left(made, progress, 1.0, 0.0, 0.01, 30.0) == pytest.approx(0.89)
    # A tenth of an epoch.
    assert minutes_left(made, progress, 1.0, 1.9, 1.0, 30.0) == pytest.approx(3.0)


def test_settings_tell_all_their_faults() -> None:
    made = TrainingSettings(
        learning_rate=0.0, beta1=1.0, max_updates=0, clip_norm=-1.0, decay_factor=2.0
    )
    told = "\n".join(made.faults())
    for name in ("learning_rate", "beta1", "max_updates", "clip_norm", "decay_factor"):
        assert f"training.{name}" in told
    assert len(made.faults()) == 5
    assert BatchSettings().faults() == []
    assert len(BatchSettings(max_tokens=0, accumulation=0, max_length=-1).faults()) == 3
    assert "max_minutes" in TrainingSettings(schedule="cosine-time").faults()[0]
    assert isinstance(ConfigError(made.faults()).faults, list)
