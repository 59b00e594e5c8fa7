"""Which maker's processor this machine has, for it decides which way to multiply is fast."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


@functools.cache
def is_intel() -> bool:
    """Return whether Intel made the processor: as the kernel lists it, or else as Python says."""
    try:
        makers = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        makers = platform.processor()
    return "GenuineIntel" in makers
