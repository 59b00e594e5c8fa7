"""Some kills, full disks and damaged files of each kind; `python -m tests.faults` runs hundreds."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.faults.flips import _HARMS, _judged
from tests.faults.pairs import Pair, Undisturbed, judged
from tests.faults.process import Ended
from tests.faults.results import differing, left, leftovers
from tests.faults.tally import Tally
from tests.faults.taps import Tap, counting, filling, killing

_FAULTY = """
import os, sys
from tests.faults.taps import Tap, counting, filling, killing
tap = eval(sys.argv[1])
tap.install()
with open("whole.part", "wb") as file:
    file.write(b"0123456789")
os.replace("whole.part", "whole")
print(tap.count)
"""


def _write(folder: Path, tap: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _FAULTY, tap], cwd=folder, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip


def test_moments_are_counted(tmp_path: Path) -> None:
    """The file is opened, written and renamed."""
    done = _write(tmp_path, "counting()")
    assert (done.stdout, (tmp_path / "whole").read_text()) == ("3\n", "0123456789")


@pytest.mark.parametrize(("at", "content"), [(1, None), (2, b"01234"), (3, b"0123456789")])
def test_a_kill_comes_at_its_moment(tmp_path: Path, at: int, content: bytes | None) -> None:
    """In the middle of a write, half of the bytes are there."""
    done = _write(tmp_path, f"killing({at}, {int(signal.SIGKILL)})")
    part = tmp_path / "whole.part"
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "whole").exists()
    assert (part.read_bytes() if part.exists() else None) == content


@pytest.mark.parametrize(("at", "is_full"), [(1, True), (2, True), (3, False)])
def test_a_full_disk_takes_no_bytes(tmp_path: Path, at: int, is_full: bool) -> None:
    done = _write(tmp_path, f"filling({at})")
    assert ("No space left" in done.stderr) == is_full != (tmp_path / "whole").exists()


def test_taps_befall() -> None:
    for tap in (counting(), filling(9), killing(9, signal.SIGKILL)):
        assert isinstance(tap, Tap)
        tap.moment("write")
        assert tap.count == 1


def test_what_is_left_is_compared_without_times(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder, seconds, state in ((first, 1, "000001"), (second, 2, "000007")):
        (folder / "checkpoints" / state).mkdir(parents=True)
        (folder / "checkpoints" / state / "a").write_text("same")
        (folder / "facts.json").write_text(json.dumps({"seconds": seconds, "n": [1]}))
    assert differing(left(first), left(second)) == []
    (second / "facts.json").write_text(json.dumps({"seconds": 2, "n": [2]}))
    (second / ".facts.json.12.part").write_text("")
    assert differing(left(first), left(second)) == ["facts.json"]
    assert leftovers(second) == [".facts.json.12.part"] and not leftovers(first)
    # A model card says in words how long the training took.
    third = tmp_path / "3"
    for folder, updates, minutes in ((first, 8, "0.0"), (second, 8, "0.1"), (third, 9, "0.0")):
        folder.mkdir(exist_ok=True)
        card = {"training": {"training": f"{updates} updates, {minutes} minutes (cpu)"}}
        (folder / "facts.json").write_text(json.dumps(card))
        (folder / "README.md").write_text(f"{updates} updates, {minutes} minutes (cpu)")
    assert differing(left(first), left(second)) == []
    assert {"README.md", "facts.json"} <= {*differing(left(first), left(third))}


@pytest.mark.parametrize(
    ("code", "said", "same", "outcome", "is_fault"),
    [
        (0, "", True, "unchanged", False),
        (0, "", False, "silent", True),
        (0, "warning: m/a.json:1: altered", False, "warned", False),
        (2, "error: m/a.json is damaged.", False, "refused", False),
        (2, "error: something is damaged.", False, "refused", True),
        (2, "Traceback", False, "fell over", True),
        (1, "error: m/a.json", False, "fell over", True),
        (-9, "", False, "fell over", True),
    ],
)
def test_answers_are_judged(code: int, said: str, same: bool, outcome: str, is_fault: bool) -> None:
    judged, faults = _judged(Ended(code, said), Ended(0, ""), "m/a.json", same)
    assert (judged, bool(faults)) == (outcome, is_fault)


@pytest.mark.parametrize("how", sorted(_HARMS))
def test_harm_is_done(how: str) -> None:
    """A random letter may by chance be the original one."""
    content, draw = b"line 1\nline 2\nline 3\n" * 20, random.Random(3)
    assert sum(_HARMS[how](content, draw) != content for _ in range(20)) >= 15


def test_counts() -> None:
    tally = Tally()
    tally.add("a", "resumed", [])
    tally.add("b", "resumed", ["lost"])
    assert tally.line("x").split() == ["x", "2", "cases", "1", "FAULT,", "1", "resumed"]
    assert tally.faults == ["b: lost"]


_SOME_PAIRS = "train --overwrite twice,bpe learn twice"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The counts of all series, including the pairs, which use the same stock.

    From a separate process, which is forked for each case and so must have no threads.
    """
    counts = tmp_path_factory.mktemp("faults") / "counts.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--only", "kills,disk,flips,pairs", "--rounds", "1",
         "--pairs", "1", "--names", _SOME_PAIRS, "--json", counts],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    results: dict[str, Any] = json.loads(counts.read_text(encoding="utf-8"))
    return results


def test_nothing_is_lost_torn_or_changed_without_a_word(counted: dict[str, Any]) -> None:
    results = {name: entry for name, entry in counted.items() if not name.startswith("pair")}
    for series, count in (("kill", 11), ("full", 11), ("harm", 12)):
        series_counts = [entry for name, entry in results.items() if name.startswith(series)]
        assert len(series_counts) == count and all(entry["cases"] >= 1 for entry in series_counts)
    assert results["kill train"]["outcomes"].keys() <= {"resumed", "restarted"}


_IN_USE = "error: The folder x is in use: `nmtgrid train` (process 7 on here, since now) writes."
_TAKEN, _WON = Ended(2, _IN_USE), Ended(0, "")
_STATES = [
    Undisturbed((0,), {0: 0}, {"x": {"a": 0}}),
    Undisturbed((1,), {1: 0}, {"x": {"a": 1}}),
    Undisturbed((0, 1), {0: 0, 1: 0}, {"x": {"a": 1}}),
    Undisturbed((1, 0), {1: 0, 0: 2}, {"x": {"a": 1}}),
]


@pytest.mark.parametrize(
    ("ended", "value", "outcome", "words"),
    [
        ((_WON, _TAKEN), 0, "one refused", ""),
        ((_WON, _TAKEN), 2, "one refused", "not whole"),
        ((_WON, Ended(2, "error: no")), 0, "one refused", "name the holder"),
        ((_WON, Ended(2, _IN_USE.replace("7", "9"))), 0, "one refused", "names process 9"),
        ((_WON, _WON), 1, "sequential", ""),
        ((Ended(2, "error: x is there already"), _WON), 1, "sequential", ""),
        ((_WON, _WON), 0, "", "unlike all"),
        ((_TAKEN, _TAKEN), 0, "", "unlike all"),
        ((_WON, Ended(1, "Traceback")), 0, "", "ended with 1"),
    ],
)
def test_two_at_once_are_judged(
    ended: tuple[Ended, Ended], value: int, outcome: str, words: str
) -> None:
    pair = Pair("p", ["train"], ["train"], {}, ["x"])
    judgement, faults = judged(pair, ended, [7, 8], {"x": {"a": value}}, _STATES)
    assert judgement == outcome and bool(faults) == bool(words)
    assert all(words in fault for fault in faults)


def test_of_two_at_once_one_wins_whole(counted: dict[str, Any]) -> None:
    """Once, and once with a kill; `python -m tests.faults --pairs 20` runs more."""
    results = {name: entry for name, entry in counted.items() if name.startswith("pair")}
    assert len(results) == 2 and all(entry["cases"] == 2 for entry in results.values())
