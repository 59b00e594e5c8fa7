"""What was altered is noticed, what a kill left is cleared away, and what was meant is taken."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.adaptive.exit_presets import load_exits
from nmtgrid.analysis.latency import read_online_results
from nmtgrid.analysis.training_curves import read_run
from nmtgrid.base.errors import InputError, ModelError, NmtgridError, StorageError
from nmtgrid.base.io.arrays import load_tensors, save_tensors
from nmtgrid.base.io.atomic import passing, sweep, write_json, write_text
from nmtgrid.base.io.checksums import is_altered, is_altered_line, sealed, sealed_line
from nmtgrid.data.directory import new_folder
from nmtgrid.models.directory import check_unaltered
from nmtgrid.search.traces import Trace, read_traces
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import Vocabulary
from nmtgrid.training import events
from nmtgrid.training.checkpoint import Checkpoints, Snapshot
from nmtgrid.training.events import MetricsLog
from nmtgrid.training.progress import Progress, StopRequest
from tests.unit.tiny_run import Scores, trainer


@pytest.fixture(scope="module")
def ended() -> int:
    """The number of a process that is no more."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def test_a_checksum_is_of_the_values_whatever_their_order() -> None:
    held = sealed({"a": (1, 2), "b": {"c": None}})
    read = json.loads(json.dumps(dict(reversed(held.items()))))
    assert not is_altered(read) and is_altered({**read, "a": [1, 3]})
    del read["sha256"]
    assert not is_altered({**read, "a": [1, 3]})


def test_a_line_knows_the_one_before() -> None:
    first = sealed_line({"n": 1})
    second = sealed_line({"n": 2}, first["check"])
    assert not is_altered_line(first) and not is_altered_line(second, first["check"])
    assert is_altered_line(second) and is_altered_line({**first, "n": 3})
    assert not is_altered_line({"n": 3}, "any")


def test_every_letter_of_a_header_counts(tmp_path: Path) -> None:
    """But for the name of the entry without which nothing is checked."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"one": torch.ones(2), "two": torch.zeros(2)})
    held = path.read_bytes()
    end = 8 + struct.unpack("<Q", held[:8])[0]
    name = range(held.index(b"nmtgrid.sha256"), held.index(b"nmtgrid.sha256") + 14)
    for place in set(range(end)) - set(name):
        path.write_bytes(held[:place] + bytes([held[place] ^ 1]) + held[place + 1 :])
        with pytest.raises(StorageError, match="is damaged"):
            load_tensors(path)


def test_a_checksum_of_the_arrays_alone_still_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    values = struct.pack("<2f", 1, 2)
    for held, is_good in ((values, True), (struct.pack("<2f", 1, 3), False)):
        facts = {"nmtgrid.sha256": hashlib.sha256(values).hexdigest()}
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        header = json.dumps({"__metadata__": facts, "a": entry}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + held)
        if is_good:
            assert load_tensors(path)["a"].tolist() == [1, 2]
        else:
            with pytest.raises(StorageError, match="altered"):
                load_tensors(path)


def left_by(
    process: int, path: Path, ending: str = "part", machine: str | None = None,
    place: int | None = None,
) -> Path:  # fmt: skip
    """Return the passing name for `path` of a process of this machine, or of another one."""
    head, _, tail = passing(path, ending, place).name.rpartition(f"-{os.getpid()}")
    head = head if machine is None else f".{path.name}.{machine}"
    return path.with_name(f"{head}-{process}{tail}")


def test_what_ended_processes_left_goes_and_nothing_else(tmp_path: Path, ended: int) -> None:
    one, other, running = tmp_path / "a.txt", tmp_path / "b.txt", os.getppid()
    abandoned = left_by(running, one, machine="0123abcd")
    gone = [left_by(ended, one), left_by(ended, one, place=0), abandoned]
    kept = [one, left_by(running, one), left_by(ended, other), left_by(ended, one, "old"),
            tmp_path / ".a.txt.mine.part", tmp_path / f".a.txt.{ended}.part",
            left_by(ended, one, machine="4567abcd")]  # fmt: skip
    for path in gone + kept:
        path.write_text(path.name)
    before = time.time() - 8 * 24 * 3600
    for path in (abandoned, left_by(running, one)):
        os.utime(path, (before, before))
    write_text(one, "new")
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    left_by(ended, tmp_path / "d").mkdir()
    sweep(tmp_path / "d")
    assert not left_by(ended, tmp_path / "d").exists()


def test_what_stood_in_the_way_of_a_killed_process_is_there_again(
    tmp_path: Path, ended: int
) -> None:
    """It had moved the old folder away, and not yet the new one to its place."""
    old, new = (left_by(ended, tmp_path / "data", ending) for ending in ("old", "part"))
    old.mkdir()
    new.mkdir()
    (old / "held").write_text("old")
    with pytest.raises(NmtgridError, match="is there already"), new_folder(tmp_path / "data"):
        pass
    assert (tmp_path / "data" / "held").read_text() == "old" and not old.exists()


def _snapshot(update: int, value: float) -> Snapshot:
    weights = {"a": torch.full((2,), value)}
    progress = Progress(update=update)
    progress.validated(0.0, due=True)
    return Snapshot(weights, {"m": torch.zeros(1)}, {"progress": progress.to_json()})


def test_a_mean_counts_each_update_once(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path, keep=2)
    for update, value in ((1, 1.0), (2, 3.0), (2, 3.0)):
        made.save(_snapshot(update, value), None)
    assert made.average()["a"].tolist() == [2.0, 2.0]


def test_states_that_a_killed_run_half_removed_are_none(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path, keep=2)
    made.save(_snapshot(1, 1.0), None)
    (tmp_path / "checkpoints" / ".000007.part").mkdir()
    assert [place.name for place in made.existing()] == ["000001"]
    made.save(_snapshot(2, 1.0), None)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["000001", "000002"]
    # A finished run that is resumed saves no more.
    (tmp_path / "checkpoints" / ".000001.part").mkdir()
    assert made.load() is not None
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["000001", "000002"]


def test_a_run_stopped_before_a_validation_begins_with_it(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"validate_updates": 2, "max_updates": 4}
    stop = StopRequest()
    first = trainer(tmp_path, validator=Scores(3.0, 2.0), stop=stop, **changes)
    for event in first.run():
        if isinstance(event, events.Updated) and event.update == 2:
            stop.reason = "stopped by the test"
    second = trainer(tmp_path, validator=Scores(3.0, 2.0), **changes)
    assert second.resume()
    seen = [e.update for e in second.run() if isinstance(e, events.Validated)]
    assert seen == [2, 4]


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
    log.path.write_text(lines[0] + lines[2])
    assert MetricsLog(log.path).keep_until(3) == [2]
    assert [note.split(":")[1] for note in read_run(log.path, "m").notes] == ["2"]
    log.path.write_text(lines[0] + lines[1].replace('"nll": 2.0', '"nll": 1.0') + lines[2])
    assert [note.split(":")[1] for note in read_run(log.path, "m").notes] == ["2"]


def test_a_config_that_was_changed_by_hand_says_how_to_accept_it(tmp_path: Path) -> None:
    config = sealed({"format": 1, "arch": "bilstm"})
    check_unaltered(tmp_path, config)
    config["arch"] = "transformer"
    with pytest.raises(ModelError, match="altered") as caught:
        check_unaltered(tmp_path, config)
    assert "take its entry `sha256` out" in caught.value.advice
    del config["sha256"]
    check_unaltered(tmp_path, config)


def test_altered_traces_and_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    made = Trace(1, ["a"], ["b"], "b", [-1.0, -0.5], -1.5, -0.75)
    good = json.loads(made.to_line())
    write_text(path, json.dumps(good) + "\n")
    assert dataclasses.replace(made) == next(read_traces(path))
    write_text(path, json.dumps({**good, "score": -0.5}) + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl:1: this line has been altered"):
        next(read_traces(path))
    write_text(path, "".join(dataclasses.replace(made, line=n).to_line() + "\n" for n in (1, 3)))
    # Any part of a file, in any order, is a file of traces too.
    assert [trace.line for trace in read_traces(path)] == [1, 3]
    for read in (read_online_results, lambda path: load_exits(path.parent)):
        path = tmp_path / "exits.json"
        held = sealed({"format": 1, "settings": {}})
        write_json(path, {**held, "settings": {}})
        read(path)
        write_json(path, {**held, "settings": {"fast": {}}})
        with pytest.raises(StorageError, match=r"exits\.json has been altered"):
            read(path)


def test_an_altered_checksum_is_told_of_where_it_stands(tmp_path: Path) -> None:
    """Not of the file that it is about, which is whole."""
    words = Vocabulary(["a"])
    facts = TextFacts("xx", "yy", subwords="words")
    Pipeline(facts, words, words).save(tmp_path)
    held = json.loads((tmp_path / "text.json").read_text())
    held["sha256"]["vocab.xx.txt"] = "0" * 64
    write_json(tmp_path / "text.json", held)
    with pytest.raises(StorageError, match=r"text\.json has been truncated or altered"):
        Pipeline.load(tmp_path)
