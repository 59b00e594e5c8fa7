"""Saved states appear whole or not at all."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.training import checkpoint
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.progress import Progress
from nmtgrid.training.weights import RunningAverage, swapped_weights
from tests.unit.tiny_run import TinyModel


def snapshot(value: float) -> Snapshot:
    weights = {"w": torch.full((3,), value)}
    return Snapshot(weights, {"moment": torch.full((2,), -value)}, {"update": int(value)})


def checkpoint_of(update: int, *, due: bool = True) -> Snapshot:
    """A state whose weights are the number of its update, of a validation that was due or not."""
    progress = Progress(update=update)
    if due:
        progress.validated(0.0, due=True)
    held = snapshot(float(update))
    return dataclasses.replace(held, facts={"progress": progress.to_json()})


def value(path: Path) -> float:
    return float(load_tensors(path)["w"][0])


def test_the_newest_state_comes_back_with_the_best_weights_before_it(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    assert states.load() is None
    states.save(snapshot(1.0), {"w": torch.full((3,), 7.0)})
    states.save(snapshot(2.0), None)
    held = states.load()
    assert held is not None
    assert held.facts == {"update": 2}
    assert held.weights["w"][0] == 2.0 and held.tensors["moment"][0] == -2.0
    assert value(tmp_path / "model.safetensors") == 7.0
    assert value(tmp_path / "last.safetensors") == 2.0
    assert len(states.existing()) == 1


def test_without_a_best_the_last_weights_count(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(snapshot(1.0), None)
    assert value(tmp_path / "model.safetensors") == 1.0


def test_the_last_n_keep_their_weights_for_the_average(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path, keep=3)
    for number in (1, 2, 4, 6):
        states.save(checkpoint_of(number), None)
    names = [sorted(file.name for file in place.iterdir()) for place in states.existing()]
    assert names[:2] == [["last.safetensors"]] * 2
    assert len(names) == 3 and "training.json" in names[2]
    averaged = states.average()
    assert averaged["w"].tolist() == [4.0, 4.0, 4.0]
    assert averaged["w"].dtype == torch.float32


def test_other_states_make_no_checkpoint_go(tmp_path: Path) -> None:
    """Nor do they stay once there is a newer one."""
    states = Checkpoints(tmp_path, keep=3)
    for number, due in ((0, True), (2, True), (3, False), (4, True), (5, False), (9, False)):
        states.save(checkpoint_of(number, due=due), None)
    assert [value(place / "last.safetensors") for place in states.existing()] == [2.0, 4.0, 9.0]
    assert states.average()["w"].tolist() == [5.0] * 3


def test_a_single_state_is_its_own_mean(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path, keep=3)
    states.save(checkpoint_of(5, due=False), None)
    assert states.average()["w"].tolist() == [5.0] * 3


def test_a_kill_before_old_states_go_leaves_the_same_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = Checkpoints(tmp_path, keep=3)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "_prune", lambda _: None)
        for number, due in ((1, True), (2, False), (3, True), (3, True)):
            states.save(checkpoint_of(number, due=due), None)
    assert states.average()["w"].tolist() == [2.0] * 3
    assert len(states.existing()) == 4
    assert states.load() is not None
    assert [value(place / "last.safetensors") for place in states.existing()] == [1.0, 3.0]
    assert states.average()["w"].tolist() == [2.0] * 3


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_full_disk_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    states = Checkpoints(tmp_path)
    states.save(snapshot(1.0), {"w": torch.full((3,), 7.0)})
    calls = 0

    def guarded(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise StorageError("full", "Free some space.")
            return real(*arguments, **options)

        return call

    for name in ("save_tensors", "write_json", "_link"):
        monkeypatch.setattr(checkpoint, name, guarded(getattr(checkpoint, name)))
    with pytest.raises(StorageError, match="full"):
        states.save(snapshot(2.0), None)
    monkeypatch.undo()
    held = Checkpoints(tmp_path).load()
    assert held is not None
    # After the fourth write the folder is whole and renamed; only the links are missing.
    wanted = 1 if failing <= 4 else 2
    assert held.facts == {"update": wanted}
    assert value(tmp_path / "last.safetensors") == wanted
    assert value(tmp_path / "model.safetensors") == 7.0
    assert not [place for place in (tmp_path / "checkpoints").iterdir() if "part" in place.name]


def test_a_kill_before_the_rename_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = Checkpoints(tmp_path)
    states.save(snapshot(1.0), None)

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(os, "rename", die)
    with pytest.raises(Killed):
        states.save(snapshot(2.0), None)
    monkeypatch.undo()
    held = Checkpoints(tmp_path).load()
    assert held is not None and held.facts == {"update": 1}


def test_an_altered_state_is_refused(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    place = states.save(snapshot(1.0), None) / "training.safetensors"
    blob = bytearray(place.read_bytes())
    blob[-1] ^= 1
    place.write_bytes(blob)
    with pytest.raises(StorageError, match="altered"):
        states.load()
    place.write_bytes(blob[:-4])
    with pytest.raises(StorageError, match="damaged"):
        states.load()


def test_links_become_copies_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    states = Checkpoints(tmp_path)
    states.save(snapshot(1.0), None)
    states.save(snapshot(2.0), None)
    assert value(tmp_path / "model.safetensors") == 1.0
    assert value(tmp_path / "last.safetensors") == 2.0


def test_the_running_average_is_a_mean_at_first_then_forgets() -> None:
    model = TinyModel()
    with torch.no_grad():
        model.bias.fill_(0.0)
    average = RunningAverage(model, 0.75)
    seen = []
    for number in (2.0, 4.0, 6.0, 8.0, 10.0):
        with torch.no_grad():
            model.bias.fill_(number)
        average.step()
        seen.append(average.weights["bias"][0].item())
    # Kept parts: 0, 1/2, 2/3, then 3/4 for good: means of 2, 4, 6, 8, then 5 * 3/4 + 10/4.
    assert seen == pytest.approx([2.0, 3.0, 4.0, 5.0, 6.25])


def test_exchanged_weights_go_back_even_after_a_fault() -> None:
    model = TinyModel()
    before = model.bias.detach().clone()
    other = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError), swapped_weights(model, other):
        assert model.bias.tolist() == [1.0] * len(before)
        raise RuntimeError
    assert torch.equal(model.bias, before)
