"""Memory of this process, when what is freed goes back to the system; contexts of computing."""

import mmap
import sys

import pytest
import torch

from nmtgrid.base import devices
from nmtgrid.base.devices import HeapTrimmer, resident_bytes, without_gradients

MEGABYTE = 2**20


def _trims(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> list[bool]:
    """Return which calls of a trimmer free memory, for a process of these sizes in megabytes."""
    trimmed: list[None] = []
    monkeypatch.setattr(devices, "free_memory", lambda: trimmed.append(None))
    trimmer, results = HeapTrimmer(), []
    for size in sizes:
        monkeypatch.setattr(devices, "resident_bytes", lambda size=size: size * MEGABYTE)
        before = len(trimmed)
        trimmer.trim()
        results.append(len(trimmed) > before)
    return results


def test_what_is_under_autocast_is_not_in_inference_mode() -> None:
    """There torch would cast the weights anew at each use."""
    with without_gradients():
        assert torch.is_inference_mode_enabled() != torch.cuda.is_available()
        assert not torch.is_grad_enabled()
    with devices.autocast(torch.device("cpu"), True), without_gradients():
        assert not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_memory_goes_back_once_a_process_has_grown_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(_trims(monkeypatch, [1000, 1500, 900, 1499, 1500]))
    # What a trimming leaves is not the measure, but what the updates after it take.
    grown = _trims(monkeypatch, [1000, 1501, 1000, 1400, 1502, 1200, 1700, 1801])
    assert grown == [False, True, False, False, True, False, False, True]


def test_small_processes_may_grow_by_more_than_half(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _trims(monkeypatch, [100, 200, 356, 357]) == [False, False, False, True]


def test_systems_that_do_not_tell_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(_trims(monkeypatch, [0, 0, 0]))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how much memory a process takes")
def test_memory_of_this_process() -> None:
    before = resident_bytes()
    # Mapped and not allocated: an allocation may take memory that the process already occupies.
    with mmap.mmap(-1, 64 * MEGABYTE) as block:
        block[::4096] = b"x" * len(block[::4096])
        assert resident_bytes() - before > 48 * MEGABYTE
    assert before > 10 * MEGABYTE
