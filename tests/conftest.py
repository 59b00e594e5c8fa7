"""What all tests share: one thread, a fixed seed, and which marked tests are skipped where."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from nmtgrid.base import console

PROJECT = Path(__file__).resolve().parent.parent
ROOM = 2**30
"""Bytes that must be free in memory for what tests write, many times as much."""


def recipe_module(name: str) -> ModuleType:
    """Return the program recipes/NAME.py, which lies outside of all packages, as a module."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / f"recipes/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_configure() -> None:
    """Let the files of `tmp_path` lie in memory, if it has room: tests would wait for disks.

    Tables have the width that tests give them, not that of this terminal.
    """
    os.environ.pop("COLUMNS", None)
    memory = Path("/dev/shm")
    if memory.is_dir():
        room = os.statvfs(memory)
        if room.f_bavail * room.f_frsize >= ROOM and not room.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU or real data where there is none."""
    no_gpu = pytest.mark.skip(reason="no CUDA device here")
    no_data = pytest.mark.skip(reason="NMTGRID_DATA names no folder")
    for item in items:
        # Not by keywords: the names of the folders above are among them.
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("real") and not os.environ.get("NMTGRID_DATA"):
            item.add_marker(no_data)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let Python look for garbage among what tests make, not among themselves."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Start each test with the same random state; leave no setting of torch behind."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # as the command line has it
    # Not by torch.manual_seed, which notes a traceback for each kind of device that is not there.
    torch.default_generator.manual_seed(1)
    kind = torch.get_default_dtype()
    yield
    torch.set_default_dtype(kind)


@pytest.fixture
def data_folder() -> Path:
    """The folder of real data."""
    return Path(os.environ["NMTGRID_DATA"])


@pytest.fixture
def project() -> Path:
    """The folder of the repository."""
    return PROJECT


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that is said, warned of and refused."""
    lines: list[str] = []
    monkeypatch.setattr(console, "say", lines.append)
    monkeypatch.setattr(console, "warn", lines.append)
    monkeypatch.setattr(console, "error", lambda *words: lines.append(" ".join(words)))
    return lines
