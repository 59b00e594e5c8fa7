"""Reads checkpoints of torch without unpickling: nothing in the file is executed.

Since torch 1.6 a checkpoint is a zip archive, before that it was a stream of pickles and numbers.
Time and memory are bounded by the bytes that the file has on disk, without the holes of a sparse
file:
- A pickle costs one step for each instruction and for each item that an instruction copies, and
  has no more steps than the file has bytes, so that repeated references cannot make it grow.
- No value is traversed, compared or printed, whatever it contains, because it may be nested without
  end. Keys of dictionaries are strings, whose hashes cannot be predicted.
- An archive's parts are uncompressed, a storage lies within the file and a tensor within its
  storage, and together the tensors of a model span no more bytes than the file has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import math
import mmap
import os
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.errors import ModelError
from nmtgrid.base.io.atomic import is_stream

_DTYPES: dict[str, torch.dtype] = {
    "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "DoubleStorage": torch.float64,
    "LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16,
    "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_CONSTRUCTORS = {
    "collections.OrderedDict", "collections.defaultdict", "argparse.Namespace", "torch.Size",
    "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter", "copy_reg._reconstructor", "copyreg._reconstructor",
}  # fmt: skip
# Globals of which only the name is kept: builtins, and whatever belongs to these packages.
_INERT = {"_codecs.encode"} | {
    f"{package}.{kind}"
    for package in ("builtins", "__builtin__")
    for kind in ("object", "set", "frozenset", "list", "dict", "tuple", "int", "float", "bool",
                 "str", "unicode", "bytes", "bytearray", "complex", "slice")
}  # fmt: skip
_INERT_PACKAGES = (
    "fairseq.", "fairseq_cli.", "examples.", "numpy.", "torch.", "omegaconf.", "enum.", "typing.",
    "collections.", "pathlib.", "datetime.",
)  # fmt: skip
_MAX_AXES = 8
_MAX_INTEGER_BITS = 128  # far more than any count has
_MAX_NAME = 300  # characters of a global
# The steps of 30,000 tensors; fairseq's largest models have some thousands.
_MAX_STEPS = 1_000_000
_MAX_PICKLE_BYTES = 32 << 20
_MAX_DIRECTORY_BYTES = 8 << 20
_MAX_ROWS = 1 << 32  # of a tensor without elements, which no storage bounds
# Zeros of a sparse file, and models whose weights are stored in half precision or less.
_SLACK_BYTES = 64 << 20
_MAX_GROWTH = 8


class PickleFault(ValueError):
    """An error in a pickle, without the name of the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Inert:
    """An object of an unknown type, by its name; nothing is ever called on it."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Namespace:
    """Options as argparse stores them."""

    values: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Storage:
    """`count` numbers of torch's storage type `kind`, from `start` on in the storage `key`."""

    kind: str
    key: str
    count: int
    start: int = 0

    @property
    def item_bytes(self) -> int:
        return _DTYPES[self.kind].itemsize


@dataclasses.dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor: a strided view of a storage, all in numbers of elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """The number of stored elements from the first to the last one."""
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * step for size, step in steps) if self.elements else 0

    def lies_in_storage(self) -> bool:
        """Return whether the storage has all elements of the tensor, none of them repeated."""
        # A stride of 0 repeats numbers: a small file could describe a huge tensor.
        axes = zip(self.shape, self.strides, strict=True)
        repeats = any(size > 1 and not step for size, step in axes)
        needed = max(self.offset + self.extent, self.elements)
        return (
            needed <= self.storage.count and not repeats and max(self.shape, default=0) < _MAX_ROWS
        )


def _resolve(name: str) -> Inert:
    """Return the substitute of the global `name`. Raises PickleFault unless it is known."""
    is_known = name in _CONSTRUCTORS or name in _INERT or name.startswith(_INERT_PACKAGES)
    if is_known and len(name) <= _MAX_NAME:
        return Inert(name)
    raise PickleFault(
        f"it asks for `{name[:80]}`, which is not part of a model: such a file may be made to run "
        "code on whoever reads it. Nothing of it was run"
    )


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> TensorView:
    if not isinstance(storage, _Storage) or not len(shape) == len(strides) <= _MAX_AXES:
        raise PickleFault("it has an inconsistent tensor")
    sizes = tuple(map(_count, shape))
    # The stride of an axis with one element is never used, so it may be anything.
    steps = tuple(
        _count(step) if size > 1 else 1 for size, step in zip(sizes, strides, strict=True)
    )
    return TensorView(storage, _count(offset), sizes, steps)


def _table(items: list[Any]) -> dict[str, Any]:
    """Return the dictionary of alternating keys and values; only strings and numbers can be keys.

    Numbers become strings: a forged file could have a million numbers with the same hash.
    """
    pairs = zip(items[0::2], items[1::2], strict=True)
    return {str(key): value for key, value in pairs if isinstance(key, (str, int, float))}


def _count(value: Any) -> int:
    # `isinstance` would accept `True`, which is not a size.
    if type(value) is not int or value < 0:
        raise PickleFault("it has a size that is no count")
    return value


class PickleReader:
    """Reads the consecutive pickles in `data` on a stack machine that cannot call functions.

    `pickletools` decodes the arguments of instructions, from what `read` and `readline` give it.
    `position` is where the next one begins; `storages` are those that were named, by key.
    """

    def __init__(
        self, data: Any, position: int = 0, end: int | None = None, steps: int | None = None
    ) -> None:
        """`data` is bytes, or something that can be sliced like them, up to `end`.

        `steps` limits the instructions and copied items of all pickles (None: to `end`).
        """
        self.data, self.position = data, position
        end = len(data) if end is None else end
        self.end = min(end, position + _MAX_PICKLE_BYTES)
        self.storages: dict[str, _Storage] = {}
        self._steps, self._max_steps = 0, min(end if steps is None else steps, _MAX_STEPS)

    def load(self) -> Any:
        """Return the object of the next pickle. Raises PickleFault if it is not accepted."""
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: list[Any] = []
        begin = self.position
        try:
            while (code := self.read(1)) != b".":
                self._spend(1)
                opcode = _OPCODES.get(code)
                if opcode is None or opcode.name not in _INSTRUCTIONS:
                    raise PickleFault(
                        f"it has the instruction {code[0]:#04x} at byte {self.position - 1:,}, "
                        "which no checkpoint needs"
                    )
                argument = None if opcode.arg is None else opcode.arg.reader(self)  # type: ignore[arg-type]
                _INSTRUCTIONS[opcode.name](self, argument)
            return self._stack.pop()
        # PickleFault is a ValueError, but its own message says more than the one below.
        except PickleFault:
            raise
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as fault:
            raise PickleFault(
                f"what begins at byte {begin:,} is not a pickle, or is damaged at byte "
                f"{self.position:,}"
            ) from fault

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > self._max_steps:
            raise PickleFault(
                f"its pickles take more than {self._max_steps:,} steps: they copy more than they "
                "hold, or hold far more than a model"
            )

    def read(self, count: int) -> bytes:
        """Return `count` bytes. Raises PickleFault if there are fewer."""
        begin, after = self.position, self.position + count
        if not begin <= after <= self.end:
            raise PickleFault(
                "the file ends too early, or has objects other than tensors of more than "
                f"{_MAX_PICKLE_BYTES >> 20} MiB"
            )
        self.position = after
        raw: bytes = self.data[begin:after]
        return raw

    def readline(self) -> bytes:
        """Return a line with its end."""
        # Bounded, so that a damaged file is not searched to its end.
        end = self.data.find(b"\n", self.position, self.position + _MAX_NAME)
        if end < 0:
            raise PickleFault("a name in it has no end")
        return self.read(end + 1 - self.position)

    def _push(self, value: Any) -> None:
        if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
            raise PickleFault(f"it has a whole number of {value.bit_length()} bits")
        # Surrogate halves occur in no name or option that matters, and could not be printed.
        is_text = isinstance(value, str)
        self._stack.append(value.encode("utf-8", "replace").decode() if is_text else value)

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _push_marked(self, build: Callable[[list[Any]], Any]) -> None:
        items = self._pop_mark()
        self._stack.append(build(items))

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise PickleFault("it takes more than it has put down")
        start = len(self._stack) - count
        self._stack[start:] = [tuple(self._stack[start:])]

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Inert):
            raise PickleFault("it appends to something that is not a list")

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, dict):
            target.update(_table(items))
        elif not isinstance(target, Inert):
            raise PickleFault("it sets an item of something that is not a dictionary")

    def _remember(self, index: int) -> None:
        # A list, not a dictionary: a forged file could have indices with the same hash.
        if index > self._steps:
            raise PickleFault(f"it counts {index:,} objects where there are fewer")
        self._memo += [None] * (index + 1 - len(self._memo))
        self._memo[index] = self._stack[-1]

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise PickleFault("it has a name that is not text")
        # Cut before they are joined: two long texts could be joined a million times.
        self._stack.append(_resolve(f"{module[:_MAX_NAME]}.{name[:_MAX_NAME]}"))

    def _reduce(self) -> None:
        arguments, constructor = self._stack.pop(), self._stack.pop()
        if not (isinstance(constructor, Inert) and isinstance(arguments, tuple)):
            raise PickleFault("it calls something that is not a function")
        self._stack.append(self._construct(constructor, arguments))

    def _construct(self, constructor: Inert, arguments: tuple[Any, ...]) -> Any:
        if constructor.name not in _CONSTRUCTORS:
            return constructor
        name = constructor.name.rpartition(".")[2]
        # The factory is not needed: only the entries that follow matter, and nothing is called.
        if name == "defaultdict":
            return {}
        if name == "Namespace":
            return Namespace({})
        if name == "OrderedDict":
            pairs = arguments[0] if arguments else ()
            self._spend(len(pairs))
            return _table([part for key, value in pairs for part in (key, value)])
        if name == "Size":
            self._spend(len(arguments[0]))
            return tuple(arguments[0])
        if name == "_rebuild_parameter":
            return arguments[0]
        # Pickles of protocol 0 and 1 name the class of an object as the first argument.
        if name == "_reconstructor":
            kind = arguments[0]
            return self._construct(kind, ()) if isinstance(kind, Inert) else kind
        return _tensor(*arguments[:4])

    def _new_with_names(self) -> None:
        self._stack.pop()
        self._reduce()

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        # Only options keep their state: that of an unknown object means nothing here.
        if isinstance(target, Namespace) and isinstance(state, dict):
            self._spend(len(state))
            target.values.update(state)

    def _persistent_id(self) -> None:
        entry = self._stack.pop()
        if not (isinstance(entry, tuple) and len(entry) in (5, 6) and entry[0] == "storage"):
            raise PickleFault("it names something outside itself that is not a storage of torch")
        _, storage_type, key, _, count, *view = entry
        name = storage_type.name if isinstance(storage_type, Inert) else ""
        kind = name.rpartition(".")[2]
        if kind not in _DTYPES or not isinstance(key, str):
            raise PickleFault(f"it has numbers of a kind that is not known: `{name[:60]}`")
        storage = _Storage(kind, key, _count(count))
        # Two sizes for one key could reach past the bytes that are checked later.
        if self.storages.setdefault(key, storage) != storage:
            raise PickleFault(f"its storage `{key[:60]}` is named in two ways")
        # Streams of early versions name a part of a storage as (key, start, count).
        if view and view[0] is not None:
            storage = _Storage(kind, key, _count(view[0][2]), _count(view[0][1]))
            if storage.start + storage.count > self.storages[key].count:
                raise PickleFault(f"a part of its storage `{key[:60]}` lies outside it")
        self._stack.append(storage)


_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
_Instruction = Callable[[PickleReader, Any], Any]
_PUSHED = """
BININT BININT1 BININT2 BINFLOAT LONG1 BINUNICODE SHORT_BINUNICODE BINUNICODE8 SHORT_BINSTRING
BINSTRING SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8
"""
_INSTRUCTIONS: dict[str, _Instruction] = {
    **dict.fromkeys(_PUSHED.split(), PickleReader._push),
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "NONE": lambda m, _: m._stack.append(None),
    "NEWTRUE": lambda m, _: m._stack.append(True),
    "NEWFALSE": lambda m, _: m._stack.append(False),
    "EMPTY_DICT": lambda m, _: m._stack.append({}),
    "EMPTY_LIST": lambda m, _: m._stack.append([]),
    "EMPTY_TUPLE": lambda m, _: m._stack.append(()),
    "EMPTY_SET": lambda m, _: m._stack.append([]),  # a set becomes a list
    "MARK": lambda m, _: m._mark(),
    "POP": lambda m, _: m._stack.pop(),
    "POP_MARK": lambda m, _: m._pop_mark(),
    "DUP": lambda m, _: m._stack.append(m._stack[-1]),
    "TUPLE1": lambda m, _: m._tuple(1),
    "TUPLE2": lambda m, _: m._tuple(2),
    "TUPLE3": lambda m, _: m._tuple(3),
    "TUPLE": lambda m, _: m._push_marked(tuple),
    "LIST": lambda m, _: m._push_marked(list),
    "FROZENSET": lambda m, _: m._push_marked(tuple),
    "DICT": lambda m, _: m._push_marked(_table),
    "APPEND": lambda m, _: m._extend([m._stack.pop()]),
    "APPENDS": lambda m, _: m._extend(m._pop_mark()),
    "ADDITEMS": lambda m, _: m._extend(m._pop_mark()),
    "SETITEM": lambda m, _: m._set_items([m._stack.pop(-2), m._stack.pop()]),
    "SETITEMS": lambda m, _: m._set_items(m._pop_mark()),
    "BINPUT": PickleReader._remember,
    "LONG_BINPUT": PickleReader._remember,
    "MEMOIZE": lambda m, _: m._remember(len(m._memo)),
    "BINGET": lambda m, index: m._stack.append(m._memo[index]),
    "LONG_BINGET": lambda m, index: m._stack.append(m._memo[index]),
    "GLOBAL": lambda m, names: m._stack.append(_resolve(names.replace(" ", "."))),
    "STACK_GLOBAL": lambda m, _: m._stack_global(),
    "REDUCE": lambda m, _: m._reduce(),
    "NEWOBJ": lambda m, _: m._reduce(),
    "NEWOBJ_EX": lambda m, _: m._new_with_names(),
    "BUILD": lambda m, _: m._build(),
    "BINPERSID": lambda m, _: m._persistent_id(),
}

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint: its options, its tensors, and the file itself."""

    path: Path
    content: Mapping[str, Any]
    views: Mapping[str, TensorView]
    max_bytes: int
    """Maximum memory of a model made from it, as fp32."""
    _data: mmap.mmap
    _starts: Mapping[str, int]
    """The first byte of each storage."""

    def load(self, name: str) -> Tensor:
        """Return a tensor of the model as fp32, in its own memory."""
        view = self.views[name]
        storage = view.storage
        first = self._starts[storage.key] + (storage.start + view.offset) * storage.item_bytes
        # A copy: the map is read-only and is closed with the checkpoint.
        with memoryview(self._data) as data:
            raw = bytearray(data[first : first + view.extent * storage.item_bytes])
        # `frombuffer` refuses an empty buffer.
        if not raw:
            return torch.zeros(view.shape)
        flat = torch.frombuffer(raw, dtype=_DTYPES[storage.kind])
        return flat.as_strided(view.shape, view.strides).to(torch.float32, copy=True).contiguous()


@contextlib.contextmanager
def open_checkpoint(path: Path) -> Iterator[Checkpoint]:
    """Open the checkpoint at `path` without executing anything in it.

    Raises ModelError if it is missing, damaged, of another kind, or contains more than data.
    """
    advice = "Fetch or make it again; unpack it first if it is an archive of several files."
    try:
        # Opening a pipe would block until something writes to it.
        if is_stream(path):
            raise ModelError(
                f"{path} cannot be read: it is a pipe or a device.", "Save it as a file first."
            )
        file = open(path, "rb")  # noqa: SIM115
    except OSError as fault:
        raise ModelError(f"{path} cannot be read: {fault.strerror}.", "Check the name.") from fault
    with file:
        try:
            # Mapped: a checkpoint has gigabytes of optimiser state that is never read.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as fault:
            raise ModelError(f"{path} is empty or cannot be read.", advice) from fault
        with data:
            try:
                checkpoint = _read(path, data, _stored_bytes(file.fileno(), len(data)))
            except PickleFault as fault:
                problem = f"{path} is not a readable checkpoint: {fault}."
                raise ModelError(problem, advice) from fault
            yield checkpoint


def _stored_bytes(file: int, size: int) -> int:
    """Return how many bytes of a file of `size` are on disk, without the holes of a sparse file."""
    # Not `st_blocks`: on compressing file systems, complete files have fewer blocks than bytes.
    stored = position = 0
    try:
        while position < size:
            begin = os.lseek(file, position, os.SEEK_DATA)
            position = min(os.lseek(file, begin, os.SEEK_HOLE), size)
            stored += position - begin
    except OSError as fault:
        # ENXIO: only a hole follows; otherwise the file system does not support holes.
        return stored if fault.errno == errno.ENXIO else size
    return stored


def _read(path: Path, data: mmap.mmap, stored: int) -> Checkpoint:
    is_zip = data[:4] == b"PK\x03\x04"
    read = _read_zip(path, data, stored) if is_zip else _read_stream(data, stored)
    content, starts, storages = read
    total = sum(storage.count * storage.item_bytes for storage in storages.values())
    if total > len(data):
        raise PickleFault(f"its numbers would fill {total:,} bytes, but it has {len(data):,}")
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise PickleFault("it has no `model`: fairseq's checkpoints hold their weights there")
    views = {name: view for name, view in model.items() if isinstance(view, TensorView)}
    if len(views) < len(model):
        raise PickleFault("its `model` holds something that is not a tensor")
    for name, view in views.items():
        if not view.lies_in_storage():
            raise PickleFault(
                f"its tensor `{name[:60]}` does not lie within the numbers stored for it"
            )
    # Tied tensors are equal views, which are counted once.
    total = sum(
        max(view.extent, view.elements) * view.storage.item_bytes for view in set(views.values())
    )
    if total > min(len(data), stored + _SLACK_BYTES):
        raise PickleFault(
            f"its tensors would fill {total:,} bytes, but it has {stored:,} on the disk"
        )
    return Checkpoint(path, content, views, _MAX_GROWTH * stored + _SLACK_BYTES, data, starts)


def _read_zip(
    path: Path, data: mmap.mmap, stored: int
) -> tuple[Any, dict[str, int], dict[str, _Storage]]:
    """Return the content, the first byte of each storage, and the storages."""
    records = _records(path, data)
    names = [name for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(names) != 1:
        raise PickleFault("it is an archive, but not one of torch's: it has no `data.pkl`")
    folder = names[0].partition("/")[0]
    start, size = records.get(f"{folder}/byteorder", (0, 0))
    if data[start : start + min(size, 9)] not in (b"", b"little"):
        raise PickleFault("its numbers are those of a big-endian machine")
    start, size = records[names[0]]
    reader = PickleReader(data, start, start + size, stored)
    content = reader.load()
    starts = {}
    for key, storage in reader.storages.items():
        start, size = records.get(f"{folder}/data/{key}", (0, -1))
        if size < storage.count * storage.item_bytes:
            raise PickleFault(f"its numbers `{key[:60]}` are cut or missing")
        starts[key] = start
    return content, starts, reader.storages


class _ShortReads(io.FileIO):
    """A file with limited reads: `zipfile` reads an archive's directory at once, of any size."""

    def read(self, size: int | None = -1, /) -> Any:
        """Read `size` bytes. Raises PickleFault for more than a checkpoint's directory can have."""
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise PickleFault(f"it is an archive with a directory of {size:,} bytes")
        return super().read(size)


def _records(path: Path, data: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Return the first byte and the size of each part, all of which are uncompressed."""
    records: dict[str, tuple[int, int]] = {}
    try:
        with _ShortReads(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise PickleFault(f"its part `{entry.filename[:60]}` is compressed or locked")
            head = data[entry.header_offset : entry.header_offset + 30]
            # Offsets come from the directory at the file's end, which may be damaged or forged.
            if head[:4] != b"PK\x03\x04":
                raise PickleFault(f"its part `{entry.filename[:60]}` is not where it should be")
            # The local header has names and extra fields of its own length.
            start = entry.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
            if entry.file_size != entry.compress_size or start + entry.file_size > len(data):
                raise PickleFault(f"its part `{entry.filename[:60]}` is cut or of another size")
            if entry.filename in records:
                raise PickleFault(f"its part `{entry.filename[:60]}` is there twice")
            records[entry.filename] = start, entry.file_size
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, struct.error) as fault:
        raise PickleFault(f"it is a damaged or cut archive ({str(fault)[:80]})") from fault
    except (OverflowError, IndexError, UnicodeDecodeError) as fault:
        raise PickleFault("it is a damaged archive") from fault
    return records


def _read_stream(data: mmap.mmap, stored: int) -> tuple[Any, dict[str, int], dict[str, _Storage]]:
    """Return the same as `_read_zip` for a stream: five pickles, then the storages' numbers."""
    if data[:1] != b"\x80":
        raise PickleFault("it is neither an archive nor a pickle")
    reader = PickleReader(data, steps=stored)
    if reader.load() != _MAGIC or reader.load() != _PROTOCOL:
        raise PickleFault("it is a pickle, but none of torch's")
    system = reader.load()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise PickleFault("its numbers are those of a big-endian machine")
    content, keys = reader.load(), reader.load()
    if not isinstance(keys, list):
        raise PickleFault("it does not say which numbers it holds")
    starts: dict[str, int] = {}
    position = reader.position
    for key in keys:
        storage = reader.storages.get(key) if isinstance(key, str) else None
        if storage is None or key in starts or len(data) < position + 8:
            raise PickleFault("its numbers are cut, or not those that it names")
        (count,) = struct.unpack("<q", data[position : position + 8])
        starts[key] = position + 8
        position += 8 + storage.count * storage.item_bytes
        if count != storage.count or position > len(data):
            raise PickleFault(f"its numbers `{key[:60]}` are cut or of another count")
    if set(reader.storages) - set(starts):
        raise PickleFault("numbers that it names are missing")
    return content, starts, reader.storages
