"""recipes/machine.py: the machine of a record, and how fast it is."""

import subprocess
import time
from pathlib import Path

import pytest
import torch

from recipes import machine


def test_the_speed_is_that_of_the_best_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock in steps, products take 4, 2, then 1 second: 2 ROWS INPUTS OUTPUTS a second."""
    ticks = iter([0.0, 4.0, 10.0, 12.0, 20.0, 21.0] * len(machine.PRECISIONS))
    monkeypatch.setattr(machine, "ROUNDS", 3)
    monkeypatch.setattr(time, "process_time", lambda: next(ticks))
    billions = round(2 * machine.ROWS * machine.INPUTS * machine.OUTPUTS / 1e9)
    assert machine.speed() == {"fp32": billions, "bf16": billions}


def test_measuring_leaves_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()

    def fail(*_: object) -> float:
        assert torch.get_num_threads() == 1
        raise RuntimeError("no product")

    monkeypatch.setattr(machine, "_product", fail)
    with pytest.raises(RuntimeError):
        machine.speed()
    assert torch.get_num_threads() == before


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        ended = subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return ended.stdout.strip()

    assert machine.commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "code").write_text("one")
    git("add", "code")
    git("commit", "-qm", "one")
    git("tag", "v1")
    head = git("rev-parse", "--short", "HEAD")
    assert machine.commit(tmp_path) == head
    (tmp_path / "runs").mkdir()  # a folder in the checkout that is none itself
    assert machine.commit(tmp_path / "runs") is None
    (tmp_path / "code").write_text("two")
    assert machine.commit(tmp_path) == f"{head}+"


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.commit() is None
