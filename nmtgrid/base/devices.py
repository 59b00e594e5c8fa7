"""Where to compute: names of devices, and what is told where there is none."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import sys
from pathlib import Path

import torch

from nmtgrid.base.errors import DeviceError

_WANTS = (
    "defaultcpuallocator", "not enough memory", "out of memory", "alloc_failed",
    "unable to find an engine",
)  # fmt: skip
"""What errors say: of torch's allocators, of CUDA and its libraries, of cuDNN's convolutions."""


def free_memory() -> None:
    """Return what the C library holds of freed memory to the system (glibc only; else nothing).

    Tensors of ever-changing sizes leave holes in its heap, which would grow by gigabytes an hour.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def is_out_of_memory(fault: BaseException) -> bool:
    """Return whether `fault` says that memory ran out, on any device."""
    if isinstance(fault, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(fault).lower()
    return isinstance(fault, RuntimeError) and any(words in text for words in _WANTS)


@functools.cache
def is_intel() -> bool:
    """Return whether Intel made the processor: as the kernel lists it, or else as Python says."""
    try:
        makers = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        makers = platform.processor()
    return "GenuineIntel" in makers


def find_device(name: str) -> torch.device:
    """Return the device called `name`: `cpu`, `cuda`, `cuda:1`, or `auto` (a GPU if there is one).

    A GPU becomes torch's current one, and computes fp32 without TF32.

    Raises DeviceError when it is not there.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"There is no device `{name}`.", "Use `auto`, `cpu` or `cuda`.")
    if device.type == "cuda" and not count:
        raise DeviceError(
            f"The device `{name}` was asked for, but torch finds no CUDA device on this machine.",
            "Use `cpu` or `auto` (the default).",
        )
    if (device.index or 0) >= max(count, 1):
        raise DeviceError(
            f"The device `{name}` was asked for, but there are only {count} (from 0).",
            "Give a smaller number.",
        )
    if device.type == "cuda":
        _use(device)
    return device


def _use(device: torch.device) -> None:
    """Let `device` be the current one, and fp32 be fp32: convolutions and LSTMs take TF32 else."""
    if device.index is not None:
        torch.cuda.set_device(device)
    torch.backends.cudnn.allow_tf32 = False
