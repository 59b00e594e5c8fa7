"""Laws of training on several processes: together they do what a single process would do."""

from pathlib import Path

import pytest
import torch

from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.training.distributed import Processes
from tests.conftest import PROJECT
from tests.invariants.helpers import Case, every_architecture
from tests.invariants.two_processes import RATES, train
from tests.unit.helpers.train_command import on_two_ranks


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the weights that two processes trained."""
    folder = tmp_path_factory.mktemp("together")
    results = on_two_ranks("tests.invariants.two_processes", [folder], PROJECT, PROJECT)
    assert [code for code, _ in results] == [0, 0], results
    return folder


@pytest.mark.parametrize("kind", RATES)
@every_architecture
def test_two_processes_are_one(case: Case, kind: str, together: Path) -> None:
    """Weights, loss and gradient norm after two updates, to rounding; counts exactly.

    This holds with whole weights in each process, and with shards; both have the same weights, bit
    for bit. Muon iterates in bfloat16, in which a different rounding of the gradient changes a step
    by 1 %.
    """
    saved = load_tensors(together / f"{case}-{kind}.safetensors")
    assert saved["copies"] == 1
    weights, result = train(case, Processes(), kind)
    assert saved["counts"].tolist() == [result.tokens, result.pairs, result.cells]
    sums = torch.tensor([result.loss, result.nll, result.gradient_norm], dtype=torch.float64)
    rtol, atol = (1e-3, 0.01 * RATES[kind]) if kind == "muon" else (1e-5, 2e-6)
    torch.testing.assert_close(saved["sums"], sums, rtol=rtol, atol=0.0)
    for name, value in weights.items():
        torch.testing.assert_close(saved[f"weights|{name}"], value, rtol=1e-4, atol=atol)
