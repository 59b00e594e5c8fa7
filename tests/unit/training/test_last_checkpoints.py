"""The mean of the last checkpoints is that of a run that nobody interrupted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.base.io.atomic import CHECKSUM, with_checksum, write_json
from nmtgrid.base.io.records import read_json
from nmtgrid.training import events
from nmtgrid.training.progress import StopRequest
from nmtgrid.training.trainer import Trainer
from tests.unit.helpers.tiny_run import Scores, trainer

States = dict[int, dict[str, Tensor]]


def run(training: Trainer, stop: StopRequest | None = None, at: int = 0) -> States:
    """Train, until `stop` after update `at`; return the weights after each update."""
    seen = {}
    for event in training.run():
        if isinstance(event, events.Updated):
            weights = training.model.state_dict()
            seen[event.update] = {name: tensor.clone() for name, tensor in weights.items()}
            if stop is not None and event.update == at:
                stop.reason = "stopped by the test"
    return seen


def average(folder: Path) -> dict[str, Tensor]:
    return load_tensors(folder / "average.safetensors")


def mean(states: States, updates: Sequence[int]) -> dict[str, Tensor]:
    return {
        name: torch.stack([states[update][name].double() for update in updates]).mean(0).float()
        for name in states[updates[0]]
    }


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


PLANS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "of validations alone": ({"average": 5, "max_updates": 4, "validate_updates": 2}, [2, 4]),
    "and of the end": ({"average": 3, "max_updates": 7, "validate_updates": 2}, [4, 6, 7]),
    "without any": ({"average": 3, "max_updates": 4}, [4]),
    "saved by the clock": (
        {"average": 2, "max_updates": 6, "validate_updates": 3, "save_minutes": 1e-9}, [3, 6]
    ),
}  # fmt: skip


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_it_is_of_the_states_of_validations_and_of_the_end(
    tmp_path: Path, name: str, validates: bool
) -> None:
    """Where there is nothing to validate on, of the states that would have been."""
    changes, updates = PLANS[name]
    training = trainer(tmp_path, validator=Scores(1.0) if validates else None, **changes)
    states = run(training)
    assert same(average(tmp_path), mean(states, updates))
    assert len(training.checkpoints.existing()) == len(updates)


@pytest.mark.parametrize("name", PLANS)
def test_it_is_told_of_how_many(tmp_path: Path, name: str) -> None:
    changes, updates = PLANS[name]
    training = trainer(tmp_path, validator=Scores(1.0), **changes)
    means = [event for event in training.run() if isinstance(event, events.Averaged)]
    assert means == [events.Averaged(changes["max_updates"], len(updates), changes["average"])]


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("broken_at", [1, 2, 3, 5])
def test_a_stop_does_not_count(tmp_path: Path, count: int, broken_at: int) -> None:
    changes: dict[str, Any] = {"average": count, "max_updates": 6, "validate_updates": 2}
    straight = run(trainer(tmp_path / "straight", validator=Scores(1.0), **changes))
    stop = StopRequest()
    first = trainer(tmp_path / "broken", validator=Scores(1.0), stop=stop, **changes)
    run(first, stop, broken_at)
    second = trainer(tmp_path / "broken", seed=99, validator=Scores(1.0), **changes)
    assert second.resume()
    run(second)
    assert same(average(tmp_path / "straight"), mean(straight, [2, 4, 6][-count:]))
    assert same(average(tmp_path / "broken"), average(tmp_path / "straight"))
    assert len(second.checkpoints.existing()) == min(count, 3)


@pytest.mark.parametrize(
    ("every", "epochs"), [({"validate_updates": 3}, 1.5), ({"validate_epochs": 2}, 4.5)], ids=str
)
def test_an_end_that_was_none_does_not_count(
    tmp_path: Path, every: dict[str, int], epochs: float
) -> None:
    """A run that goes on after its end has validated when one without that end would have."""
    changes: dict[str, Any] = {"average": 4, **every}
    each = len(trainer(tmp_path / "count").plan.epoch(0))
    limit = int(epochs * each)
    straight = trainer(tmp_path / "straight", validator=Scores(1.0), max_updates=limit, **changes)
    run(straight)
    assert len(straight.checkpoints.existing()) > 2
    for ended_at in (each + 1, limit):
        training = trainer(
            tmp_path / "parts", validator=Scores(1.0), max_updates=ended_at, **changes
        )
        assert training.resume() == (ended_at == limit)
        run(training)
    assert same(average(tmp_path / "parts"), average(tmp_path / "straight"))


def test_a_finished_run_makes_the_same_again(tmp_path: Path) -> None:
    """Also where the mean is the best and was saved with the state of the end, a second time."""
    changes: dict[str, Any] = {"average": 3, "max_updates": 5, "validate_updates": 2}
    training = trainer(tmp_path, validator=Scores(3.0, 3.0, 3.0, 1.0), **changes)
    states = run(training)
    assert training.selection.best.weights == "average"
    expected = mean(states, [2, 4, 5])
    assert same(load_tensors(tmp_path / "model.safetensors"), expected)
    (tmp_path / "average.safetensors").unlink()
    again = trainer(tmp_path, validator=Scores(1.0), **changes)
    assert again.resume()
    run(again)
    assert same(average(tmp_path), expected)


def test_states_that_do_not_tell_checkpoints_apart_go_on(tmp_path: Path) -> None:
    """They tell the last validation, whose state counts."""
    changes: dict[str, Any] = {"average": 3, "validate_updates": 2}
    training = trainer(tmp_path, validator=Scores(1.0), max_updates=2, **changes)
    states = run(training)
    path = training.checkpoints.existing()[-1] / "training.json"
    facts = read_json(path)
    del facts["progress"]["checkpoint_update"], facts[CHECKSUM]
    write_json(path, with_checksum(facts))
    again = trainer(tmp_path, validator=Scores(1.0), max_updates=5, **changes)
    assert again.resume()
    states |= run(again)
    assert same(average(tmp_path), mean(states, [2, 4, 5]))
