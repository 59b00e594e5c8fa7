"""Memory: giving back what was freed, and knowing when it ran out."""

from __future__ import annotations

import contextlib
import ctypes
import sys

import torch

_WANTS = (
    "defaultcpuallocator", "not enough memory", "out of memory", "alloc_failed",
    "unable to find an engine",
)  # fmt: skip
"""What errors say: of torch's allocators, of CUDA and its libraries, of cuDNN's convolutions."""


def give_back() -> None:
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
