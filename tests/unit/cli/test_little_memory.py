"""Too little memory is reported as such, also while torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nmtgrid
from nmtgrid.base.devices import find_device
from nmtgrid.cli import app
from tests.conftest import PROJECT

NUMPY = ImportError("IMPORTANT: PLEASE READ THIS")
NUMPY.__cause__ = ImportError("libopenblas.so: failed to map segment from shared object")

FAULTS = [
    (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "load torch"),
    (ImportError("libgomp.so.1: cannot allocate memory in static TLS block"), "load torch"),
    (NUMPY, "load torch"),
    (OSError(12, "Cannot allocate memory"), "memory of this machine is full"),
    (MemoryError(), "memory of this machine is full"),
    (RuntimeError("can't start new thread"), "memory of this machine is full"),
    (RuntimeError("could not create a primitive"), "memory of this machine is full"),
    (RuntimeError("DefaultCPUAllocator: not enough memory"), "memory of this machine is full"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_faults_for_want_of_memory(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fault: Exception, words: str
) -> None:
    def run(words: list[str]) -> int:
        raise fault

    monkeypatch.setattr(app, "_run", run)
    assert app.main(["decode"]) == 2
    message = capfd.readouterr().err
    assert words in message and "bug in nmtgrid" not in message


def test_products_of_wrong_sizes_are_not_for_want_of_memory(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(words: list[str]) -> int:
        raise RuntimeError("could not create a primitive descriptor for the inner product")

    monkeypatch.setattr(app, "_run", run)
    assert app.main(["train"]) == 1
    assert "primitive descriptor" in capfd.readouterr().err


GPU_FULL = (
    "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 79.11 GiB of which "
    "118.75 MiB is free. Of the allocated memory 72.00 GiB is allocated by PyTorch, and 6.50 GiB "
    "is reserved by PyTorch but unallocated."
)
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.mark.parametrize(
    ("command", "option"),
    [("train", "`batches.max_tokens`"), ("decode", "`--batch-tokens`"), ("analyze", "batches")],
)
@pytest.mark.parametrize(("asked", "in_pieces"), [("512.00 MiB", True), ("7.00 GiB", False)])
def test_a_full_gpu(
    command: str, option: str, asked: str, in_pieces: bool,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def run(words: list[str]) -> int:
        raise torch.OutOfMemoryError(GPU_FULL.format(asked))

    monkeypatch.setattr(app, "_run", run)
    assert app.main([command]) == 2
    message = " ".join(capfd.readouterr().err.split())
    assert "memory of the GPU is full" in message and option in message
    assert (ALLOCATOR in message) == in_pieces
    assert ("6.5 GiB are free, but in pieces" in message) == in_pieces


def test_no_memory_even_for_the_message(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def report(*arguments: object) -> int:
        raise MemoryError

    monkeypatch.setattr(app, "_report", report)
    assert app.main(["no-such-command"]) == 2
    assert "memory of this machine is full" in capfd.readouterr().err


@pytest.mark.parametrize("limit", [200_000, 500_000])
def test_a_limit_too_small_for_torch(tmp_path: Path, limit: int) -> None:
    command = f"ulimit -v {limit}; exec {sys.executable} -m nmtgrid decode MODEL"
    run = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    assert run.returncode == 2
    assert "torch alone needs more" in run.stderr and "ulimit" in run.stderr


def test_caches_of_shapes_are_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path
) -> None:
    """On the command line and in Python, and smaller for training."""
    names = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    find_device("cpu", is_training=True)
    assert [int(os.environ.pop(name)) for name in names] == [32, 128]
    nmtgrid.load(tiny_model, device="cpu")
    assert [int(os.environ.pop(name)) for name in names] == [32, 1024]
    (tmp_path / "text").write_text("la\n")
    command = ["decode", str(tiny_model), str(tmp_path / "text"), "--out", str(tmp_path / "out")]
    assert app.main([*command, "--device", "cpu"]) == 0
    assert [int(os.environ[name]) for name in names] == [32, 1024]
    monkeypatch.setenv(names[0], "7")
    nmtgrid.load(tiny_model, device="cpu")
    assert os.environ[names[0]] == "7"
