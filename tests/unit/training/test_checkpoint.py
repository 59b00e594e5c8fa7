"""Saved states: whole or not at all, averages, what was altered and what a kill left."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.adaptive.exit_presets import EXIT_FILE
from nmtgrid.analysis.latency import read_online_results
from nmtgrid.analysis.training_curves import read_run
from nmtgrid.base.errors import InputError, NmtgridError, StorageError
from nmtgrid.base.io.arrays import load_tensors, save_tensors
from nmtgrid.base.io.atomic import (
    is_altered,
    is_altered_line,
    remove_stale,
    temporary_path,
    with_checksum,
    with_line_checksum,
    write_json,
    write_text,
)
from nmtgrid.base.io.records import read_record
from nmtgrid.data.directory import new_folder
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.traces import Trace, read_traces
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import Vocabulary
from nmtgrid.training import checkpoint, events
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.distributed import Processes
from nmtgrid.training.metrics_log import MetricsLog
from nmtgrid.training.progress import Progress, StopRequest
from nmtgrid.training.validate import Score
from nmtgrid.training.weights import ExponentialMovingAverage, swapped_weights
from tests.unit.helpers.tiny_run import Scores, TinyModel, trainer


def snapshot(value: float) -> Snapshot:
    weights = {"w": torch.full((3,), value)}
    return Snapshot(weights, {"moment": torch.full((2,), -value)}, {"update": int(value)})


def checkpoint_of(update: int, value: float | None = None, *, due: bool = True) -> Snapshot:
    """A state whose weights are `value`, else its update, of a validation that was due or not."""
    progress = Progress(update=update)
    if due:
        progress.validated(0.0, due=True)
    state = snapshot(float(update) if value is None else value)
    return dataclasses.replace(state, facts={"progress": dataclasses.asdict(progress)})


def value(path: Path) -> float:
    return float(load_tensors(path)["w"][0])


def test_the_newest_state_comes_back_with_the_best_weights_before_it(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    assert states.load() is None
    states.save(snapshot(1.0), {"w": torch.full((3,), 7.0)})
    states.save(snapshot(2.0), None)
    state = states.load()
    assert state is not None and state.facts == {"update": 2}
    assert state.weights["w"][0] == 2.0 and state.tensors["moment"][0] == -2.0
    assert value(tmp_path / "model.safetensors") == 7.0
    assert value(tmp_path / "last.safetensors") == 2.0 and len(states.existing()) == 1
    # Without a best the last weights count.
    Checkpoints(tmp_path / "other").save(snapshot(1.0), None)
    assert value(tmp_path / "other" / "model.safetensors") == 1.0


def test_the_last_n_keep_their_weights_for_the_average(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path, keep=3)
    for number in (1, 2, 4, 6):
        weights = {"w": torch.full((3,), float(number)), "count": torch.tensor(number)}
        states.save(dataclasses.replace(checkpoint_of(number), weights=weights), None)
    names = [sorted(file.name for file in folder.iterdir()) for folder in states.existing()]
    assert names[:2] == [["last.safetensors"]] * 2
    assert len(names) == 3 and "training.json" in names[2]
    averaged = states.average()
    assert averaged["w"].tolist() == [4.0, 4.0, 4.0] and averaged["w"].dtype == torch.float32
    assert averaged["count"].item() == 6, "whole numbers are copied"


def test_states_and_means_of_checkpoints(tmp_path: Path) -> None:
    """States between checkpoints make none go, nor stay once there is a newer one."""
    states = Checkpoints(tmp_path, keep=3)
    for number, due in ((0, True), (2, True), (3, False), (4, True), (5, False), (9, False)):
        states.save(checkpoint_of(number, due=due), None)
    assert [value(folder / "last.safetensors") for folder in states.existing()] == [2.0, 4.0, 9.0]
    assert states.average()["w"].tolist() == [5.0] * 3
    states = Checkpoints(tmp_path / "single", keep=3)
    states.save(checkpoint_of(5, due=False), None)
    assert states.average()["w"].tolist() == [5.0] * 3
    states = Checkpoints(tmp_path / "twice", keep=2)
    for update, weight in ((1, 1.0), (2, 3.0), (2, 3.0)):
        states.save(checkpoint_of(update, weight), None)
    assert states.average()["w"].tolist() == [2.0] * 3


def test_a_kill_leaves_the_same_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = Checkpoints(tmp_path, keep=3)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "_prune", lambda _: None)
        for number, due in ((1, True), (2, False), (3, True), (3, True)):
            states.save(checkpoint_of(number, due=due), None)
    assert states.average()["w"].tolist() == [2.0] * 3 and len(states.existing()) == 4
    assert states.load() is not None
    assert [value(folder / "last.safetensors") for folder in states.existing()] == [1.0, 3.0]
    assert states.average()["w"].tolist() == [2.0] * 3


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_full_disk_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    states = Checkpoints(tmp_path)
    states.save(snapshot(1.0), {"w": torch.full((3,), 7.0)})
    # Mocks that return DEFAULT call through; one write of all three kinds fails.
    writes = itertools.count(1)

    def fail(*_: Any, **__: Any) -> Any:
        if next(writes) == failing:
            raise StorageError("full", "Free some space.")
        return DEFAULT

    for name in ("save_tensors", "write_json", "_link"):
        spy = Mock(wraps=getattr(checkpoint, name), side_effect=fail)
        monkeypatch.setattr(checkpoint, name, spy)
    with pytest.raises(StorageError, match="full"):
        states.save(snapshot(2.0), None)
    monkeypatch.undo()
    state = Checkpoints(tmp_path).load()
    assert state is not None
    # After the fourth write the folder is whole and renamed; only the links are missing.
    expected = 1 if failing <= 4 else 2
    assert state.facts == {"update": expected}
    assert value(tmp_path / "last.safetensors") == expected
    assert value(tmp_path / "model.safetensors") == 7.0
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if "part" in path.name]


def test_a_kill_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = Checkpoints(tmp_path)
    states.save(snapshot(1.0), None)

    monkeypatch.setattr(os, "rename", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        states.save(snapshot(2.0), None)
    monkeypatch.undo()
    state = Checkpoints(tmp_path).load()
    assert state is not None and state.facts == {"update": 1}


def test_an_altered_state_is_refused(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    path = states.save(snapshot(1.0), None) / "training.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    for harmed, words in ((content, "altered"), (content[:-4], "damaged")):
        path.write_bytes(harmed)
        with pytest.raises(StorageError, match=words):
            states.load()


def test_copies_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError("no links here")))
    for number in (1.0, 2.0):
        Checkpoints(tmp_path).save(snapshot(number), None)
    assert value(tmp_path / "model.safetensors") == 1.0
    assert value(tmp_path / "last.safetensors") == 2.0


def test_the_running_average_is_a_mean_at_first_then_forgets() -> None:
    model = TinyModel()
    average, seen = ExponentialMovingAverage(model, 0.75), []
    for number in (2.0, 4.0, 6.0, 8.0, 10.0):
        with torch.no_grad():
            model.bias.fill_(number)
        average.step()
        seen.append(average.weights["bias"][0].item())
    # Kept parts: 0, 1/2, 2/3, then 3/4 for good: means of 2, 4, 6, 8, then 5 * 3/4 + 10/4.
    assert seen == pytest.approx([2.0, 3.0, 4.0, 5.0, 6.25])


class _Model(nn.Module):
    statistic: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("statistic", torch.tensor([10.0]))
        self.register_buffer("count", torch.tensor(1))
        self.register_buffer("passing", torch.tensor([5.0]), persistent=False)

    def put(self, weight: float, statistic: float, count: int) -> None:
        with torch.no_grad():
            self.weight.fill_(weight)
            self.statistic.fill_(statistic)
            self.count.fill_(count)


def test_buffers_are_averaged_with_the_weights_and_counts_are_copied() -> None:
    model = _Model()
    average = ExponentialMovingAverage(model, decay=0.75)
    assert set(average.weights) == {"weight", "statistic", "count"}
    # The first one keeps nothing of what the model began with, the next ones 1/2 and 2/3.
    for step, expected in ((1, (3.0, 20.0)), (2, (4.0, 25.0)), (3, (6.0, 30.0))):
        model.put((0.0, 3.0, 5.0, 10.0)[step], (0.0, 20.0, 30.0, 40.0)[step], step)
        average.step()
        assert average.weights["weight"].item() == pytest.approx(expected[0])
        assert average.weights["statistic"].item() == pytest.approx(expected[1])
        assert average.weights["count"].item() == step
    average = ExponentialMovingAverage(model, decay=0.9)
    model.put(3.0, 20.0, 7)
    average.restore({"weight": torch.tensor([2.0])}, 4, torch.Tensor.copy_)
    values = {name: value.item() for name, value in average.weights.items()}
    assert values == {"weight": 2.0, "statistic": 20.0, "count": 7} and average.steps == 4


def test_exchanged_weights_come_with_their_statistics() -> None:
    model = _Model()
    average = ExponentialMovingAverage(model, decay=0.9)
    model.put(3.0, 20.0, 2)
    with swapped_weights(model, average.weights):
        assert model.weight.item() == 1.0 and model.statistic.item() == 10.0
        assert model.count.item() == 1 and model.state_dict()["statistic"].item() == 10.0
    assert model.weight.item() == 3.0 and model.statistic.item() == 20.0
    assert model.count.item() == 2
    model.put(3.0, 20.0, 2)
    with pytest.raises(RuntimeError), swapped_weights(model, average.weights):
        raise RuntimeError
    assert model.weight.item() == 3.0 and model.statistic.item() == 20.0


def test_the_mean_of_the_last_states_copies_whole_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for value in (1, 2, 6):
        weights = {"statistic": torch.tensor([float(value)]), "count": torch.tensor(value)}
        checkpoints.save(dataclasses.replace(checkpoint_of(value), weights=weights), None)
    mean = checkpoints.average()
    assert mean["statistic"].item() == 3.0 and mean["count"].item() == 6


class _WithStatistic(TinyModel):
    statistic: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("statistic", torch.zeros(1))


class _Statistics(Scores):
    """Notes the running statistics of what it is given to score."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.seen: list[float] = []

    def score(self, model: TranslationModel) -> Score:
        assert isinstance(model, _WithStatistic)
        self.seen.append(model.statistic.item())
        return super().score(model)


def test_all_processes_validate_with_the_first_ones_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = iter((7.0, 5.0))  # what the first process has of each
    validator = _Statistics()
    settings: dict[str, Any] = {"ema_decay": 0.9, "ema_updates": 1, "max_updates": 2}
    tiny = trainer(tmp_path, model=_WithStatistic(), validator=validator, **settings)

    def same(self: Processes, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.shape == (1,):
                tensor.fill_(next(first))

    monkeypatch.setattr(Processes, "broadcast", same)
    list(tiny.run())
    assert validator.seen == [7.0, 5.0]


@pytest.fixture(scope="module")
def ended() -> int:
    """The number of a process that is no more."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def test_checksums_of_values_and_lines() -> None:
    record = with_checksum({"a": (1, 2), "b": {"c": None}})
    read = json.loads(json.dumps(dict(reversed(record.items()))))
    assert not is_altered(read) and is_altered({**read, "a": [1, 3]})
    del read["sha256"]
    assert not is_altered({**read, "a": [1, 3]})
    first = with_line_checksum({"n": 1})
    second = with_line_checksum({"n": 2}, first["check"])
    assert not is_altered_line(first) and not is_altered_line(second, first["check"])
    assert is_altered_line(second) and is_altered_line({**first, "n": 3})
    assert not is_altered_line({"n": 3}, "any")


def test_every_letter_of_a_header_counts(tmp_path: Path) -> None:
    """But for the name of the entry without which nothing is checked."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"one": torch.ones(2), "two": torch.zeros(2)})
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    name = range(content.index(b"nmtgrid.sha256"), content.index(b"nmtgrid.sha256") + 14)
    for offset in set(range(end)) - set(name):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        with pytest.raises(StorageError, match="is damaged"):
            load_tensors(path)


def test_a_checksum_of_the_arrays_alone_still_counts(tmp_path: Path) -> None:
    path, good = tmp_path / "a.safetensors", struct.pack("<2f", 1, 2)
    facts = {"nmtgrid.sha256": hashlib.sha256(good).hexdigest()}
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": facts, "a": entry}).encode()
    begin = struct.pack("<Q", len(header)) + header
    path.write_bytes(begin + good)
    assert load_tensors(path)["a"].tolist() == [1, 2]
    path.write_bytes(begin + struct.pack("<2f", 1, 3))
    with pytest.raises(StorageError, match="altered"):
        load_tensors(path)


def left_by(
    process: int, path: Path, ending: str = "part", machine: str | None = None,
    slot: int | None = None,
) -> Path:  # fmt: skip
    """Return the temporary name for `path` of a process of this machine, or of another one."""
    head, _, tail = temporary_path(path, ending).name.rpartition(f"-{os.getpid()}")
    tail = tail if slot is None else f".{slot}{tail}"
    head = head if machine is None else f".{path.name}.{machine}"
    return path.with_name(f"{head}-{process}{tail}")


def test_what_ended_processes_left_goes_and_nothing_else(tmp_path: Path, ended: int) -> None:
    target, other, running = tmp_path / "a.txt", tmp_path / "b.txt", os.getppid()
    abandoned = left_by(running, target, machine="0123abcd")
    gone = [left_by(ended, target), left_by(ended, target, slot=0), abandoned]
    kept = [target, left_by(running, target), left_by(ended, other), left_by(ended, target, "old"),
            tmp_path / ".a.txt.mine.part", tmp_path / f".a.txt.{ended}.part",
            left_by(ended, target, machine="4567abcd")]  # fmt: skip
    for path in gone + kept:
        path.write_text(path.name)
    before = time.time() - 8 * 24 * 3600
    for path in (abandoned, left_by(running, target)):
        os.utime(path, (before, before))
    write_text(target, "new")
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    left_by(ended, tmp_path / "d").mkdir()
    remove_stale(tmp_path / "d")
    assert not left_by(ended, tmp_path / "d").exists()


def test_what_a_killed_process_moved_away_comes_back(tmp_path: Path, ended: int) -> None:
    """It had moved the old folder away, and not yet the new one to its place."""
    old, new = (left_by(ended, tmp_path / "data", ending) for ending in ("old", "part"))
    old.mkdir()
    new.mkdir()
    (old / "held").write_text("old")
    with pytest.raises(NmtgridError, match="exists already"), new_folder(tmp_path / "data"):
        pass
    assert (tmp_path / "data" / "held").read_text() == "old" and not old.exists()


def test_states_that_a_killed_run_half_removed_are_none(tmp_path: Path) -> None:
    states, folder = Checkpoints(tmp_path, keep=2), tmp_path / "checkpoints"
    states.save(checkpoint_of(1), None)
    (folder / ".000007.part").mkdir()
    assert [path.name for path in states.existing()] == ["000001"]
    states.save(checkpoint_of(2), None)
    assert sorted(os.listdir(folder)) == ["000001", "000002"]
    # A finished run that is resumed saves no more.
    (folder / ".000001.part").mkdir()
    assert states.load() is not None
    assert sorted(os.listdir(folder)) == ["000001", "000002"]


def test_a_run_stopped_before_a_validation_begins_with_it(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"validate_updates": 2, "max_updates": 4}
    stop = StopRequest()
    first = trainer(tmp_path, validator=Scores(3.0, 2.0), stop=stop, **changes)
    for event in first.run():
        if isinstance(event, events.Updated) and event.update == 2:
            stop.reason = "stopped by the test"
    second = trainer(tmp_path, validator=Scores(3.0, 2.0), **changes)
    assert second.resume()
    assert [e.update for e in second.run() if isinstance(e, events.Validated)] == [2, 4]


def _validated(update: int) -> events.Validated:
    return events.Validated(update, 0, 0.1, 2.0, "average", {"average": 2.0}, None, True, 0.1)


def test_a_log_tells_of_lines_that_are_gone(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for update in (1, 2):
        log.write(_validated(update))
    again = MetricsLog(log.path)
    again.keep_until(2)
    again.write(_validated(2))  # known already
    again.write(_validated(3))
    lines = log.path.read_text().splitlines(keepends=True)
    assert len(lines) == 3 and read_run(log.path, "m").notes == []
    assert MetricsLog(log.path).keep_until(3) == []
    for second in ("", lines[1].replace('"nll": 2.0', '"nll": 1.0')):
        log.path.write_text(lines[0] + second + lines[2])
        assert second or MetricsLog(log.path).keep_until(3) == [2]
        assert [note.split(":")[1] for note in read_run(log.path, "m").notes] == ["2"]


def test_altered_configs_and_checksums_are_told(tmp_path: Path) -> None:
    config, path = with_checksum({"format": 1, "arch": "bilstm"}), tmp_path / "config.json"
    write_json(path, config)
    assert read_record(path, dict[str, str | int], 1) == config
    config["arch"] = "transformer"
    write_json(path, config)
    with pytest.raises(StorageError, match=r"config\.json has been altered") as caught:
        read_record(path, dict[str, str | int], 1)
    assert "remove its entry `sha256`" in caught.value.advice
    del config["sha256"]
    write_json(path, config)
    assert read_record(path, dict[str, str | int], 1) == config
    # Not of the file that it is about, which is whole.
    words = Vocabulary(["a"])
    Pipeline(TextFacts("xx", "yy", subwords="words"), words, words).save(tmp_path)
    facts_file = json.loads((tmp_path / "text.json").read_text())
    facts_file["sha256"]["vocab.xx.txt"] = "0" * 64
    write_json(tmp_path / "text.json", facts_file)
    with pytest.raises(StorageError, match=r"text\.json has been truncated or altered"):
        Pipeline.load(tmp_path)


def test_altered_traces_and_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = Trace(1, ["a"], ["b"], "b", [-1.0, -0.5], -1.5, -0.75)
    good = json.loads(whole.to_line())
    write_text(path, json.dumps(good) + "\n")
    assert dataclasses.replace(whole) == next(read_traces(path))
    write_text(path, json.dumps({**good, "score": -0.5}) + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl:1: this line has been altered"):
        next(read_traces(path))
    write_text(path, "".join(dataclasses.replace(whole, line=n).to_line() + "\n" for n in (1, 3)))
    # Any part of a file, in any order, is a file of traces too.
    assert [trace.line for trace in read_traces(path)] == [1, 3]
    for read in (read_online_results, lambda path: EXIT_FILE.load(path.parent)):
        path = tmp_path / "exits.json"
        empty: Any = [] if read is read_online_results else {}
        record = with_checksum({"format": 1, "settings": empty})
        write_json(path, record)
        read(path)
        write_json(path, {**record, "settings": {"fast": {}}})
        with pytest.raises(StorageError, match=r"exits\.json has been altered"):
            read(path)
