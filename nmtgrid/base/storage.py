"""The one door to the disk for what we write: safetensors, JSON and text, each written atomically.

A file appears whole or not at all: it is written under a temporary name beside its place, flushed
to the disk and renamed. Arrays carry a checksum of their bytes in the file's own header, so that a
truncated or altered file is refused instead of being read as something else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import StorageError

_CHECKSUM = "nmtgrid.sha256"
_LARGEST_HEADER = 64 * 1024 * 1024
_BLOCK = 1 << 22
_NUMPY_TYPES = {
    "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "I8": "<i1", "I16": "<i2",
    "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?",
}  # fmt: skip


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that takes its place at `path` only when the block ends without a fault.

    Raises StorageError when the disk is full or the folder cannot be written; whatever stood at
    `path` before is then still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as fault:
        _remove(temporary)
        raise _explain(path, fault) from fault
    except BaseException:
        _remove(temporary)
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, values: Any) -> None:
    """Write `values` as indented JSON."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the JSON in `path`. Raises StorageError when it is missing or damaged."""
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError as fault:
        raise StorageError(f"{path} is missing.") from fault
    except (UnicodeDecodeError, json.JSONDecodeError) as fault:
        raise StorageError(
            f"{path} is damaged: it is not JSON ({fault}).", "Make it again or restore a copy."
        ) from fault
    except OSError as fault:
        raise _explain(path, fault, "read") from fault


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
    metadata = {**(facts or {}), _CHECKSUM: "0" * 64}
    blob = bytearray(save(held, metadata))
    start = 8 + struct.unpack("<Q", blob[:8])[0]
    digest = hashlib.sha256(memoryview(blob)[start:]).hexdigest().encode()
    place = blob.index(b"0" * 64, 8, start)
    blob[place : place + 64] = digest
    with atomic_file(path) as file:
        file.write(blob)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of `path`, on the CPU.

    Raises StorageError when the file is missing, truncated or altered.
    """
    from safetensors.torch import load

    verify(path)
    try:
        return load(path.read_bytes())
    except OSError as fault:
        raise _explain(path, fault, "read") from fault
    except Exception as fault:
        raise _damaged(path, str(fault)) from fault


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return a safetensors file's (entries, facts, first byte of the data), sizes checked."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
            if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
                raise _damaged(path, "its header is cut or not one of a safetensors file")
            header = json.loads(file.read(length).decode("utf-8"))
    except OSError as fault:
        raise _explain(path, fault, "read") from fault
    except (UnicodeDecodeError, json.JSONDecodeError) as fault:
        raise _damaged(path, "its header is not JSON") from fault
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a table")
    facts = header.pop("__metadata__", {})
    start = 8 + length
    try:
        ends = [int(entry["data_offsets"][1]) for entry in header.values()]
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        raise _damaged(path, "its header lacks an offset") from fault
    if start + max(ends, default=0) != size:
        expected = start + max(ends, default=0)
        raise _damaged(path, f"it has {size:,} bytes where its header says {expected:,}")
    return header, facts, start


def verify(path: Path) -> None:
    """Raise StorageError unless the bytes of the arrays in `path` match their checksum."""
    _, facts, start = read_header(path)
    expected = facts.get(_CHECKSUM)
    if expected is None:
        return
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(start)
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise _damaged(path, "its bytes have been altered (the checksum differs)")


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
            raise _damaged(path, f"its entry `{name}` makes no sense") from fault
        if int(numpy.prod(shape, dtype=numpy.int64)) * kind.itemsize != last - first:
            raise _damaged(path, f"the size of `{name}` does not fit its shape")
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
        self._parts = {
            name: path.with_name(f".{path.name}.{os.getpid()}.{place}.part")
            for place, name in enumerate(kinds)
        }
        self._files: dict[str, BinaryIO] = {}
        try:
            for name, part in self._parts.items():
                self._files[name] = open(part, "wb")  # noqa: SIM115
        except OSError as fault:
            self.discard()
            raise _explain(path, fault) from fault

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Append `values` to the array `name`."""
        kind = numpy.dtype(_NUMPY_TYPES[self.kinds[name]])
        try:
            self._files[name].write(numpy.ascontiguousarray(values, kind).tobytes())
        except OSError as fault:
            raise _explain(self.path, fault) from fault
        self._counts[name] += len(values)

    def close(self, facts: Mapping[str, str] | None = None) -> None:
        """Put the arrays together and move the file to its place."""
        try:
            for file in self._files.values():
                file.close()
        except OSError as fault:
            self.discard()
            raise _explain(self.path, fault) from fault
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
        digest = hashlib.sha256()
        for name in names:
            for block in _blocks(self._parts[name]):
                digest.update(block)
        entries["__metadata__"] = {**(facts or {}), _CHECKSUM: digest.hexdigest()}
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        try:
            with atomic_file(self.path) as whole:
                whole.write(struct.pack("<Q", len(header)) + header)
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
            _remove(part)


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _damaged(path: Path, how: str) -> StorageError:
    return StorageError(f"{path} is damaged: {how}.", "Make it again or restore a copy.")


def _explain(path: Path, fault: OSError, deed: str = "written") -> StorageError:
    if isinstance(fault, StorageError):
        return fault
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"{path} could not be written: the disk is full.",
            "Free some space and run the same command again; what stood there before is unharmed.",
        )
    if fault.errno == errno.ENOENT:
        return StorageError(f"{path} is missing.")
    return StorageError(f"{path} could not be {deed}: {fault.strerror or fault}.")


def tensor(values: NDArray[Any]) -> Tensor:
    """Return `values` as a tensor of its own (int64 for whole numbers)."""
    if values.dtype.kind in "iu":
        return torch.from_numpy(values.astype(numpy.int64))
    return torch.from_numpy(values.copy())
