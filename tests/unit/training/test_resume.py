"""An interrupted run is the same run, bit for bit."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import DataError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.models.api import TranslationModel
from nmtgrid.training import events
from nmtgrid.training.progress import StopRequest
from nmtgrid.training.trainer import Trainer
from nmtgrid.training.validate import Score
from tests.unit.helpers.tiny_run import Scores, Sentences, trainer


def saved(training: Trainer) -> dict[str, Any]:
    """All that the newest state holds, times apart."""
    folder = training.checkpoints.existing()[-1]
    values: dict[str, Any] = {}
    for file in ("last.safetensors", "training.safetensors"):
        values |= {f"{file}:{name}": t for name, t in load_tensors(folder / file).items()}
    facts: dict[str, Any] = json.loads((folder / "training.json").read_text())
    facts["meter"].pop("seconds")
    facts.pop("sha256")  # of the times too
    for name in ("minutes", "saved_minutes", "saved_update", "validated_minutes"):
        facts["progress"].pop(name)
    return values | facts


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    assert first.keys() == second.keys()
    return all(
        torch.equal(value, second[name])
        if isinstance(value, torch.Tensor)
        else (value == second[name])
        for name, value in first.items()
    )


def same_files(first: Path, second: Path, file: str) -> bool:
    return same(load_tensors(first / file), load_tensors(second / file))


def run_until(training: Trainer, stop: StopRequest, update: int) -> None:
    for event in training.run():
        if isinstance(event, (events.Updated, events.Validated)) and event.update == update:
            stop.reason = "stopped by the test"


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"accumulation": 3},
    "running average": {"ema_decay": 0.9, "ema_updates": 2},
    "nesterov": {"optimiser": "nesterov"},
    "adam": {"optimiser": "adam"},
    "cosine": {"schedule": "cosine"},
    "r-drop": {"r_drop": 5.0, "r_drop_from": 0.5},
    "across epochs": {"accumulation": 4, "max_updates": 8},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("broken_at", [1, 2, 3])
def test_stopped_and_resumed_equals_straight(tmp_path: Path, name: str, broken_at: int) -> None:
    changes = SETTINGS[name]
    straight = trainer(tmp_path / "straight", **changes)
    list(straight.run())
    stop = StopRequest()
    first = trainer(tmp_path / "broken", stop=stop, **changes)
    run_until(first, stop, broken_at)
    # The random state of the process that goes on is another one.
    second = trainer(tmp_path / "broken", seed=99, **changes)
    assert second.resume()
    assert second.progress.update == broken_at
    list(second.run())
    assert same(saved(straight), saved(second))


def test_a_run_differs_with_its_seed(tmp_path: Path) -> None:
    first, second = trainer(tmp_path / "1"), trainer(tmp_path / "2", seed=2)
    list(first.run())
    list(second.run())
    assert not same(saved(first), saved(second))


def test_meters_go_on_between_two_log_lines(tmp_path: Path) -> None:
    def logged(training: Trainer) -> list[float]:
        return [e.loss for e in training.run() if isinstance(e, events.Updated)]

    straight = logged(trainer(tmp_path / "straight", log_updates=4))
    first = trainer(tmp_path / "broken", log_updates=4, max_updates=2)
    assert logged(first) == []
    second = trainer(tmp_path / "broken", log_updates=4)
    second.resume()
    assert logged(second) == straight


def test_plateau_and_best_go_on(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "schedule": "plateau", "decay_patience": 2, "validate_updates": 1, "max_updates": 6,
    }  # fmt: skip
    losses = [3.0, 2.0, 2.5, 2.5, 2.5, 2.5]
    straight = trainer(tmp_path / "straight", validator=Scores(*losses), **changes)
    list(straight.run())
    stop = StopRequest()
    first = trainer(tmp_path / "broken", validator=Scores(*losses), stop=stop, **changes)
    for event in first.run():
        if isinstance(event, events.Validated) and event.update == 3:
            stop.reason = "stopped by the test"
    second = trainer(tmp_path / "broken", validator=Scores(2.5), **changes)
    second.resume()
    list(second.run())
    assert second.rate.factor == pytest.approx(0.64)
    assert (second.selection.best.nll, second.selection.best.update) == (2.0, 2)
    assert same(saved(straight), saved(second))
    assert same_files(tmp_path / "straight", tmp_path / "broken", "model.safetensors")


def test_a_validation_at_a_limit_is_none_that_was_due(tmp_path: Path) -> None:
    """It would count for the schedule and for patience, and the run go on otherwise."""
    losses = {3: 2.0, 6: 2.5, 9: 2.5, 12: 2.5}

    class AtUpdates(Scores):
        """Scores by the update, 1.9 where none is due."""

        def score(self, model: TranslationModel) -> Score:
            return Score(losses.get(running.progress.update, 1.9))

    changes: dict[str, Any] = {
        "validator": AtUpdates(0.0), "schedule": "plateau", "decay_patience": 2,
        "validate_updates": 3, "patience": 9,
    }  # fmt: skip
    running = straight = trainer(tmp_path / "one", max_updates=12, **changes)
    list(running.run())
    for limit in (5, 7, 12):
        running = trainer(tmp_path / "two", max_updates=limit, **changes)
        assert running.resume() == (limit > 5)
        list(running.run())
    assert running.rate.state() == straight.rate.state()
    assert running.progress.waited == straight.progress.waited == 3
    assert same_files(tmp_path / "one", tmp_path / "two", "last.safetensors")


def test_each_pair_is_read_once_in_an_epoch_across_the_break(tmp_path: Path) -> None:
    sentences = Sentences()
    batches = len(trainer(tmp_path / "count").plan.epoch(0))
    first = trainer(tmp_path / "m", sentences=sentences, max_updates=3)
    list(first.run())
    second = trainer(tmp_path / "m", sentences=sentences, max_updates=batches)
    second.resume()
    list(second.run())
    assert sorted(sentences.read) == list(range(40))
    assert second.progress.cursor.epoch == 1


def test_other_data_are_refused(tmp_path: Path) -> None:
    list(trainer(tmp_path / "m", max_updates=1).run())
    with pytest.raises(DataError, match=r"40 .* 41"):
        trainer(tmp_path / "m", sentences=Sentences(41)).resume()


_KILLED = """
import sys, time
from pathlib import Path
from nmtgrid.models.api import TranslationModel
from nmtgrid.training import events
from tests.unit.helpers.tiny_run import trainer
import torch
torch.set_num_threads(1)
training = trainer(Path(sys.argv[1]), max_updates=100000, save_minutes=1e-9, log_updates=1)
for event in training.run():
    if isinstance(event, events.Saved):
        print(event.update, flush=True)
"""


def test_resumes_after_a_kill_at_any_moment(tmp_path: Path, project: Path) -> None:
    folder = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(folder)], stdout=subprocess.PIPE, cwd=project, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 3:
            break
    time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    resumed = trainer(folder, seed=5, max_updates=100000, save_minutes=1e-9)
    assert resumed.resume()
    reached = resumed.progress.update
    assert reached >= 3
    ended = trainer(folder, seed=5, max_updates=reached + 2)
    ended.resume()
    list(ended.run())
    straight = trainer(tmp_path / "straight", max_updates=reached + 2)
    list(straight.run())
    assert same(saved(straight), saved(ended))
