"""Triton that does not work is told of once, and done without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nmtgrid.layers.kernels import on_gpu


@pytest.fixture(autouse=True)
def _ask_anew() -> Iterator[None]:
    on_gpu.has_triton.cache_clear()
    yield
    on_gpu.has_triton.cache_clear()


def test_a_failing_compiler_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC.")

    monkeypatch.setattr(on_gpu, "_try_kernel", fail)
    assert not on_gpu.has_triton()
    assert not on_gpu.has_triton()
    assert told == [
        "triton: its kernels cannot be compiled here (Failed to find C compiler.); slower ones of "
        "torch are used."
    ]


def test_a_working_compiler_is_used(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    monkeypatch.setattr(on_gpu, "_try_kernel", lambda: None)
    assert on_gpu.has_triton()
    assert not told


def test_a_want_of_memory_is_no_verdict(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    """Smaller batches follow it, for which the kernels are to be used."""

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(on_gpu, "_try_kernel", fail)
    with pytest.raises(torch.OutOfMemoryError):
        on_gpu.has_triton()
    monkeypatch.setattr(on_gpu, "_try_kernel", lambda: None)
    assert on_gpu.has_triton()
    assert not told


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    assert on_gpu.has_triton() == (torch.version.cuda is not None)
