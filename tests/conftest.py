"""Shared by all tests: a single thread, a fixed seed, and conditions for skipping marked tests."""

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
"""Minimum free space in memory, in bytes, for test files: many times as much as tests write."""


def recipe_module(name: str) -> ModuleType:
    """Return the program recipes/NAME.py, which is outside of all packages, as a module."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / f"recipes/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_configure() -> None:
    """Put the files of `tmp_path` in memory, if it has room, so that tests do not wait for disks.

    Tables have the width that tests give them, not that of the terminal.
    """
    os.environ.pop("COLUMNS", None)
    memory = Path("/dev/shm")
    if memory.is_dir():
        room = os.statvfs(memory)
        if room.f_bavail * room.f_frsize >= ROOM and not room.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a GPU or real data if there is none."""
    no_gpu = pytest.mark.skip(reason="no CUDA device here")
    no_data = pytest.mark.skip(reason="NMTGRID_DATA names no folder")
    for item in items:
        # Not by keywords, which include the names of the parent folders.
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("real") and not os.environ.get("NMTGRID_DATA"):
            item.add_marker(no_data)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude the collected tests from garbage collection, but not the objects they create."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Start each test with the same random state; restore torch's settings afterwards."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # as on the command line
    # Not with torch.manual_seed, which records a traceback for each missing kind of device.
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
    """All printed lines, warnings and errors."""
    lines: list[str] = []
    monkeypatch.setattr(console, "say", lines.append)
    monkeypatch.setattr(console, "warn", lines.append)
    monkeypatch.setattr(console, "error", lambda *words: lines.append(" ".join(words)))
    return lines
