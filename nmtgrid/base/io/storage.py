"""Tensors in safetensors files: the one door to that package."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from nmtgrid.base.io.arrays import CHECKSUM, UNKNOWN, verify, with_checksum
from nmtgrid.base.io.atomic import atomic_file, damaged, explain


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` as a safetensors file with `facts` (text) and a checksum in its header."""
    from safetensors.torch import save

    held = {name: t.detach().to("cpu").contiguous() for name, t in sorted(tensors.items())}
    # Tensors that share memory (tied weights) are stored once for each name: clone the repeats.
    seen: set[int] = set()
    for name, tensor in held.items():
        if tensor.data_ptr() in seen:
            held[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    blob = memoryview(save(held, {**(facts or {}), CHECKSUM: UNKNOWN}))
    start = 8 + struct.unpack("<Q", blob[:8])[0]
    with atomic_file(path) as file:
        file.write(with_checksum(bytes(blob[:start]), [blob[start:]]))
        file.write(blob[start:])


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of `path`, on the CPU.

    Raises StorageError when the file is missing, truncated or altered.
    """
    from safetensors.torch import load

    verify(path)
    try:
        return load(path.read_bytes())
    except OSError as fault:
        raise explain(path, fault, "read") from fault
    except Exception as fault:
        raise damaged(path, str(fault)) from fault
