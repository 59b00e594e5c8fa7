"""Parts of a text file as other processes get them: bytes, which are read as text only there."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.text import (
    STANDARD,
    decode_line,
    empty_file_error,
    is_plain,
    open_text,
    read_lines,
)
from nmtgrid.base.io.workers import chunks
from nmtgrid.text.bpe import Codes

LEAST, MOST = 1 << 22, 1 << 25
_PARTS = 64
_PIECE = 1 << 21
_TAKEN = 1 << 18


@dataclasses.dataclass(frozen=True)
class Block:
    """The lines of `path` from byte `start` to byte `end`."""

    path: Path
    start: int
    end: int


def split_file(path: Path, most: int = MOST) -> list[Block]:
    """Return the blocks of the file: whole lines, of about a 64th of it or `most` bytes."""
    try:
        size = path.stat().st_size
        each = min(max(size // _PARTS, LEAST), most)
        ends: list[int] = []
        with open(path, "rb") as file:
            while not ends or ends[-1] < size:
                file.seek(min((ends[-1] if ends else 0) + each, size))
                file.readline()
                ends.append(file.tell())
    except OSError as fault:
        raise InputError(f"cannot be read: {fault.strerror}.", path=path) from fault
    return [Block(path, start, end) for start, end in zip([0, *ends], ends, strict=False)]


def read_block(block: Block) -> Iterator[str]:
    """Yield the text of a block in pieces of whole lines, a few megabytes at most at once.

    Raises StorageError for what is no UTF-8: files of ours have been checked when they were made.
    """
    try:
        with open(block.path, "rb") as file:
            file.seek(block.start)
            while (left := block.end - file.tell()) > 0:
                raw = file.read(min(_PIECE, left))
                if len(raw) < left:
                    raw += file.readline()
                yield raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise StorageError(
            f"{block.path} is damaged: it is not UTF-8.", "Make the dataset again."
        ) from fault
    except OSError as fault:
        raise InputError(f"cannot be read: {fault.strerror}.", path=block.path) from fault


def split_lines(text: str) -> list[str]:
    """Return the lines of `text`, whose last one may lack its end."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


class ShardReader:
    """Takes whole lines from a file as they lie in it."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        """`path` is for messages."""
        self._file, self._path = file, path
        self._held = b""

    def some(self, line: int) -> tuple[bytes, int]:
        """Return some lines and their number, none at the end; `line` is that of the first."""
        if not self._held:
            self._fill(line)
        raw, self._held = self._held, b""
        return raw, _count(raw)

    def exactly(self, count: int, line: int) -> tuple[bytes, int]:
        """Return `count` lines, or what is left of them, and their number."""
        while (found := self._held.count(b"\n")) < count and self._fill(line):
            pass
        end = len(self._held)
        if found >= count:
            end = 0
            for _ in range(count):
                end = self._held.index(b"\n", end) + 1
        raw, self._held = self._held[:end], self._held[end:]
        return raw, min(count, _count(raw))

    def rest(self) -> int:
        """Return the number of the lines that are left, and pass them over."""
        left = 0
        while self._held or self._fill(1):
            left += _count(self._held)
            self._held = b""
        return left

    def _fill(self, line: int) -> bool:
        try:
            more = self._file.read(_TAKEN) + self._file.readline()
        except OSError as fault:
            raise InputError(
                f"cannot be read: {fault.strerror or fault}.", path=self._path, line=line
            ) from fault
        self._held += more
        return bool(more)


def _count(raw: bytes) -> int:
    return raw.count(b"\n") + bool(raw and not raw.endswith(b"\n"))


_SEPARATOR = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CHUNK = 4000


@dataclasses.dataclass(frozen=True)
class LineShard:
    """Lines of a file as they lie in it, from line `first` on; `path` is for messages.

    Without `path` they have been read already: they are good text, and nothing is noted of them.
    """

    raw: bytes
    path: str = ""
    first: int = 1

    def read(self, notes: Counter[str]) -> list[str]:
        """Return the lines as `text.files.read_lines` does, and note what it notes."""
        if not self.path:
            return split_lines(self.raw.decode("utf-8"))
        # One look at all of them: what needs care is rare.
        careful = self.first == 1 or b"\r" in self.raw or b"\0" in self.raw
        if not careful:
            try:
                text = self.raw.decode("utf-8")
            except UnicodeDecodeError:
                careful = True
        if careful or _SEPARATOR.search(text):
            found = enumerate(self.raw.removesuffix(b"\n").split(b"\n"), start=self.first)
            return [decode_line(line + b"\n", self.path, number, notes) for number, line in found]
        return split_lines(text)


def join_lines(lines: Sequence[str]) -> bytes:
    """Return `lines` as they are written, each with its end."""
    return ("\n".join(lines) + "\n").encode("utf-8") if lines else b""


def read_shards(path: Path) -> Iterator[LineShard]:
    """Yield the lines of a file in parts; a packed file and standard input are read here.

    Raises InputError for what `text.files.read_lines` refuses, `Lines.read` the rest of it.
    """
    if str(path) == STANDARD or not path.is_file() or not is_plain(path):
        for some in chunks(read_lines(path), _CHUNK):
            yield LineShard(join_lines(some))
        return
    done = 0
    with open_text(path) as file:
        lines = ShardReader(file, path)
        while True:
            raw, count = lines.some(done + 1)
            if not count:
                break
            yield LineShard(raw, str(path), done + 1)
            done += count
    if not done:
        raise empty_file_error(path)


class LineSegmenter:
    """Cuts the words of lines into units; works in a process of its own."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def __call__(self, lines: LineShard) -> bytes:
        """Return the lines of units, as they are written."""
        cut = self._codes.segment
        return join_lines([" ".join(cut(line.split())) for line in lines.read(Counter())])
