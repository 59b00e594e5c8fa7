"""Checkpoints that are meant to do harm are refused in an error for people, soon, in little memory.

`python -m tests.fuzz.checkpoints` has more of them; there each is imported in its own process.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base.errors import InputError
from nmtgrid.convert.from_fairseq.dictionary import read_dictionary
from tests.conftest import PROJECT
from tests.fuzz.checkpoints import attacks, faults

ATTACKS = attacks()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All of them, and some random ones: good checkpoints and attacks with bytes changed."""
    path = tmp_path_factory.mktemp("hostile") / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.checkpoints", "--cases", str(len(ATTACKS) + 20),
         "--json", path],
        cwd=PROJECT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert path.exists(), done.stderr[-2000:]
    cases: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return cases


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_refused(name: str, results: dict[str, Any]) -> None:
    assert results[name]["code"] == 2
    assert "c.pt" in results[name]["said"]
    assert faults(ATTACKS[name][0], results[name]) == []


def test_changed_bytes_do_no_harm(results: dict[str, Any]) -> None:
    changed = [result for name, result in results.items() if name not in ATTACKS]
    assert len(changed) == 20
    assert [fault for result in changed for fault in faults("", result)] == []


@pytest.mark.parametrize("line", [b"a 1\n", b"\n"])
def test_a_dictionary_that_unpacks_to_more_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "dict.gz"
    path.write_bytes(gzip.compress(line * (1 << 25)))
    with pytest.raises(InputError, match="too large for a dictionary"):
        read_dictionary(path)


def test_a_dictionary_of_fillers_is_read_at_once(tmp_path: Path) -> None:
    """The filler's name is found in one pass, however many tokens look like it."""
    path = tmp_path / "dict.txt"
    lines = [f"{'<' * count}line-1> 1\n" for count in range(1, 2000)]
    path.write_text("".join([" 1\n", *lines]), encoding="utf-8")
    assert read_dictionary(path).types[4] == f"{'<' * 2000}line-1>"
