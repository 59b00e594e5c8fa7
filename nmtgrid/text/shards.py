"""Shards of text files for worker processes, which decode their bytes.

`Block` is a range of a dataset's tokenised file, which a worker reads itself; `LineShard` contains
lines of a user's file, which are checked when they are decoded. Preprocessing, `bpe learn` and
`bpe apply` map functions over them with `base/io/workers.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.text import (
    STANDARD,
    check_line_ends,
    decode_line,
    empty_file_error,
    is_plain,
    open_text,
    read_error,
    read_line,
    read_lines,
)
from nmtgrid.base.io.workers import chunks
from nmtgrid.text.bpe import Codes
from nmtgrid.text.sentencepiece_model import SentencePieceModel

MIN_BLOCK, MAX_BLOCK = 1 << 22, 1 << 25
_BLOCKS = 64
_PIECE = 1 << 21
_READ_SIZE = 1 << 18
_CHUNK = 4000
_SEPARATOR = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


@dataclasses.dataclass(frozen=True)
class Block:
    """The lines of `path` from byte `start` to byte `end`."""

    path: Path
    start: int
    end: int


def split_file(path: Path, max_bytes: int = MAX_BLOCK) -> list[Block]:
    """Return the blocks of the file: whole lines, about a 64th of it, at most about `max_bytes`."""
    try:
        size = path.stat().st_size
        step = min(max(size // _BLOCKS, MIN_BLOCK), max_bytes)
        bounds = [0]
        with open(path, "rb") as file:
            # Even an empty file gets a block, so that callers see one result for each file.
            while len(bounds) < 2 or bounds[-1] < size:
                file.seek(min(bounds[-1] + step, size))
                file.readline()
                bounds.append(file.tell())
    except OSError as fault:
        raise read_error(path, fault) from fault
    return [Block(path, start, end) for start, end in itertools.pairwise(bounds)]


def read_block(block: Block) -> Iterator[str]:
    """Yield the text of a block in pieces of whole lines, a few megabytes at most.

    Raises StorageError if it is not UTF-8: datasets are checked when they are created.
    """
    try:
        with open(block.path, "rb") as file:
            file.seek(block.start)
            # Pieces bound the memory: as text and words a block takes many times its bytes.
            while (left := block.end - file.tell()) > 0:
                raw = file.read(min(_PIECE, left))
                # The cut may be inside a line, or even inside a character.
                if len(raw) < left:
                    raw += file.readline()
                yield raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise StorageError(
            f"{block.path} is damaged: it is not UTF-8.", "Make the dataset again."
        ) from fault
    except OSError as fault:
        raise read_error(block.path, fault) from fault


def split_lines(text: str) -> list[str]:
    """Return the lines of `text`, the last of which may lack its line end."""
    # `splitlines` would also cut at separators that belong to a line.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def join_lines(lines: Sequence[str]) -> bytes:
    """Return the bytes of `lines`, each with its line end."""
    return ("\n".join(lines) + "\n").encode("utf-8") if lines else b""


class ShardReader:
    """Reads whole lines of an uncompressed file as bytes."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        """`path` is for messages."""
        self._file, self._path = file, path
        self._buffer = b""

    def some(self, line: int) -> tuple[bytes, int]:
        """Return some lines and their count, none at the end; `line` is the first one's number."""
        if not self._buffer:
            self._fill(line)
        raw, self._buffer = self._buffer, b""
        return raw, _count_lines(raw)

    def exactly(self, count: int, line: int) -> tuple[bytes, int]:
        """Return `count` lines, or as many as are left, and their count."""
        while self._buffer.count(b"\n") < count and self._fill(line):
            pass
        parts = self._buffer.split(b"\n", count)
        rest = parts[count] if len(parts) > count else b""
        raw, self._buffer = self._buffer[: len(self._buffer) - len(rest)], rest
        return raw, _count_lines(raw)

    def rest(self) -> int:
        """Return the number of the remaining lines, and skip them."""
        count = 0
        while self._buffer or self._fill(1):
            count += _count_lines(self._buffer)
            self._buffer = b""
        return count

    def _fill(self, line: int) -> bool:
        try:
            # Read on to the line's end, so that the buffer contains whole lines only.
            raw = self._file.read(_READ_SIZE)
            raw += read_line(self._file, self._path, line + raw.count(b"\n"))
        except OSError as fault:
            raise read_error(self._path, fault, line) from fault
        self._buffer += raw
        return bool(raw)


def _count_lines(raw: bytes) -> int:
    return raw.count(b"\n") + bool(raw and not raw.endswith(b"\n"))


@dataclasses.dataclass(frozen=True)
class LineShard:
    """Lines of a file as bytes, from line `first` on; `path` is for messages.

    Without `path` they have been checked already, and nothing is counted in the notes.
    """

    raw: bytes
    path: str = ""
    first: int = 1

    def read(self, notes: Counter[str]) -> list[str]:
        """Return the lines, with the checks and `notes` of `read_lines`."""
        if not self.path:
            return split_lines(self.raw.decode("utf-8"))
        # One search over all lines decides whether any must be decoded by itself, which is rare.
        # The first line may begin with a byte-order mark.
        needs_care = self.first == 1 or b"\r" in self.raw or b"\0" in self.raw
        if not needs_care:
            try:
                text = self.raw.decode("utf-8")
            except UnicodeDecodeError:
                needs_care = True
        if self.first == 1:
            check_line_ends(self.raw, self.path)
        if needs_care or _SEPARATOR.search(text):
            raw_lines = enumerate(self.raw.removesuffix(b"\n").split(b"\n"), start=self.first)
            return [decode_line(raw + b"\n", self.path, line, notes) for line, raw in raw_lines]
        return split_lines(text)


def read_shards(path: Path, notes: Counter[str] | None = None) -> Iterator[LineShard]:
    """Yield the lines of a file; those of a compressed file or standard input are decoded here.

    For the latter `notes` counts as in `read_lines`. Raises the errors of `read_lines`; those of
    lines not decoded here are raised by `LineShard.read`.
    """
    if str(path) == STANDARD or not path.is_file() or not is_plain(path):
        for lines in chunks(read_lines(path, notes), _CHUNK):
            yield LineShard(join_lines(lines))
        return
    line = 1
    with open_text(path) as file:
        reader = ShardReader(file, path)
        while (shard := reader.some(line))[1]:
            raw, count = shard
            yield LineShard(raw, str(path), line)
            line += count
    if line == 1:
        raise empty_file_error(path)


def segment_lines(
    codes: Codes | SentencePieceModel, shard: LineShard
) -> tuple[bytes, Counter[str]]:
    """Return the lines of a shard as bytes, segmented into subwords, and their notes."""
    notes: Counter[str] = Counter()
    lines = shard.read(notes)
    return join_lines([" ".join(codes.segment(line.split())) for line in lines]), notes
