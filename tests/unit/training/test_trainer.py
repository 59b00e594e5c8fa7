"""The training loop: limits, events, and what happens when something goes wrong."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, DataError, TrainingError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.train.run import print_event
from nmtgrid.data.batches import Batch, DataCursor
from nmtgrid.models.api import PredictionSites, Traits, TranslationModel
from nmtgrid.training import events
from nmtgrid.training.events import (
    Progress,
    StopRequest,
    end_reason,
    fraction_done,
    is_due,
    minutes_left,
)
from nmtgrid.training.settings import BatchSettings, TrainingSettings
from nmtgrid.training.update import UpdateResult
from nmtgrid.training.validate import Quality, Score
from tests.unit.helpers.tiny_run import TYPES, Scores, Sentences, TinyModel, trainer


class Clocked(TinyModel):
    """An update takes a second of its clock."""

    seconds = 0.0

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        self.seconds += self.training
        return super().features(batch, sites)


class Slow(Scores):
    """A validation takes ninety seconds of a model's clock."""

    def score(self, model: TranslationModel) -> Score:
        assert isinstance(model, Clocked)
        model.seconds += 90
        return super().score(model)


def test_a_slow_validation_does_not_call_for_the_next_one(tmp_path: Path) -> None:
    model = Clocked()
    run = trainer(
        tmp_path / "m", model=model, validator=Slow(1.0), max_updates=200, validate_minutes=1.0
    )
    run.stopwatch.now = lambda: model.seconds
    run.stopwatch.resume_at(0.0)
    updates = [event.update for event in run.run() if isinstance(event, events.Validated)]
    # Three intervals of sixty updates, and the end.
    assert updates == [60, 120, 180, 200]


@pytest.mark.parametrize(
    ("validate_updates", "expected"),
    [
        (0, [0, 6, 12, 18, 20]),
        # Validations at 9 and 18 save too, and a minute begins with each save.
        (9, [0, 6, 9, 15, 18, 20]),
    ],
)
def test_states_are_saved_a_minute_after_the_last_one(
    validate_updates: int, expected: list[int], tmp_path: Path
) -> None:
    """And at the end; an update takes ten seconds here."""
    model = Clocked()
    run = trainer(
        tmp_path / "m", model=model, validator=Scores(1.0), max_updates=20, save_minutes=1.0,
        validate_updates=validate_updates,
    )  # fmt: skip
    run.stopwatch.now = lambda: 10 * model.seconds
    run.stopwatch.resume_at(0.0)
    assert [e.update for e in run.run() if isinstance(e, events.Saved)] == expected


class Exploding(TinyModel):
    """Its features are not numbers once it has seen `good` batches in training."""

    good = 3

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        features = super().features(batch, sites)
        if not self.training:
            return features
        self.good -= 1
        return features * (math.nan if self.good < 0 else 1.0)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_state(tmp_path: Path) -> None:
    sentences = Sentences()
    training = trainer(
        tmp_path, model=Exploding(), sentences=sentences, save_minutes=1e-9, max_updates=9
    )
    before: dict[str, Tensor] = {}
    with pytest.raises(TrainingError, match=r"After update 3: .*not finite") as caught:
        for event in training.run():
            if isinstance(event, events.Saved) and event.update == 3:
                before = {name: t.clone() for name, t in training.model.state_dict().items()}
                sentences.read = []
    # Lines count from 1.
    lines = ", ".join(str(index + 1) for index in sorted(sentences.read)[:20])
    assert f"(lines) {lines}" in caught.value.problem
    assert "learning rate" in caught.value.problem
    assert "last saved state is kept" in caught.value.advice
    for kept in (training.model.state_dict(), load_tensors(tmp_path / "model.safetensors")):
        assert all(torch.equal(tensor, before[name]) for name, tensor in kept.items())


def run_of(
    folder: Path, is_late: bool, *parts: int, **options: Any
) -> tuple[list[events.Event], dict[str, Tensor]]:
    """Return the events and the weights of a run, begun anew after each part of so many updates."""
    seen: list[events.Event] = []
    for number, updates in enumerate(parts):
        training = trainer(folder, max_updates=updates, **options)
        training.updater.is_late = is_late
        assert training.resume() == (number > 0)
        seen += training.run()
    return seen, training.model.state_dict()


def test_results_that_are_read_late_change_nothing(tmp_path: Path) -> None:
    """As on a GPU; in one run, and in one that is continued with sums of updates not logged."""
    options = {"log_updates": 3, "ema_decay": 0.9}
    expected, weights = run_of(tmp_path / "at once", False, 8, **options)
    names = ("update", "loss", "nll", "gradient_norm", "tokens", "learning_rate")
    for parts in ((8,), (5, 8)):
        seen, late = run_of(tmp_path / f"late {parts}", True, *parts, **options)
        assert all(torch.equal(weights[name], value) for name, value in late.items())
        figures = [
            [[getattr(event, name) for name in names] for event in run]
            for run in ([e for e in r if isinstance(e, events.Updated)] for r in (expected, seen))
        ]
        assert figures[0] == figures[1] and len(figures[0]) == 2


def test_a_loss_that_is_read_late_stops_with_the_weights_of_before(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first, second = Exploding(), Exploding()
    second.load_state_dict(first.state_dict())
    training = trainer(tmp_path, model=first, max_updates=9, log_updates=50)
    training.updater.is_late = True
    with pytest.raises(TrainingError, match=r"After update 3: .*not finite"):
        list(training.run())
    assert training.progress.update == 4
    list(trainer(tmp_path / "straight", model=second, max_updates=3).run())
    for weight, expected in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(weight, expected)


@pytest.mark.parametrize("meeting", [2, 3])
def test_a_process_that_is_gone_is_told_with_the_way_on(
    tmp_path: Path, meeting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the others notice it: here where they agree on whether to stop."""
    training = trainer(tmp_path, max_updates=9)
    meetings = []

    def agree() -> None:
        meetings.append(training.progress.update)
        if len(meetings) == meeting:
            raise TrainingError("Another process is gone.", "It says why.")

    monkeypatch.setattr(training.stopwatch, "synchronise", agree)
    with pytest.raises(TrainingError, match=rf"^After update {meeting - 1}: Another") as caught:
        list(training.run())
    assert caught.value.advice.startswith("It says why. ")
    assert "`--resume` continues from there" in caught.value.advice
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
    tmp_path: Path, messages: list[str], batch_statistics: bool
) -> None:
    training = trainer(tmp_path, model=Narrow(batch_statistics), max_updates=4)
    split = [event for event in training.run() if isinstance(event, events.BatchSplit)]
    assert split and all(event.is_exact != batch_statistics for event in split)
    with console.progress("") as bar:
        print_event(split[0], bar)
    assert ("the update is exact" in messages[-1]) != batch_statistics


def test_events_of_a_run(tmp_path: Path) -> None:
    training = trainer(tmp_path, validator=Scores(3.0, 2.0), max_updates=4, validate_updates=2)
    first, *_, last = happened = list(training.run())
    assert [type(event).__name__ for event in happened] == [
        "Started", "Saved", "Updated", "Updated", "Validated", "Saved",
        "Updated", "Updated", "Validated", "Saved", "Finished",
    ]  # fmt: skip
    assert isinstance(first, events.Started) and first.pairs == 40 and first.skipped == 0
    assert isinstance(last, events.Finished)
    assert (last.best_nll, last.best_update, last.best) == (2.0, 4, "last")
    assert last.reason == "limit of 4 updates reached" and not last.interrupted


def test_the_first_loss_is_near_log_v(tmp_path: Path) -> None:
    """With small weights no type is likelier than another before the first update."""
    training = trainer(tmp_path, max_updates=1)
    for parameter in training.model.parameters():
        torch.nn.init.normal_(parameter, std=0.01)
    (first,) = (event for event in training.run() if isinstance(event, events.Updated))
    assert first.nll == pytest.approx(math.log(TYPES), rel=0.01)
    assert first.loss == pytest.approx(math.log(TYPES), rel=0.01)


def test_the_loss_falls(tmp_path: Path) -> None:
    training = trainer(tmp_path, max_updates=150, log_updates=1, learning_rate=0.05)
    losses = [e.nll for e in training.run() if isinstance(e, events.Updated)]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_best_weights_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    training = trainer(
        tmp_path, validator=Scores(3.0, 1.0, 2.0, math.nan), max_updates=4, validate_updates=1
    )
    kept: dict[str, Tensor] = {}
    for event in training.run():
        if isinstance(event, events.Validated):
            assert event.is_best == (event.update <= 2)
            if event.update == 2:
                kept = {name: t.clone() for name, t in training.model.state_dict().items()}
    best = load_tensors(tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in best.items())
    last = load_tensors(tmp_path / "last.safetensors")
    assert not torch.equal(last["bias"], best["bias"])


@pytest.mark.parametrize("first", [math.nan, math.inf])
def test_a_first_validation_without_a_finite_loss_is_no_improvement(
    tmp_path: Path, first: float
) -> None:
    """It is saved and resumed, and the next finite loss is the least one."""
    options: dict[str, Any] = {"validate_updates": 1, "patience": 3}
    training = trainer(tmp_path, validator=Scores(first), max_updates=1, **options)
    *_, last = training.run()
    assert isinstance(last, events.Finished) and last.best_nll is None
    assert (training.progress.waited, training.progress.least_loss) == (1, None)
    following = trainer(tmp_path, validator=Scores(2.0, 3.0), max_updates=3, **options)
    assert following.resume() and following.progress.waited == 1
    *_, last = following.run()
    assert isinstance(last, events.Finished) and (last.best_nll, last.best_update) == (2.0, 2)
    assert (following.progress.waited, following.progress.least_loss) == (1, 2.0)


def test_patience_ends_the_run(tmp_path: Path) -> None:
    training = trainer(
        tmp_path, validator=Scores(3.0, 2.0, 2.0, 2.5, 1.0), max_updates=50, validate_updates=1,
        patience=2,
    )  # fmt: skip
    *_, last = training.run()
    assert isinstance(last, events.Finished)
    assert last.update == 4 and "no improvement in 2" in last.reason


class Preferring(Scores):
    """Prefers weights whose bias is near `bias`."""

    def __init__(self, bias: float) -> None:
        super().__init__(0.0)
        self.bias = bias
        self.seen: list[Tensor] = []

    def score(self, model: TranslationModel) -> Score:
        assert isinstance(model, TinyModel)
        self.seen.append(model.bias.detach().clone())
        return Score(float((model.bias.detach() - self.bias).abs().mean()))


def test_running_averages_and_averages_of_states_are_candidates(tmp_path: Path) -> None:
    # Biases start at zero and move away: the average lags behind and stays nearer to zero.
    training = trainer(
        tmp_path, validator=Preferring(0.0), validate_updates=4, ema_decay=0.9, ema_updates=1
    )
    validations = [event for event in training.run() if isinstance(event, events.Validated)]
    assert training.average is not None
    assert validations[-1].weights == "ema" and set(validations[-1].losses) == {"last", "ema"}
    best = load_tensors(tmp_path / "model.safetensors")
    assert torch.equal(best["bias"], training.average.weights["bias"])
    last = load_tensors(tmp_path / "last.safetensors")
    assert torch.equal(last["bias"], training.model.state_dict()["bias"])
    assert not torch.equal(last["bias"], best["bias"])


def test_a_running_average_is_over_every_second_update(tmp_path: Path) -> None:
    """Its second step keeps min(0.9, 1/2) of the first: the plain mean of both."""
    training = trainer(tmp_path, max_updates=5, ema_decay=0.9, ema_updates=2)
    seen = {}
    for event in training.run():
        if isinstance(event, events.Updated):
            seen[event.update] = training.model.state_dict()["bias"].clone()
    assert training.average is not None and training.average.steps == 2
    mean = (seen[2] + seen[4]) / 2
    torch.testing.assert_close(training.average.weights["bias"], mean)
    assert not torch.allclose(mean, (seen[4] + seen[5]) / 2)


class Translating(Scores):
    """A validator whose translations have these scores, one after another."""

    def __init__(self, losses: list[float], bleu: list[float]) -> None:
        super().__init__(*losses)
        self.bleu = bleu

    def quality(self, model: TranslationModel) -> Quality:
        return Quality(self.bleu.pop(0))


def test_the_best_translations_choose_weights_whatever_their_loss(tmp_path: Path) -> None:
    """A run that overfits: its loss rises from the second validation on."""
    options: dict[str, Any] = {"best_by": "bleu", "validate_updates": 1, "patience": 3}
    for parts in ((8,), (2, 8)):
        validator = Translating([2.0, 1.0, 3.0, 4.0, 5.0], [1.0, 4.0, 3.0, 5.0, 5.0, 2.0, 4.5, 9.0])
        folder, weights = tmp_path / f"{parts}", {}
        for number, updates in enumerate(parts):
            training = trainer(folder, validator=validator, max_updates=updates, **options)
            assert training.resume() == (number > 0)
            for event in training.run():
                if isinstance(event, events.Validated) and event.update == 4:
                    assert event.is_best
                    weights = {n: t.clone() for n, t in training.model.state_dict().items()}
        assert isinstance(event, events.Finished)
        # By loss the second validation would be the best one, and the fifth the last one.
        assert (event.best_update, event.bleu, event.best_nll) == (4, 5.0, 4.0)
        assert event.update == 7 and "no improvement in 3" in event.reason
        kept = load_tensors(folder / "model.safetensors")
        assert all(torch.equal(tensor, weights[name]) for name, tensor in kept.items())


class Opposed(Preferring):
    """Its loss prefers a bias near 0, its translations one far from it."""

    def quality(self, model: TranslationModel) -> Quality:
        assert isinstance(model, TinyModel)
        return Quality(float(model.bias.detach().abs().mean()))


@pytest.mark.parametrize(("by", "weights"), [("loss", "ema"), ("bleu", "last")])
def test_candidates_are_compared_by_what_the_best_is(by: str, weights: str, tmp_path: Path) -> None:
    training = trainer(
        tmp_path, validator=Opposed(0.0), validate_updates=4, ema_decay=0.9, ema_updates=1,
        best_by=by,
    )  # fmt: skip
    validations = [event for event in training.run() if isinstance(event, events.Validated)]
    assert validations[-1].weights == weights and set(validations[-1].losses) == {"last", "ema"}


def test_weights_without_a_score_are_not_the_best(tmp_path: Path) -> None:
    """Nor are those without a finite loss, however they translate."""
    validator = Translating([1.0, 1.0, 1.0, math.inf], [math.nan, 3.0, math.nan, 9.0])
    training = trainer(
        tmp_path, validator=validator, best_by="bleu", validate_updates=1, max_updates=4
    )
    *_, last = training.run()
    assert isinstance(last, events.Finished)
    assert (last.best_update, last.bleu) == (2, 3.0)


def test_the_average_of_the_last_states_is_a_candidate(tmp_path: Path) -> None:
    validator = Preferring(0.0)
    training = trainer(tmp_path, validator=validator, validate_updates=2, average=2, max_updates=6)
    seen = {}
    for event in training.run():
        if isinstance(event, events.Saved):
            seen[event.update] = training.model.state_dict()["bias"].clone()
    mean = (seen[4].double() + seen[6].double()) / 2
    averaged = load_tensors(tmp_path / "average.safetensors")
    assert torch.equal(averaged["bias"], mean.float())
    # The first evaluation, nearest to zero, stays the best; the average was scored at the end.
    assert torch.equal(validator.seen[-1], averaged["bias"])
    assert training.selection.best.update == 2


def test_a_stop_request_ends_after_the_update_and_saves(tmp_path: Path) -> None:
    stop = StopRequest()
    training = trainer(tmp_path, stop=stop, max_updates=100, validator=Scores(1.0))
    happened = []
    for event in training.run():
        happened.append(event)
        if isinstance(event, events.Updated) and event.update == 3:
            stop.reason = "stopped by SIGTERM"
    last = happened[-1]
    assert isinstance(last, events.Finished) and last.interrupted and last.update == 3
    assert not any(isinstance(event, events.Validated) for event in happened)
    assert not last.was_validated, "a validator that was never asked found no bad loss"
    again = trainer(tmp_path)
    assert again.resume() and again.progress.update == 3


def test_data_without_a_usable_pair_is_refused(tmp_path: Path) -> None:
    sentences = Sentences(3)
    sentences.pairs = [([5] * 200, [5])]
    with pytest.raises(DataError, match="longer than 100"):
        trainer(tmp_path, sentences=sentences)


def test_limits_and_intervals() -> None:
    settings = TrainingSettings(
        max_updates=100, max_minutes=5, max_epochs=2, validate_updates=10, validate_minutes=3,
        validate_epochs=0,
    )  # fmt: skip
    progress = Progress(update=10)
    assert end_reason(settings, progress, 4.9) == ""
    assert end_reason(settings, progress, 5.0) == "time limit of 5 min reached"
    assert end_reason(settings, Progress(update=100), 0) == "limit of 100 updates reached"
    assert is_due(settings, progress, 0.0)
    progress.validated(0.0, due=True)
    assert not is_due(settings, progress, 9.0)
    progress.update = 11
    assert not is_due(settings, progress, 2.9)
    assert is_due(settings, progress, 3.0)
    # 89 updates of 0.1 minutes, 4 minutes of the clock, 2 epochs of 30 minutes.
    assert minutes_left(settings, progress, 1.0, 0.0, 0.1, 30.0) == pytest.approx(4.0)
    assert minutes_left(settings, progress, 1.0, 0.0, 0.01, 30.0) == pytest.approx(0.89)
    # A tenth of an epoch.
    assert minutes_left(settings, progress, 1.0, 1.9, 1.0, 30.0) == pytest.approx(3.0)


def test_the_share_of_a_run_goes_by_the_nearest_limit() -> None:
    settings = TrainingSettings(max_updates=100, max_minutes=5, max_epochs=4)
    progress = Progress(update=30, cursor=DataCursor.begin(1))
    assert fraction_done(settings, progress, 1.0) == pytest.approx(0.3)
    assert fraction_done(settings, progress, 2.0) == pytest.approx(0.4)
    progress.cursor = DataCursor.begin(2)
    assert fraction_done(settings, progress, 2.0) == pytest.approx(0.5)
    by_time = TrainingSettings(max_updates=0, max_minutes=5)
    assert fraction_done(by_time, progress, 2.0) == pytest.approx(0.4)


class Counting(TinyModel):
    """It keeps how many sentences it has seen in training, pass by pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        if self.training:
            self.seen.append(len(batch))
        return super().features(batch, sites)


def test_r_drop_begins_where_it_is_told_to(tmp_path: Path) -> None:
    """With two passes over each sentence, tokens and pairs being counted once; never validated."""
    plain, late = Counting(), Counting()
    counted = []
    for name, model, alpha in (("plain", plain, 0.0), ("late", late, 5.0)):
        run = trainer(tmp_path / name, model=model, max_updates=5, r_drop=alpha, r_drop_from=0.6)
        counted.append([e.tokens for e in run.run() if isinstance(e, events.Updated)])
    # Three of five updates are 0.6 of the run.
    assert late.seen == [*plain.seen[:3], 2 * plain.seen[3], 2 * plain.seen[4]]
    assert counted[0] == counted[1]


class Asking(TinyModel):
    """It keeps what share of the run is over at each of its passes, validations too."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[float | None] = []

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        self.shares.append(batch.fraction_done)
        return super().features(batch, sites)


def test_objectives_see_the_share_of_the_run_that_is_over(tmp_path: Path) -> None:
    model = Asking()
    list(trainer(tmp_path, model=model, accumulation=2, max_updates=4).run())
    assert model.shares == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


def test_a_log_line_has_the_means_of_what_all_its_updates_report() -> None:
    meter = events.UpdateSums.empty()
    reports = [{"a": 2.0}, {"a": 4.0, "b": 8.0}, {"a": 6.0, "b": 8.0, "c": 1.0}]
    for extra in reports:
        meter.add(UpdateResult(1.0, 1.0, 4, 2, 9, 0.5, extra, 0))
    assert meter.extra == {"a": 12.0} and meter.tokens == 12
    meter = events.UpdateSums.empty()
    for extra in ({"a": 2.0, "b": 3.0}, {"b": 4.0}):
        meter.add(UpdateResult(1.0, 1.0, 4, 2, 9, 0.5, extra, 0))
    assert meter.extra == {"b": 7.0}


def test_a_log_line_by_hand(tmp_path: Path) -> None:
    """Of 3 updates with 2 batches of 4 pairs each, in 6 seconds, half an epoch of 10 batches in."""
    sums = events.UpdateSums(
        updates=3, loss=90.0, nll=60.0, tokens=30, cells=480, pairs=24, seconds=6.0,
        gradient_norm=0.75, extra={"a": 15.0},
    )  # fmt: skip
    plan = trainer(tmp_path).plan
    assert plan.count == 40
    progress = Progress(update=9, cursor=DataCursor(epoch=1, pool=0, batch=5))
    expected = events.Updated(
        update=9, epoch=1, minutes=2.5, learning_rate=0.01, loss=3.0, nll=2.0, gradient_norm=0.75,
        tokens_per_second=5.0, cells_per_second=80.0, minutes_left=None, extra={"a": 0.5},
        tokens=30,
    )  # fmt: skip
    limits = TrainingSettings(max_updates=12), TrainingSettings(max_updates=0, max_epochs=2)
    # 3 updates of 2 seconds; half of an epoch of 40 pairs at 4 a second.
    for chosen, left in zip(limits, (3 * 2 / 60, 0.5 * 10 / 60), strict=True):
        event = sums.event(chosen, progress, 2.5, 0.01, plan, 2)
        assert event.minutes_left == pytest.approx(left)
        assert dataclasses.replace(event, minutes_left=None) == expected


def test_settings_tell_all_their_faults() -> None:
    settings = TrainingSettings(
        learning_rate=0.0, beta1=1.0, max_updates=0, clip_norm=-1.0, decay_factor=2.0
    )
    faults = "\n".join(settings.faults())
    for name in ("learning_rate", "beta1", "max_updates", "clip_norm", "decay_factor"):
        assert f"training.{name}" in faults
    assert len(settings.faults()) == 5
    assert BatchSettings().faults() == []
    assert len(BatchSettings(max_tokens=0, accumulation=0, max_length=-1).faults()) == 3
    assert "max_minutes" in TrainingSettings(schedule="cosine-time").faults()[0]
    assert isinstance(ConfigError(settings.faults()).faults, list)


def test_long_validation_sources_are_told(tmp_path: Path) -> None:
    """Sources of training have 7 units at most: 14 are twice as many, 15 are more."""
    train, valid = Sentences(), Sentences()
    longest = max(train.source_lengths)
    assert longest == 7
    for length, words in ((14, ""), (15, "1 of 40 validation sources .* longest one 15:")):
        valid.pairs[3] = ([5] * length, [5])
        notes = " ".join(trainer(tmp_path, sentences=train, valid=valid).notes)
        assert re.search(words, notes) if words else not notes
    # Neither what is not translated.
    for settings in ({"validate_sentences": 3}, {"validate_bleu": False}):
        assert not trainer(tmp_path, sentences=train, valid=valid, **settings).notes


@pytest.mark.parametrize("is_fast", [True, False])
def test_slow_bf16_is_told(is_fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtgrid.training.trainer.has_fast_bf16", lambda device: is_fast)
    notes = " ".join(trainer(tmp_path, bf16=True).notes)
    assert ("slower than fp32 on this processor" in notes) is not is_fast
    assert not trainer(tmp_path / "fp32").notes
