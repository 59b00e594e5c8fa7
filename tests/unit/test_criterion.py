"""What weights are chosen by where the likelihood alone would mislead."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtgrid.adaptive.halting_objective import CompoundLoss, HaltingSettings
from nmtgrid.analysis.training_curves import NAME, read_run
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.train.run import print_event
from nmtgrid.models.api import TranslationModel
from nmtgrid.training import events
from nmtgrid.training.api import LossParts
from nmtgrid.training.distributed import Processes
from nmtgrid.training.events import MetricsLog
from nmtgrid.training.settings import BatchSettings
from nmtgrid.training.validate import Score, SplitValidator
from tests.unit.test_dynamic import BATCH, EVERY, SOURCES, agent_path, along, grid, run
from tests.unit.test_exit_objectives import BATCH as EXIT_BATCH
from tests.unit.test_exit_objectives import model as with_halting
from tests.unit.test_validate import CPU, data
from tests.unit.tiny_run import Scores, trainer

__all__ = ["data"]


class Judged(Scores):
    """Tells of a likelihood and a criterion that disagree."""

    def __init__(self, *criteria: float) -> None:
        super().__init__(*criteria)

    def score(self, model: TranslationModel) -> Score:
        value = super().score(model).nll
        return Score(10.0 - value, value, {"agreement": 0.5})


def test_the_best_weights_are_those_of_the_least_criterion(tmp_path: Path) -> None:
    made = trainer(tmp_path, validator=Judged(3.0, 0.0, 2.0), max_updates=3, validate_updates=1)
    kept: dict[str, Tensor] = {}
    log = MetricsLog(tmp_path / NAME)
    for event in made.run():
        log.write(event)
        if isinstance(event, events.Validated):
            assert event.is_best == (event.update <= 2)
            if event.update == 2:
                kept = {name: t.clone() for name, t in made.model.state_dict().items()}
    assert isinstance(event, events.Finished)
    assert (event.best_update, event.best_nll, event.best_criterion) == (2, 10.0, 0.0)
    best = load_tensors(tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in best.items())
    read = read_run(tmp_path / NAME, "run")
    assert read.best is not None and (read.best["update"], read.best["criterion"]) == (2, 0.0)
    told = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert [line["extra"] for line in told if line["event"] == "validated"] == [
        {"agreement": 0.5}
    ] * 3


def test_patience_and_schedule_go_by_the_criterion(tmp_path: Path) -> None:
    made = trainer(
        tmp_path, validator=Judged(3.0, 2.0, 2.5, 2.5, 1.0), max_updates=50, validate_updates=1,
        patience=2, schedule="plateau", decay_patience=0,
    )  # fmt: skip
    *_, last = made.run()
    assert isinstance(last, events.Finished) and last.update == 4
    assert made.rate.factor < 1


def test_a_run_that_had_no_criterion_gets_one(tmp_path: Path) -> None:
    """The loss that earlier versions chose by is no bar to it."""
    list(trainer(tmp_path, validator=Scores(0.5), max_updates=1, validate_updates=1).run())
    made = trainer(tmp_path, validator=Judged(3.0), max_updates=2, validate_updates=1)
    made.resume()
    list(made.run())
    assert (made.selection.best.update, made.selection.best.criterion) == (2, 3.0)


def test_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("nmtgrid.base.console.say", told.append)
    event = events.Validated(4, 0, 0.1, 2.0, "last", {"last": 2.0}, None, True, 1.0, None, 3.25)
    print_event(event, None)
    print_event(dataclasses.replace(event, criterion=None), None)
    assert "criterion 3.2500" in told[0] and "criterion" not in told[1]


class Counting:
    """An objective whose sums are numbers of sentences and tokens."""

    def check(self, model: TranslationModel) -> None: ...
    def agent(self) -> None: ...
    def loss(self, model: TranslationModel, batch: object) -> LossParts:
        lengths: Tensor = batch.target_lengths  # type: ignore[attr-defined]
        count, tokens = torch.tensor(float(len(lengths))), lengths.sum()
        return LossParts(tokens, int(tokens), 2.0 * tokens, {"each": tokens}, count)


class Second(Processes):
    """One of two processes, of which the other has had no batch."""

    def gather(self, payload: bytes) -> list[bytes]:
        return [b"{}", payload]


@pytest.mark.parametrize("processes", [Processes(), Second()])
def test_a_split_is_scored_by_means_over_its_tokens(data: object, processes: Processes) -> None:
    split = data.split("valid")  # type: ignore[attr-defined]
    made = SplitValidator(
        data, split, Counting(), BatchSettings(max_tokens=60), CPU, with_quality=False,  # type: ignore[arg-type]
        processes=processes,
    )  # fmt: skip
    tokens = int(split.target_lengths.sum()) + len(split)
    assert made.score(torch.nn.Linear(1, 1)) == Score(2.0, len(split) / tokens, {"each": 1.0})  # type: ignore[arg-type]


def test_a_dynamic_agent_pays_for_its_delay() -> None:
    model = grid().eval()
    wanted = 0.0
    for sentence in EVERY:
        path = agent_path(model, sentence, 0.5)
        wanted += along(model, sentence, path)
        # The first read is free.
        wanted += sum(0.7 * (reads - 1) / SOURCES[sentence] for reads in path)
    found = run(model, delay_weight=0.7)
    assert found.criterion is not None
    assert float(found.criterion) == pytest.approx(wanted, rel=1e-5)
    assert run(model).criterion is None and len(BATCH) == len(EVERY)


def set_chances(model: TranslationModel, chance: float) -> None:
    """Let the geometric predictor stop with one chance everywhere."""
    logit = torch.tensor(chance).logit()
    for name, parameter in model.named_parameters():
        if "halting" in name:
            parameter.data.fill_(float(logit) if name.endswith("bias") else 0.0)


def test_a_predictor_that_never_exits_is_not_the_best() -> None:
    """It has the likelihood of the whole stack, but not what the oracle wants."""
    model = with_halting(halting="geometric").eval()
    model.classifier(1).weight.data.mul_(30)  # sure of itself, and wrong
    objective = CompoundLoss(HaltingSettings(depth_penalty=1000.0))
    parts = []
    for chance in (0.999, 0.001):
        set_chances(model, chance)
        parts.append(objective.loss(model, EXIT_BATCH))
    exits, never = parts
    assert float(exits.extra["oracle_exit"]) == float(exits.extra["average_exit"]) == exits.tokens
    assert float(never.extra["average_exit"]) == 3 * never.tokens
    assert float(never.nll) < float(exits.nll)
    assert exits.criterion is not None and never.criterion is not None
    assert float(exits.criterion) < float(never.criterion)
