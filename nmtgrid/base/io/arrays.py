"""Tensors in safetensors files: the one door to that package."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.io.atomic import (
    atomic_file,
    damaged_error,
    remove,
    remove_stale,
    storage_error,
    temporary_path,
)

CHECKSUM = "nmtgrid.sha256"
"""The header's entry that holds the checksum."""
_WHOLE = "whole:"
"""Before a checksum that counts the header in, its own digits as zeros."""
UNKNOWN = _WHOLE + "0" * 64
"""In the place of a checksum that is not known yet."""
_LARGEST_HEADER = 64 * 1024 * 1024
_BLOCK = 1 << 22
_NUMPY_TYPES = {
    "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "I8": "<i1", "I16": "<i2",
    "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?",
}  # fmt: skip


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return a safetensors file's (entries, facts, first byte of the data), sizes checked."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
            if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
                raise damaged_error(path, "its header is cut or not one of a safetensors file")
            header = json.loads(file.read(length).decode("utf-8"))
    except OSError as fault:
        raise storage_error(path, fault, "read") from fault
    except (UnicodeDecodeError, json.JSONDecodeError) as fault:
        raise damaged_error(path, "its header is not JSON") from fault
    if not isinstance(header, dict):
        raise damaged_error(path, "its header is not a table")
    facts = header.pop("__metadata__", {})
    start = 8 + length
    try:
        ends = [int(entry["data_offsets"][1]) for entry in header.values()]
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        raise damaged_error(path, "its header lacks an offset") from fault
    if start + max(ends, default=0) != size:
        expected = start + max(ends, default=0)
        raise damaged_error(path, f"it has {size:,} bytes where its header says {expected:,}")
    return header, facts, start


def verify(path: Path) -> None:
    """Raise StorageError unless the bytes of the arrays in `path` match their checksum."""
    _, facts, start = read_header(path)
    expected = facts.get(CHECKSUM)
    if expected is None:
        return
    with open(path, "rb") as file:
        header = file.read(start)
        is_whole = isinstance(expected, str) and expected.startswith(_WHOLE)
        digest = _begun(header, expected) if is_whole else hashlib.sha256()
        while block := file.read(_BLOCK):
            digest.update(block)
    if (_WHOLE if is_whole else "") + digest.hexdigest() != expected:
        raise damaged_error(path, "its bytes have been altered (the checksum differs)")


def _with_checksum(header: bytes, blocks: Iterable[bytes | memoryview]) -> bytes:
    """Return a header that says `UNKNOWN` with the checksum of itself and of `blocks` instead."""
    digest = hashlib.sha256(header)
    for block in blocks:
        digest.update(block)
    return header.replace(UNKNOWN.encode(), (_WHOLE + digest.hexdigest()).encode(), 1)


def _begun(header: bytes, checksum: str) -> Any:
    """Return the checksum of a header, to which the arrays' bytes are still to be added."""
    return hashlib.sha256(header.replace(checksum.encode(), UNKNOWN.encode(), 1))


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file as read-only memory maps."""
    header, _, start = read_header(path)
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        try:
            kind = numpy.dtype(_NUMPY_TYPES[entry["dtype"]])
            shape = tuple(int(size) for size in entry["shape"])
            first, last = (int(place) for place in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as fault:
            raise damaged_error(path, f"its entry `{name}` makes no sense") from fault
        if int(numpy.prod(shape, dtype=numpy.int64)) * kind.itemsize != last - first:
            raise damaged_error(path, f"the size of `{name}` does not fit its shape")
        if last == first:
            arrays[name] = numpy.zeros(shape, kind)
        else:
            arrays[name] = numpy.memmap(path, kind, "r", start + first, shape)
    return arrays


class ArrayFile:
    """Writes arrays piece by piece into one safetensors file, in memory that does not grow.

    Each array is one-dimensional and goes to its own temporary file first; `close` puts them
    together under `path`, with the checksum.
    """

    def __init__(self, path: Path, kinds: Mapping[str, str]) -> None:
        """`kinds` maps each array's name to its safetensors type, such as "U16" or "I64"."""
        self.path = path
        self.kinds = dict(kinds)
        self._counts = dict.fromkeys(kinds, 0)
        self._parts = {name: temporary_path(path, place=place) for place, name in enumerate(kinds)}
        self._files: dict[str, BinaryIO] = {}
        remove_stale(path)
        try:
            for name, part in self._parts.items():
                self._files[name] = open(part, "wb")  # noqa: SIM115
        except OSError as fault:
            self.discard()
            raise storage_error(path, fault) from fault

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Append `values` to the array `name`."""
        kind = numpy.dtype(_NUMPY_TYPES[self.kinds[name]])
        try:
            self._files[name].write(numpy.ascontiguousarray(values, kind).tobytes())
        except OSError as fault:
            raise storage_error(self.path, fault) from fault
        self._counts[name] += len(values)

    def close(self, facts: Mapping[str, str] | None = None) -> None:
        """Put the arrays together and move the file to its place."""
        try:
            for file in self._files.values():
                file.close()
        except OSError as fault:
            self.discard()
            raise storage_error(self.path, fault) from fault
        entries: dict[str, Any] = {}
        place = 0
        # Widest types first: each array then starts at a multiple of its own item size.
        widths = {n: numpy.dtype(_NUMPY_TYPES[k]).itemsize for n, k in self.kinds.items()}
        names = sorted(self.kinds, key=lambda name: -widths[name])
        for name in names:
            size = self._counts[name] * widths[name]
            entries[name] = {
                "dtype": self.kinds[name],
                "shape": [self._counts[name]],
                "data_offsets": [place, place + size],
            }
            place += size
        entries["__metadata__"] = {**(facts or {}), CHECKSUM: UNKNOWN}
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        header = struct.pack("<Q", len(header)) + header
        blocks = (block for name in names for block in _blocks(self._parts[name]))
        header = _with_checksum(header, blocks)
        try:
            with atomic_file(self.path) as whole:
                whole.write(header)
                for name in names:
                    for block in _blocks(self._parts[name]):
                        whole.write(block)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        for part in self._parts.values():
            remove(part)


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            yield block


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
        file.write(_with_checksum(bytes(blob[:start]), [blob[start:]]))
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
        raise storage_error(path, fault, "read") from fault
    except Exception as fault:
        raise damaged_error(path, str(fault)) from fault
