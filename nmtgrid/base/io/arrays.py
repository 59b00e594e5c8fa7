"""Arrays and tensors in safetensors files, with a checksum in the header.

The only module that imports the safetensors package. Datasets map their arrays from such files;
models and states of training load and save tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import atomic_file, damaged_error, refuse_stream, storage_error
from nmtgrid.base.io.records import Count, Record, convert, parse_json

if TYPE_CHECKING:
    from torch import Tensor

# The header's entry with the checksum.
CHECKSUM = "nmtgrid.sha256"
# The header's entry that marks weights before the first update.
UNTRAINED = "nmtgrid.untrained"
# Prefix of a checksum that includes the header, with its own digits as zeros.
_WHOLE = "whole:"
# Placeholder of a checksum that is not known yet.
_UNKNOWN = _WHOLE + "0" * 64
_LARGEST_HEADER = 64 * 1024 * 1024
_BLOCK = 1 << 22
_NUMPY_TYPES = {
    "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "I8": "<i1", "I16": "<i2",
    "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?",
}  # fmt: skip


class Entry(Record):
    """A tensor in the header of a safetensors file; the offsets count from the first data byte."""

    dtype: str
    shape: list[Count]
    data_offsets: tuple[Count, Count]


def read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Return a safetensors file's (entries, facts, first byte of the data), sizes checked."""
    refuse_stream(path)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
            # Checked before it is read: a damaged length could ask for any amount of memory.
            if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
                raise damaged_error(path, "its header is cut or not one of a safetensors file")
            header = parse_json(file.read(length))
        facts = header.pop("__metadata__", {}) if isinstance(header, dict) else {}
        entries = convert(header, dict[str, Entry])
        facts = convert(facts, dict[str, str])
    except OSError as fault:
        raise storage_error(path, fault, "read") from fault
    except ValueError as fault:
        raise damaged_error(path, f"in its header, {fault}") from fault
    start = 8 + length
    expected = start + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if expected != size:
        raise damaged_error(path, f"it has {size:,} bytes where its header says {expected:,}")
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        # Tensors of other types are not read, so their sizes do not matter.
        kind = _NUMPY_TYPES.get(entry.dtype, "<u2" if entry.dtype == "BF16" else None)
        if kind and math.prod(entry.shape) * numpy.dtype(kind).itemsize != end - begin:
            raise damaged_error(path, f"the size of `{name}` does not fit its shape")
    return entries, facts, start


def verify(path: Path) -> None:
    """Raise StorageError unless the bytes of the arrays in `path` match their checksum."""
    _, facts, start = read_header(path)
    expected = facts.get(CHECKSUM)
    if expected is None:
        return
    prefix, digest = "", hashlib.sha256()
    with open(path, "rb") as file:
        header = file.read(start)
        # Files of early versions have a checksum of the arrays only.
        if expected.startswith(_WHOLE):
            prefix = _WHOLE
            digest.update(header.replace(expected.encode(), _UNKNOWN.encode(), 1))
        while block := file.read(_BLOCK):
            digest.update(block)
    if prefix + digest.hexdigest() != expected:
        raise damaged_error(path, "its bytes have been altered (the checksum differs)")


def _with_checksum(header: bytes, blocks: Iterable[bytes | memoryview]) -> bytes:
    """Return the header with the checksum of header and `blocks` in place of the placeholder."""
    digest = hashlib.sha256(header)
    for block in blocks:
        digest.update(block)
    return header.replace(_UNKNOWN.encode(), (_WHOLE + digest.hexdigest()).encode(), 1)


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file as read-only memory maps."""
    header, _, start = read_header(path)
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if entry.dtype not in _NUMPY_TYPES:
            raise damaged_error(path, f"`{name}` has the type `{entry.dtype}`")
        kind, shape = numpy.dtype(_NUMPY_TYPES[entry.dtype]), tuple(entry.shape)
        first, last = entry.data_offsets
        if last == first:
            arrays[name] = numpy.zeros(shape, kind)  # mapping zero bytes is an error
        else:
            arrays[name] = numpy.memmap(path, kind, "r", start + first, shape)
    return arrays


def map_named(path: Path, names: Sequence[str], advice: str) -> list[NDArray[Any]]:
    """Return the arrays `names` of a file; `advice` goes into the error if one is missing."""
    arrays = map_arrays(path)
    for name in names:
        if name not in arrays:
            raise StorageError(f"{path} is damaged: it lacks `{name}`.", advice)
    return [arrays[name] for name in names]


class ArrayFile:
    """Writes arrays piece by piece into one safetensors file, in constant memory.

    As a context manager it is closed if the block succeeds, and discarded otherwise.

    Each array is one-dimensional and is first written to its own temporary file, because the
    header needs all sizes. These files have no name, so nothing is left of them however the
    process ends. `close` joins them at `path`, with the checksum.
    """

    def __init__(self, path: Path, kinds: Mapping[str, str]) -> None:
        """`kinds` maps each array's name to its safetensors type, such as "U16" or "I64"."""
        self.path = path
        self.kinds = dict(kinds)
        self._counts = dict.fromkeys(kinds, 0)
        self._files: dict[str, IO[bytes]] = {}
        try:
            for name in kinds:
                self._files[name] = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
        except OSError as fault:
            self.discard()
            raise storage_error(path, fault) from fault

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Append `values` to the array `name`."""
        kind = numpy.dtype(_NUMPY_TYPES[self.kinds[name]])
        try:
            self._files[name].write(numpy.ascontiguousarray(values, kind).tobytes())
        except OSError as fault:
            raise storage_error(self.path, fault) from fault
        self._counts[name] += len(values)

    def close(self) -> None:
        """Join the arrays and rename the file to its path."""
        entries: dict[str, Any] = {}
        offset = 0
        # Widest types first: each array then starts at a multiple of its own item size.
        widths = {n: numpy.dtype(_NUMPY_TYPES[k]).itemsize for n, k in self.kinds.items()}
        for name in sorted(self.kinds, key=lambda name: -widths[name]):
            count = self._counts[name]
            span = [offset, offset + count * widths[name]]
            entries[name] = {"dtype": self.kinds[name], "shape": [count], "data_offsets": span}
            offset = span[1]
        names = list(entries)
        entries["__metadata__"] = {CHECKSUM: _UNKNOWN}
        header = json.dumps(entries).encode()
        # The arrays begin at a multiple of 8 bytes, which memory maps of 8-byte items need.
        header += b" " * (-len(header) % 8)
        header = struct.pack("<Q", len(header)) + header
        try:
            with atomic_file(self.path) as file:
                file.write(_with_checksum(header, self._blocks(names)))
                for block in self._blocks(names):
                    file.write(block)
        finally:
            self.discard()

    def _blocks(self, names: Iterable[str]) -> Iterator[bytes]:
        for name in names:
            self._files[name].seek(0)
            while block := self._files[name].read(_BLOCK):
                yield block

    def discard(self) -> None:
        """Remove the temporary files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` as a safetensors file with `facts` and a checksum in its header."""
    from safetensors.torch import save

    # Sorted, so that equal tensors give equal files.
    stored = {name: t.detach().to("cpu").contiguous() for name, t in sorted(tensors.items())}
    # Tensors that share memory (tied weights) are stored once for each name: clone the repeats.
    seen: set[int] = set()
    for name, tensor in stored.items():
        if tensor.data_ptr() in seen:
            stored[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    # The library writes the header; the checksum then replaces a placeholder of the same length.
    blob = memoryview(save(stored, {CHECKSUM: _UNKNOWN, **(facts or {})}))
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
    # For a malformed header the library raises errors of various types, including its own.
    except Exception as fault:
        raise damaged_error(path, str(fault)) from fault
