"""Triton that does not work is told of once, and done without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nmtgrid.layers.kernels import triton_support


@pytest.fixture(autouse=True)
def _ask_anew() -> Iterator[None]:
    triton_support.has_triton.cache_clear()
    yield
    triton_support.has_triton.cache_clear()


def test_a_failing_compiler_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC.")

    monkeypatch.setattr(triton_support, "_try_kernel", fail)
    assert not triton_support.has_triton()
    assert not triton_support.has_triton()
    assert told == [
        "triton: its kernels cannot be compiled here (Failed to find C compiler.); slower ones of "
        "torch are used."
    ]


def test_a_working_compiler_is_used(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    monkeypatch.setattr(triton_support, "_try_kernel", lambda: None)
    assert triton_support.has_triton()
    assert not told


def test_a_want_of_memory_is_no_verdict(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    """Smaller batches follow it, for which the kernels are to be used."""

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(triton_support, "_try_kernel", fail)
    with pytest.raises(torch.OutOfMemoryError):
        triton_support.has_triton()
    monkeypatch.setattr(triton_support, "_try_kernel", lambda: None)
    assert triton_support.has_triton()
    assert not told


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    assert triton_support.has_triton() == (torch.version.cuda is not None)
