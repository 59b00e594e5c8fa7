"""Giving freed memory back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def give_back() -> None:
    """Return what the C library holds of freed memory to the system (glibc only; else nothing).

    Tensors of ever-changing sizes leave holes in its heap, which would grow by gigabytes an hour.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
