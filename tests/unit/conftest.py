"""Shared by the unit tests: a toy dataset, messages, and commands that must fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.cli.app import main
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, toy_data, train


@pytest.fixture(scope="session")
def toy_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy dataset of 60 pairs with 40 merges, which tests must not change."""
    return toy_data(tmp_path_factory.mktemp("toy") / "data")


@pytest.fixture(scope="session")
def tiny_model(toy_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small transformer after two updates, which tests must not change."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    assert train(toy_dataset, "--out", folder, *SMALL_TRANSFORMER, "--max-updates", 2) == 0
    return folder


@pytest.fixture
def mended_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.kernels.triton_interpreter import mend  # which imports torch

    mend(monkeypatch)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail without a traceback; return its message in one line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main(list(map(str, arguments))) == 2
        message = capsys.readouterr().err
        assert message.count("error: ") == 1 and "Traceback" not in message
        return " ".join(message.split())

    return run
