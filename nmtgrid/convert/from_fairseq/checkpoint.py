"""Checkpoints as torch saves them: a zip archive, or a stream of pickles and numbers before 1.6.

Every size that a header names is held against the file before memory is taken: an archive's parts
are stored as they are, a storage lies within the file, and a tensor within its storage. Together
the tensors of a model take no more than the file does, so a small file stays small.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.errors import ModelError
from nmtgrid.convert.from_fairseq.constructors import PickleFault, Stored, View
from nmtgrid.convert.from_fairseq.pickles import Machine

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_TYPES: dict[str, torch.dtype] = {
    "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "DoubleStorage": torch.float64,
    "LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16,
    "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint: all that is not a tensor, the model's tensors, and the file itself."""

    path: Path
    content: Mapping[str, Any]
    views: Mapping[str, View]
    _data: mmap.mmap
    _starts: Mapping[str, int]
    """The first byte of each storage."""

    def load(self, name: str) -> Tensor:
        """Return a tensor of the model as fp32, in memory of its own."""
        view = self.views[name]
        kind = _TYPES[view.stored.kind]
        begin, end = view.offset, view.offset + _reach(view)
        first = self._starts[view.stored.key] + (view.stored.start + begin) * kind.itemsize
        held = bytearray(self._data[first : first + (end - begin) * kind.itemsize])
        if not held:
            return torch.zeros(view.shape)
        flat = torch.frombuffer(held, dtype=kind)
        return flat.as_strided(view.shape, view.strides).to(torch.float32, copy=True).contiguous()


@contextlib.contextmanager
def open_checkpoint(path: Path) -> Iterator[Checkpoint]:
    """Open the checkpoint at `path` without running anything of it.

    Raises ModelError when it is missing, damaged, of another kind, or asks for what is no data.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as fault:
        raise ModelError(f"{path} cannot be read: {fault.strerror}.", "Check the name.") from fault
    with file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as fault:
            raise ModelError(f"{path} is empty or cannot be read.") from fault
        with data:
            try:
                found = _read(path, data)
            except PickleFault as fault:
                raise ModelError(
                    f"{path} is no checkpoint that can be read: {fault}.",
                    "Fetch or make it again; unpack it first if it is an archive of several files.",
                ) from fault
            yield found


def _read(path: Path, data: mmap.mmap) -> Checkpoint:
    is_zip = data[:4] == b"PK\x03\x04"
    content, starts, stored = _read_zip(path, data) if is_zip else _read_stream(data)
    total = sum(one.count * _TYPES[one.kind].itemsize for one in stored.values())
    if total > len(data):
        raise PickleFault(f"its numbers would fill {total:,} bytes, but it has {len(data):,}")
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise PickleFault("it has no `model`: fairseq's checkpoints hold their weights there")
    views = {name: view for name, view in model.items() if isinstance(view, View)}
    if len(views) < len(model) or not all(isinstance(name, str) for name in views):
        raise PickleFault("its `model` holds something that is no tensor")
    for name, view in views.items():
        _check(name, view)
    taken = sum(_elements(v) * _TYPES[v.stored.kind].itemsize for v in set(views.values()))
    if taken > len(data):
        raise PickleFault(f"its tensors would fill {taken:,} bytes, but it has {len(data):,}")
    return Checkpoint(path, content, views, data, starts)


def _check(name: str, view: View) -> None:
    """Raise PickleFault unless `view` lies within its storage and no number is in it twice."""
    beyond = view.offset + _reach(view) > view.stored.count
    repeats = any(n > 1 and not step for n, step in zip(view.shape, view.strides, strict=True))
    if beyond or repeats or _elements(view) > view.stored.count:
        raise PickleFault(f"its tensor `{name[:60]}` does not lie within the numbers stored for it")


def _elements(view: View) -> int:
    count = 1
    for size in view.shape:
        count *= size
    return count


def _reach(view: View) -> int:
    """Return how many stored numbers stand from the first to the last one of `view`."""
    if not _elements(view):
        return 0
    steps = zip(view.shape, view.strides, strict=True)
    return 1 + sum((size - 1) * step for size, step in steps)


def _read_zip(path: Path, data: mmap.mmap) -> tuple[Any, dict[str, int], dict[str, Stored]]:
    """Return the content, the first byte of each storage, and the storages."""
    records = _records(path, data)
    names = [name for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(names) != 1:
        raise PickleFault("it is an archive, but not one of torch's: it has no `data.pkl`")
    folder = names[0].partition("/")[0]
    order = records.get(f"{folder}/byteorder", (0, 0))
    if data[order[0] : sum(order)] not in (b"", b"little"):
        raise PickleFault("its numbers are those of a big-endian machine")
    start, size = records[names[0]]
    machine = Machine(data[start : start + size])
    content = machine.read()
    starts = {}
    for key, stored in machine.stored.items():
        place = records.get(f"{folder}/data/{key}")
        wanted = stored.count * _TYPES[stored.kind].itemsize
        if place is None or place[1] < wanted:
            raise PickleFault(f"its numbers `{key[:60]}` are cut or missing")
        starts[key] = place[0]
    return content, starts, machine.stored


def _records(path: Path, data: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Return the first byte and the size of each part that is stored as it is."""
    found: dict[str, tuple[int, int]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise PickleFault(f"its part `{entry.filename[:60]}` is compressed or locked")
            head = data[entry.header_offset : entry.header_offset + 30]
            if head[:4] != b"PK\x03\x04":
                raise PickleFault(f"its part `{entry.filename[:60]}` is not where it should be")
            start = entry.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
            if entry.file_size != entry.compress_size or start + entry.file_size > len(data):
                raise PickleFault(f"its part `{entry.filename[:60]}` is cut or of another size")
            found[entry.filename] = start, entry.file_size
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, struct.error) as fault:
        raise PickleFault(f"it is a damaged or cut archive ({fault})") from fault
    except (OverflowError, IndexError, UnicodeDecodeError) as fault:
        raise PickleFault("it is a damaged archive") from fault
    return found


def _read_stream(data: mmap.mmap) -> tuple[Any, dict[str, int], dict[str, Stored]]:
    """Return the same of a stream: four pickles, the storages' names, and their numbers."""
    machine = Machine(data)
    if machine.read() != _MAGIC or machine.read() != _PROTOCOL:
        raise PickleFault("it is a pickle, but none of torch's")
    system = machine.read()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise PickleFault("its numbers are those of a big-endian machine")
    content, keys = machine.read(), machine.read()
    if not isinstance(keys, list):
        raise PickleFault("it does not say which numbers it holds")
    starts: dict[str, int] = {}
    place = machine.place
    for key in keys:
        stored = machine.stored.get(key) if isinstance(key, str) else None
        if stored is None or len(data) < place + 8:
            raise PickleFault("its numbers are cut, or not those that it names")
        (count,) = struct.unpack("<q", data[place : place + 8])
        starts[key] = place + 8
        place += 8 + stored.count * _TYPES[stored.kind].itemsize
        if count != stored.count or place > len(data):
            raise PickleFault(f"its numbers `{key[:60]}` are cut or of another count")
    if set(machine.stored) - set(starts):
        raise PickleFault("numbers that it names are missing")
    return content, starts, machine.stored
