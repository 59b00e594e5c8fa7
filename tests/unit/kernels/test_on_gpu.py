"""What the machine offers: Triton that works or not, the processor's maker."""

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nmtgrid.base import devices
from nmtgrid.base.devices import is_intel
from nmtgrid.layers.kernels import triton_support


@pytest.fixture(autouse=True)
def _ask_anew() -> Iterator[None]:
    triton_support.has_triton.cache_clear()
    yield
    triton_support.has_triton.cache_clear()


def test_a_failing_compiler_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC.")

    monkeypatch.setattr(triton_support, "_try_kernel", fail)
    assert not triton_support.has_triton()
    assert not triton_support.has_triton()
    assert messages == [
        "triton: its kernels cannot be compiled here (Failed to find C compiler.); slower ones of "
        "torch are used."
    ]


def test_a_want_of_memory_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    """Smaller batches follow it, for which the kernels that work are to be used."""

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(triton_support, "_try_kernel", fail)
    with pytest.raises(torch.OutOfMemoryError):
        triton_support.has_triton()
    monkeypatch.setattr(triton_support, "_try_kernel", lambda: None)
    assert triton_support.has_triton()
    assert not messages


@pytest.mark.parametrize(
    ("free", "unused", "expected"), [(1, 1, True), (2, 1, False), (0, 3, False)]
)
def test_a_missing_engine_is_a_want_of_memory_only_where_there_is_little(
    free: int, unused: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 GiB, a quarter or less being free; what torch keeps without using it is free too."""
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * gib, 8 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: (4 + unused) * gib)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 4 * gib)
    fault = RuntimeError("GET was unable to find an engine to execute this computation")
    assert devices.is_out_of_memory(fault) is expected


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    assert triton_support.has_triton() == (torch.version.cuda is not None)


@pytest.fixture(autouse=True)
def _forgetting() -> Iterator[None]:
    is_intel.cache_clear()
    yield
    is_intel.cache_clear()


@pytest.mark.parametrize(
    ("maker", "named", "expected"),
    [
        ("AuthenticAMD", "", False),
        ("GenuineIntel", "", True),
        (None, "AMD64 Family 25, AuthenticAMD", False),
        (None, "Intel64 Family 6, GenuineIntel", True),
        (None, "arm", False),
    ],
)
def test_the_maker_is_read_or_asked_for(
    maker: str | None, named: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the kernel's list of processors or, where there is none, asked of Python."""
    listed = tmp_path / "cpuinfo"
    if maker is not None:
        listed.write_text(f"processor : 0\nvendor_id : {maker}\n", encoding="utf-8")
    monkeypatch.setattr(devices, "Path", lambda _: listed)
    monkeypatch.setattr(platform, "processor", lambda: named)
    assert is_intel() is expected


def test_every_kernel_of_triton_is_compiled_in_a_test() -> None:
    """For both capabilities, and without spills: `assembly` in triton_interpreter.py checks."""
    files = sorted(Path(triton_support.__file__).parent.glob("*_triton.py"))
    assert len(files) == 4
    for file in files:
        source = (Path(__file__).parent / f"test_{file.name}").read_text(encoding="utf-8")
        assert "assembly(" in source and "80" in source and "90" in source
