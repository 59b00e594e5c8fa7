"""Reads pickles without running them.

A pickle is a program: it names functions, and whoever reads it in the usual way calls them. The
machine here knows the opcodes that put values, lists, tables and tensors together, and does the
few constructors of a checkpoint itself: ordered tables, options as argparse keeps them, and views
of stored numbers. What else such checkpoints hold (meters, enumerations, numbers of NumPy) becomes
an `Inert` word, on which nothing is ever called. Every other name, and every other opcode, is
refused: no function is looked up anywhere, so there is none that could be called.

torch.load(weights_only=True) is not used: what it lets a file call has changed from version to
version, a hole in it ran code of the file's (CVE-2025-32434), and it takes the memory that a
header asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from nmtgrid.convert.from_fairseq.constructors import (
    STORAGES,
    Inert,
    Maker,
    Namespace,
    PickleFault,
    Stored,
    counted,
    known,
    made,
    pairs,
)

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
