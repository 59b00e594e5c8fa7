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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.errors import ModelError


class PickleFault(ValueError):
    """What is wrong with a pickle, without the name of the file."""


@dataclasses.dataclass(frozen=True)
class Inert:
    """A thing that is not known here, by its name; nothing is ever called on it."""

    name: str


@dataclasses.dataclass(frozen=True)
class Namespace:
    """Options as argparse keeps them."""

    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Stored:
    """`count` numbers of torch's storage type `kind`, from `start` on in the storage `key`."""

    kind: str
    key: str
    count: int
    start: int = 0


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor: a strided view of stored numbers, all in numbers of elements."""

    stored: Stored
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Maker:
    """A constructor that the machine does itself."""

    name: str


STORAGES = {
    "FloatStorage", "HalfStorage", "BFloat16Storage", "DoubleStorage", "LongStorage", "IntStorage",
    "ShortStorage", "CharStorage", "ByteStorage", "BoolStorage",
}  # fmt: skip
_MAKERS = {
    "collections.OrderedDict", "collections.defaultdict", "argparse.Namespace", "torch.Size",
    "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter", "copy_reg._reconstructor", "copyreg._reconstructor",
}  # fmt: skip
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
MOST_AXES = 8


def known(name: str) -> Any:
    """Return what stands for the global `name`. Raises PickleFault unless it is known."""
    if name in _MAKERS:
        return Maker(name)
    if name in _INERT or name.startswith(_INERT_PACKAGES):
        return Inert(name)
    raise PickleFault(
        f"it asks for `{name[:80]}`, which is no part of a model: such a file may be made to run "
        "code on whoever reads it. Nothing of it was run"
    )


def made(maker: Any, arguments: Any) -> Any:
    """Return what the constructor `maker` builds of `arguments`."""
    if isinstance(maker, Inert):
        return Inert(maker.name)
    if not isinstance(maker, Maker) or not isinstance(arguments, tuple):
        raise PickleFault("it calls what is no function")
    name = maker.name.rpartition(".")[2]
    if name == "OrderedDict":
        return dict(pairs([part for pair in (arguments[0] if arguments else []) for part in pair]))
    if name == "defaultdict":
        return {}
    if name == "Namespace":
        return Namespace({})
    if name == "Size":
        return tuple(arguments[0])
    if name == "_reconstructor":
        return made(arguments[0], ())
    if name == "_rebuild_parameter":
        return arguments[0]
    stored, offset, shape, strides = arguments[:4]
    if not isinstance(stored, Stored) or not len(shape) == len(strides) <= MOST_AXES:
        raise PickleFault("it has a tensor that makes no sense")
    return View(stored, counted(offset), tuple(map(counted, shape)), tuple(map(counted, strides)))


def pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of key and value in a row; only texts and numbers are keys of interest."""
    pairs = zip(items[0::2], items[1::2], strict=True)
    return [(key, value) for key, value in pairs if isinstance(key, (str, int, float))]


def counted(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise PickleFault("it has a size that is no count")
    return value


_VALUES: dict[int, Any] = {ord("N"): None, 0x88: True, 0x89: False}
_EMPTY: dict[int, Callable[[], Any]] = {ord("}"): dict, ord("]"): list, ord(")"): tuple, 0x8F: list}
_NUMBERS = {ord("J"): "<i", ord("K"): "<B", ord("M"): "<H", ord("G"): ">d"}
_TEXTS = {ord("X"): "<I", 0x8C: "<B", 0x8D: "<Q", ord("U"): "<B", ord("T"): "<I"}
_BYTES = {ord("C"): "<B", ord("B"): "<I", 0x8E: "<Q", 0x96: "<Q"}
_MOST_LONG = 16
"""Bytes of a whole number: far more than any count has."""


class Machine:
    """Reads the pickles that stand in `data`, one after another.

    `place` is where the next one begins; `stored` holds the storages that were named, by key.
    """

    def __init__(self, data: Any, place: int = 0) -> None:
        """`data` is bytes, or what can be sliced like them."""
        self.data, self.place = data, place
        self.stored: dict[str, Stored] = {}
        self._reset()

    def read(self) -> Any:
        """Return what the next pickle builds. Raises PickleFault for what it refuses."""
        self._reset()
        begin = self.place
        try:
            while (code := self._take(1)[0]) != ord("."):
                self._do(code)
            return self._stack.pop()
        except PickleFault:
            raise
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as fault:
            raise PickleFault(
                f"what begins at byte {begin:,} is no pickle, or damaged at byte {self.place:,}"
            ) from fault

    def _reset(self) -> None:
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._copied = 0

    def _take(self, count: int) -> bytes:
        found: bytes = self.data[self.place : self.place + count]
        if len(found) < count:
            raise PickleFault("the file ends too early")
        self.place += count
        return found

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self.data.find(b"\n", self.place, self.place + 1000)
        if end < 0:
            raise PickleFault("a name in it has no end")
        return self._take(end + 1 - self.place)[:-1].decode("utf-8")

    def _since_mark(self) -> list[Any]:
        found, self._stack = self._stack, self._marked.pop()
        return found

    def _do(self, code: int) -> None:
        """Do one instruction."""
        if code in _VALUES:
            self._stack.append(_VALUES[code])
        elif code in _EMPTY:
            self._stack.append(_EMPTY[code]())
        elif code in _NUMBERS:
            self._stack.append(self._number(_NUMBERS[code]))
        elif code in _TEXTS:
            text = self._take(self._number(_TEXTS[code]))
            self._stack.append(text.decode("utf-8", "surrogateescape"))
        elif code in _BYTES:
            self._stack.append(self._take(self._number(_BYTES[code])))
        elif code in _DEEDS:
            _DEEDS[code](self)
        else:
            raise PickleFault(f"it has the instruction {code:#04x}, which no checkpoint needs")

    def _long(self) -> None:
        size = self._number("<B")
        if size > _MOST_LONG:
            raise PickleFault(f"it has a whole number of {size} bytes")
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise PickleFault("it takes more than it has put down")
        place = len(self._stack) - count
        self._stack[place:] = [tuple(self._stack[place:])]

    def _spend(self, count: int) -> None:
        """Count what is copied: a list that is named over and over must not grow without end."""
        self._copied += count
        if self._copied > self.place:
            raise PickleFault("it copies more than it holds")

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _gather(self, make: Callable[[list[Any]], Any]) -> None:
        found = self._since_mark()
        self._stack.append(make(found))

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Inert):
            raise PickleFault("it appends to what is no list")

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Inert):
            return
        if not isinstance(target, dict):
            raise PickleFault("it enters a value into what is no table")
        target.update(pairs(items))

    def _set_one(self) -> None:
        items = [self._stack.pop(-2), self._stack.pop()]
        self._set(items)

    def _global(self, module: Any, name: Any) -> None:
        self._stack.append(known(f"{module}.{name}"))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise PickleFault("it has a name that is no text")
        self._global(module, name)

    def _reduce(self) -> None:
        arguments, maker = self._stack.pop(), self._stack.pop()
        if isinstance(arguments, tuple) and arguments and isinstance(maker, Maker):
            first = arguments[0]
            self._spend(len(first) if isinstance(first, (list, tuple, dict)) else 0)
        self._stack.append(made(maker, arguments))

    def _new_with_names(self) -> None:
        self._stack.pop()
        self._reduce()

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Namespace) and isinstance(state, dict):
            self._spend(len(state))
            target.values.update(state)

    def _persistent(self) -> None:
        found = self._stack.pop()
        if not (isinstance(found, tuple) and len(found) in (5, 6) and found[0] == "storage"):
            raise PickleFault("it names something outside itself that is no storage of torch's")
        _, maker, key, _, count, *more = found
        kind = maker.name if isinstance(maker, Inert) else ""
        if kind.rpartition(".")[2] not in STORAGES or not isinstance(key, str):
            raise PickleFault(f"it has numbers of a kind that is not known: `{kind[:60]}`")
        whole = Stored(kind.rpartition(".")[2], key, counted(count))
        if self.stored.setdefault(key, whole) != whole:
            raise PickleFault(f"its storage `{key[:60]}` is named in two ways")
        view = more[0] if more else None
        if view is not None:
            whole = Stored(whole.kind, key, counted(view[2]), counted(view[1]))
            if whole.start + whole.count > self.stored[key].count:
                raise PickleFault(f"a part of its storage `{key[:60]}` lies outside it")
        self._stack.append(whole)


_DEEDS: dict[int, Callable[[Machine], Any]] = {
    0x80: lambda m: m._take(1),  # protocol
    0x95: lambda m: m._take(8),  # frame
    0x8A: Machine._long,
    ord("("): Machine._mark,
    ord("0"): lambda m: m._stack.pop(),
    ord("1"): lambda m: m._since_mark(),
    ord("2"): lambda m: m._stack.append(m._stack[-1]),
    0x85: lambda m: m._tuple(1),
    0x86: lambda m: m._tuple(2),
    0x87: lambda m: m._tuple(3),
    ord("t"): lambda m: m._gather(tuple),
    ord("l"): lambda m: m._gather(list),
    0x91: lambda m: m._gather(tuple),  # frozen set
    ord("d"): lambda m: m._gather(lambda items: dict(pairs(items))),
    ord("a"): lambda m: m._extend([m._stack.pop()]),
    ord("e"): lambda m: m._extend(m._since_mark()),
    0x90: lambda m: m._extend(m._since_mark()),  # items of a set
    ord("s"): Machine._set_one,
    ord("u"): lambda m: m._set(m._since_mark()),
    ord("q"): lambda m: m._memo.update({m._number("<B"): m._stack[-1]}),
    ord("r"): lambda m: m._memo.update({m._number("<I"): m._stack[-1]}),
    0x94: lambda m: m._memo.update({len(m._memo): m._stack[-1]}),
    ord("h"): lambda m: m._stack.append(m._memo[m._number("<B")]),
    ord("j"): lambda m: m._stack.append(m._memo[m._number("<I")]),
    ord("c"): lambda m: m._global(m._line(), m._line()),
    0x93: Machine._stack_global,
    ord("R"): Machine._reduce,
    0x81: Machine._reduce,  # a new object of a class
    0x92: Machine._new_with_names,
    ord("b"): Machine._build,
    ord("Q"): Machine._persistent,
}


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
