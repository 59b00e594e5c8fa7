"""Laws of training on several processes: together they do what one alone would have done."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.training.distributed import Processes
from tests.conftest import PROJECT
from tests.laws.helpers import Case, basic_cases
from tests.laws.two_processes import train


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes left what they trained."""
    folder = tmp_path_factory.mktemp("together")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
    running = []
    for rank in range(2):
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.laws.two_processes", str(folder)],
                cwd=PROJECT, env=environment, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    errors = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    return folder


@pytest.mark.parametrize("kind", ["whole", "shards"])
@pytest.mark.parametrize("case", basic_cases(), ids=str)
def test_two_processes_are_one(case: Case, kind: str, together: Path) -> None:
    """Weights, loss and gradient norm after two updates, to rounding; counts exactly.

    So it is with whole weights in each, and with shards of them.
    """
    found = load_tensors(together / f"{case}-{kind}.safetensors")
    weights, result = train(case, Processes())
    assert found["counts"].tolist() == [result.tokens, result.pairs, result.cells]
    sums = torch.tensor([result.loss, result.nll, result.gradient_norm], dtype=torch.float64)
    torch.testing.assert_close(found["sums"], sums, rtol=1e-5, atol=0.0)
    for name, wanted in weights.items():
        torch.testing.assert_close(found[f"weights|{name}"], wanted, rtol=1e-4, atol=2e-6)
