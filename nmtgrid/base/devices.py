"""Devices: finding one by name, free memory, out-of-memory errors, vendors, random states."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from nmtgrid.base.errors import DeviceError

# Fragments of error messages of torch's allocators, and of CUDA and its libraries.
_OUT_OF_MEMORY = (
    "defaultcpuallocator", "not enough memory", "out of memory", "alloc_failed",
)  # fmt: skip
_NO_ENGINE = "unable to find an engine"
"""cuDNN's error for too little memory, but also for unsupported shapes and types."""


def autocast(device: torch.device, bf16: bool) -> torch.autocast:
    """Return the context that models compute in: bfloat16, or the type of their weights."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16)


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Compute without gradients; on a CPU in inference mode, where small operations take 10% less.

    Inference mode is not used under autocast, which caches no cast weights in it, nor on GPUs,
    where it has not been measured. Tensors created in inference mode can be neither changed
    outside it nor used in training.
    """
    is_plain = not torch.is_autocast_enabled("cpu") and not torch.cuda.is_available()
    with torch.inference_mode() if is_plain else torch.no_grad():
        yield


def free_memory() -> None:
    """Return freed memory from the C library's heap to the system (glibc only).

    Tensors of ever-changing sizes leave holes in the heap, which would grow by gigabytes an hour.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


class HeapTrimmer:
    """Returns freed memory to the system if the process has grown by holes in its heap (Linux).

    The system has to zero all those pages again for the next update or search, so that returning
    memory at fixed intervals would cost time.
    """

    def __init__(self) -> None:
        self._limit = 0

    def trim(self) -> None:
        """Call `free_memory` if the process has grown by half, and by at least 256 MiB.

        Growth counts from the first call, or from the first one after memory was returned.
        """
        size = resident_bytes()
        if self._limit and size > self._limit:
            free_memory()
            self._limit = 0
        else:
            # A small process soon grows by half, which is not worth trimming.
            self._limit = self._limit or max(size * 3 // 2, size + _LEAST_GROWTH)


_LEAST_GROWTH = 2**28


def resident_bytes() -> int:
    """Return the bytes of memory that this process occupies, or 0 if the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def keep_memory() -> None:
    """Let the C library keep freed memory until `free_memory` is called (glibc only).

    By default it returns the end of its heap after each training update or search step, and the
    system has to zero all those pages again for the next one.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libc.so.6")
            for option, size in _MALLOC_OPTIONS.items():
                library.mallopt(option, size)


_MALLOC_OPTIONS = {-1: 2**31 - 1, -3: 2**25}
"""M_TRIM_THRESHOLD, and M_MMAP_THRESHOLD at the maximum to which glibc itself raises it."""


def is_out_of_memory(fault: BaseException) -> bool:
    """Return whether `fault` says that memory ran out, on any device."""
    if isinstance(fault, (torch.OutOfMemoryError, MemoryError)):
        return True
    message = str(fault).lower()
    if not isinstance(fault, RuntimeError):
        return False
    if _NO_ENGINE in message:
        return _is_short_of_memory()
    return any(words in message for words in _OUT_OF_MEMORY)


def is_of_gpu(fault: BaseException) -> bool:
    """Return whether memory ran out on a GPU, not on the machine."""
    message = str(fault).lower()
    return isinstance(fault, torch.OutOfMemoryError) or any(word in message for word in _GPU)


_GPU = ("cuda", "cudnn", "cublas", _NO_ENGINE)


def fragmentation_advice(fault: BaseException) -> str:
    """Return advice if a GPU has enough free memory, but fragmented; else an empty string.

    torch's error says how much was requested, and how much is reserved but unallocated.
    """
    asked, unused = (_size(pattern, str(fault)) for pattern in (_ASKED, _UNUSED))
    if not asked or unused < asked:
        return ""
    return (
        f"{unused / 2**30:.2g} GiB are free, but in pieces: set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment."
    )


_SIZE = r"([\d.]+) ([KMG]?)i?B"
_ASKED, _UNUSED = f"Tried to allocate {_SIZE}", f"{_SIZE} is reserved by PyTorch but unallocated"


def _size(pattern: str, message: str) -> float:
    """Return the number of bytes that `pattern` matches in a message, or 0 without a match."""
    match = re.search(pattern, message)
    return float(match[1]) * 1024.0 ** " KMG".index(match[2] or " ") if match else 0.0


def _is_short_of_memory() -> bool:
    """Return whether at most a quarter of the GPU's memory is free; True if there is no GPU."""
    if not torch.cuda.is_available():
        return True
    free, total = torch.cuda.mem_get_info()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free + unused <= total // 4


@functools.cache
def is_intel() -> bool:
    """Return whether the processor is Intel's, according to the kernel or else to Python."""
    try:
        vendors = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        vendors = platform.processor()
    return "GenuineIntel" in vendors


def find_device(name: str, *, is_training: bool = False) -> torch.device:
    """Return the device called `name`: `cpu`, `cuda`, `cuda:1`, or `auto` (a GPU if there is one).

    A GPU becomes torch's current device and computes fp32 without TF32. The CPU's caches of shapes
    are bounded unless the environment sets their sizes, more tightly if `is_training`.

    Raises DeviceError if the device is not available.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        # Refused below, with the known names.
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise DeviceError(f"There is no device `{name}`.", "Use `auto`, `cpu` or `cuda`.")
    if device.type == "cuda" and not count:
        raise DeviceError(
            f"The device `{name}` is not available: torch finds no CUDA device on this machine.",
            "Use `cpu` or `auto` (the default).",
        )
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DeviceError(
            f"The device `{name}` is not available: there are only {count} (from 0).",
            "Give a smaller number.",
        )
    # By default torch and oneDNN cache primitives of the last 1,024 shapes: hundreds of MB in
    # training, where shapes of text batches hardly recur. The shapes of a search recur in its next
    # batch, and reading policies have more than 128 of them. Both libraries read these variables
    # when they first compute.
    os.environ.setdefault("LRU_CACHE_CAPACITY", "32")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128" if is_training else "1024")
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        # By default cuDNN's convolutions and LSTMs compute fp32 with TF32's 10-bit mantissa.
        torch.backends.cudnn.allow_tf32 = False
    return device


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators that a run on `device` draws from, as uint8 tensors."""
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the states that `random_states` returned, whichever GPU they come from.

    Older checkpoints have the states of all GPUs by number: that of `device` is used, or the first.
    """
    # The generators accept states on the CPU only.
    torch.set_rng_state(states["random.cpu"].cpu())
    if device.type == "cuda":
        names = ("random.cuda", f"random.cuda.{device.index or 0}", "random.cuda.0")
        name = next((name for name in names if name in states), None)
        if name is not None:
            torch.cuda.set_rng_state(states[name].cpu(), device)
