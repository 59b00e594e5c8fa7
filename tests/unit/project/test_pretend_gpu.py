"""Behaviour on a GPU, measured on a pretend GPU: see tests/pretend_gpu.

Bounds are lowered by `python -m tests.pretend_gpu --lower`, which never raises one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.cli.objectives import objectives
from nmtgrid.models import zoo
from tests.pretend_gpu import stub

FILE = Path(__file__).resolve().parents[2] / "pretend_gpu/bounds.json"
BOUNDS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The faults of each case, from a separate process, because the pretend GPU modifies torch."""
    if stub.compiler() is None:
        pytest.skip("there is no C++ compiler for the stub of torch's device guard")
    path = tmp_path_factory.mktemp("pretend-gpu") / "faults.json"
    subprocess.run(
        [sys.executable, "-m", "tests.pretend_gpu", "--out", str(path)],
        cwd=FILE.parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    measured: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return measured


@pytest.mark.parametrize("name", BOUNDS["cases"])
def test_nothing_is_mixed_or_waited_for_beyond_its_bound(name: str, faults: dict[str, Any]) -> None:
    assert faults["cases"][name] == []


def test_every_architecture_and_objective_is_tried(faults: dict[str, Any]) -> None:
    words = [name.split()[:2] for name in faults["cases"]]
    assert {arch for arch, _ in words} == set(zoo.text_architectures())
    assert {objective for _, objective in words} == set(objectives)
    assert faults["cases"].keys() == BOUNDS["cases"].keys()


def test_planted_faults_are_noticed(faults: dict[str, Any]) -> None:
    assert faults["planted"] == {"mixes": 1, "waits": 3, "copies": 1, "forbidden": 2}


@pytest.mark.parametrize("optimiser", ["adamw", "muon", "nesterov"])
def test_a_loss_that_is_no_number_moves_nothing_and_is_told_late(
    optimiser: str, faults: dict[str, Any]
) -> None:
    assert faults["broken"][optimiser] == ""


def test_the_protocol_for_the_first_gpu_runs(faults: dict[str, Any]) -> None:
    assert faults["protocol"] == []


def test_bounds_only_fall() -> None:
    from tests.pretend_gpu.__main__ import above, lowered

    old = {"a": {"update": {"waits": 4, "launches": 9}}}
    new = {"a": {"update": {"waits": 5, "launches": 7}}, "b": {"update": {"waits": 1}}}
    assert lowered(old, new) == {
        "a": {"update": {"waits": 4, "launches": 7}}, "b": {"update": {"waits": 1}}
    }  # fmt: skip
    assert above(old, "a", new["a"]) == ["update: 5 waits, but the bound is 4"]
    assert above(old, "b", new["b"]) == ["update: 1 waits, but the bound is missing"]
