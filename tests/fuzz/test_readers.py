"""Readers accept valid files, and raise a proper error for others, quickly and with little memory:
a few hundred cases here, tens of thousands with `python -m tests.fuzz`.
"""

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


def test_good_files_are_accepted(folder: Path) -> None:
    """Otherwise no damage would ever get past the first check."""
    for name, reader in single(folder).items():
        for good in reader.good:
            path = folder / "case"
            path.write_bytes(good)
            reader.read(path)
            assert path.read_bytes() == good, name


def test_good_folders_are_accepted(folder: Path) -> None:
    by_name = folders(folder)
    assert set(by_name) == {"model", "dataset", "saved state", "kept exits"}
    for path, _, read in by_name.values():
        read(path)


def test_no_reader_falls_over(tmp_path: Path) -> None:
    """In a separate process, because its memory is limited."""
    counts = tmp_path / "counts.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", str(CASES), "--json", counts],
        cwd=PROJECT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    results = json.loads(counts.read_text(encoding="utf-8"))
    assert len(results) >= 26
    assert all(
        count["cases"] == count["accepted"] + count["refused"] >= CASES
        for count in results.values()
    )
    assert sum(count["refused"] for count in results.values()) > 10 * CASES


def _reader(fault: BaseException | None = None, seconds: float = 0.0, size: int = 0) -> object:
    def read(content: bytes) -> None:
        if content == b"good":
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
    assert (count.accepted, count.faults) == (0, []) and count.refused == count.cases > 0


@settings(deadline=None, derandomize=True)
@given(damaged([b"an example of a file\n"]))
def test_harm_is_bytes(content: bytes) -> None:
    assert len(content) < 200_000


@settings(deadline=None, derandomize=True)
@given(changed_values({"a": [1, {"b": 2}], "c": "d"}))
def test_changed_values_are_json(values: object) -> None:
    assert values is None or json.dumps(values)
