"""Readers take what is good, and answer what is not with an error for people, soon and in little
memory: a few hundred cases here, tens of thousands by `python -m tests.fuzz`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtgrid.base.errors import InputError
from tests.conftest import PROJECT
from tests.fuzz.folders import folders
from tests.fuzz.harm import changed_values, damaged
from tests.fuzz.run import MEMORY, run
from tests.fuzz.single import single

CASES = 25


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


def test_good_files_are_taken(place: Path) -> None:
    """Were they not, nothing behind the first check would ever be harmed."""
    for name, reader in single(place).items():
        for good in reader.good:
            path = place / "case"
            path.write_bytes(good)
            reader.read(path)
            assert path.read_bytes() == good, name


def test_good_folders_are_taken(place: Path) -> None:
    made = folders(place)
    assert set(made) == {"model", "dataset", "saved state", "kept exits"}
    for folder, _, read in made.values():
        read(folder)


def test_no_reader_falls_over(tmp_path: Path) -> None:
    """In a process of its own, for its memory is bounded."""
    counts = tmp_path / "counts.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", str(CASES), "--json", counts],
        cwd=PROJECT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found = json.loads(counts.read_text(encoding="utf-8"))
    assert len(found) >= 26
    assert all(one["cases"] == one["taken"] + one["refused"] >= CASES for one in found.values())
    assert sum(one["refused"] for one in found.values()) > 10 * CASES


def _reader(fault: BaseException | None = None, seconds: float = 0.0, size: int = 0) -> object:
    def read(held: bytes) -> None:
        if held == b"good":
            return
        time.sleep(seconds)
        bytearray(size)
        if fault is not None:
            raise fault

    return read


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (_reader(KeyError("x")), "KeyError"),
        (_reader(SystemExit(1)), "the program was ended"),
        (_reader(size=2 * MEMORY), "MemoryError"),
        (_reader(seconds=1.0), "TooSlow"),
    ],
)
def test_a_reader_that_falls_over_is_seen(
    reader: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.run.SECONDS", 0.6)
    count = run(st.sampled_from([b"good", b"bad"]), reader, 20, 1)  # type: ignore[arg-type]
    assert len(count.faults) == 1 and words in count.faults[0]


def test_what_is_refused_is_counted() -> None:
    count = run(st.just(b"bad"), _reader(InputError("no")), 20, 1)  # type: ignore[arg-type]
    assert (count.taken, count.faults) == (0, []) and count.refused == count.cases > 0


@settings(deadline=None, derandomize=True)
@given(damaged([b"an example of a file\n"]))
def test_harm_is_bytes(held: bytes) -> None:
    assert len(held) < 200_000


@settings(deadline=None, derandomize=True)
@given(changed_values({"a": [1, {"b": 2}], "c": "d"}))
def test_changed_values_are_json(values: object) -> None:
    assert values is None or json.dumps(values)
