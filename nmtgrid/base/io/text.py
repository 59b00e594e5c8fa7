"""Reading text: plain or compressed, line by line, with every fault named by file and line.

Lines end at "\\n" only: other Unicode separators (U+0085, U+2028, ...) stay inside a line.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.packing import DAMAGED, pack, unpack

SUFFIXES = ("", ".gz", ".xz", ".bz2")
STANDARD = "-"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SEPARATORS = "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"
_WITHOUT_SEPARATORS = str.maketrans("", "", _SEPARATORS)
_BLOCK = 1 << 20

NOTES = {
    "carriage_returns": "{count} lines ended with a carriage return, which was taken away.",
    "byte_order_marks": "began with a byte-order mark, which was taken away.",
    "line_separators": "{count} lines hold carriage returns or Unicode line separators; they stay "
    "one line each.",
}
"""How people are told of the notes of `read_lines`."""


class Meter:
    """How much of the files has been read: `done` of `total` bytes, as they lie on the disk."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self.total = sum(path.stat().st_size for path in paths)
        self.done = 0


class _MeteredFile(io.FileIO):
    """A file that tells a meter how much has been read from it."""

    meter: Meter | None = None

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        if self.meter is not None and count:
            self.meter.done += count
        return count


@contextlib.contextmanager
def open_text(path: str | Path, meter: Meter | None = None) -> Iterator[IO[bytes]]:
    """Open a plain, .gz, .xz or .bz2 file (told by its first bytes), or standard input for `-`.

    Raises InputError when it is missing or cannot be read.
    """
    if str(path) == STANDARD:
        if sys.stdin is None:
            raise InputError("standard input is closed.", "Name a file.", path=path)
        held = sys.stdin.buffer
        yield unpack(held) if isinstance(held, io.BufferedReader) else held
        return
    try:
        plain = _MeteredFile(path, "r")
    except FileNotFoundError as fault:
        raise InputError("there is no such file.", "Check the name.", path=path) from fault
    except IsADirectoryError as fault:
        raise InputError("this is a folder.", "Name a text file.", path=path) from fault
    except OSError as fault:
        raise InputError(f"cannot be read: {fault.strerror}.", path=path) from fault
    plain.meter = meter
    with io.BufferedReader(cast(Any, plain), 1 << 17) as file, unpack(file) as text:
        yield text


def read_lines(
    path: str | Path,
    notes: Counter[str] | None = None,
    *,
    allow_empty: bool = False,
    meter: Meter | None = None,
) -> Iterator[str]:
    """Yield the lines of a text file (`-`: standard input) without their ends.

    Carriage returns at the end of a line and a byte-order mark at the start of the file are taken
    away; `notes` counts such lines and files (`carriage_returns`, `byte_order_marks`), and the
    lines that hold other Unicode separators (`line_separators`), which stay in. Raises InputError
    with the line for bytes that are not UTF-8, for NUL and for a damaged archive, and for a file
    without any line (standard input may be empty).
    """
    counts: Counter[str] = Counter() if notes is None else notes
    number = 0
    with open_text(path, meter) as file:
        while True:
            try:
                raw = file.readline()
            except DAMAGED as fault:
                raise _damaged(path, number + 1, fault) from fault
            except OSError as fault:
                raise InputError(
                    f"cannot be read: {fault.strerror or fault}.", path=path, line=number + 1
                ) from fault
            if not raw:
                break
            number += 1
            try:
                line = decode_line(raw, path, number, counts)
            except InputError as fault:
                _check_rest(file, path, number, fault)
                raise
            yield line
    if number == 0 and not allow_empty and str(path) != STANDARD:
        raise empty(path)


def empty(path: str | Path) -> InputError:
    """Return the fault of a file without any line."""
    return InputError("the file is empty.", "Give a file with text.", path=path)


def _damaged(path: str | Path, line: int, fault: BaseException) -> InputError:
    return InputError(
        f"the compressed file is damaged ({fault}).",
        "Fetch or make it again.", path=path, line=line,
    )  # fmt: skip


def _check_rest(file: IO[bytes], path: str | Path, line: int, fault: InputError) -> None:
    """Raise InputError if what is no text comes from a damaged archive: that is what is told."""
    if isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO):
        return
    try:
        while file.read(_BLOCK):
            pass
    except DAMAGED as damage:
        raise _damaged(path, line, damage) from fault
    except OSError:
        return


def is_plain(path: Path) -> bool:
    """Return whether a file holds text as it is, not packed."""
    with open_text(path) as file:
        return isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO)


def decode_line(raw: bytes, path: str | Path, number: int, notes: Counter[str]) -> str:
    """Return line `number` of a file without its end, as `read_lines` does."""
    while number == 1 and raw.startswith(_BYTE_ORDER_MARK):
        raw = raw[len(_BYTE_ORDER_MARK) :]
        notes["byte_order_marks"] += 1
    raw = raw.removesuffix(b"\n")
    if raw.endswith(b"\r"):
        raw = raw.rstrip(b"\r")
        notes["carriage_returns"] += 1
    if b"\0" in raw:
        raise InputError(
            f"NUL byte at character {raw.index(0) + 1}.",
            "This is not plain UTF-8 text (UTF-16, or damaged?); convert it or mend the line.",
            path=path,
            line=number,
        )
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise InputError(
            f"not valid UTF-8 (byte {fault.start + 1} of the line is 0x{raw[fault.start]:02x}).",
            "Convert the file to UTF-8 (`iconv -f latin1 -t utf8`) or mend the line.",
            path=path,
            line=number,
        ) from fault
    if not line.isascii() or not line.isprintable():
        notes["line_separators"] += len(line.translate(_WITHOUT_SEPARATORS)) != len(line)
    return line


def find_text(prefix: str, language: str, endings: Iterable[str] = ("",)) -> Path:
    """Return the file `prefix.language` + ending, plain or compressed.

    Raises InputError that says which suffixes there are instead.
    """
    tried = [Path(f"{prefix}.{language}{ending}{packed}")
             for ending in endings for packed in SUFFIXES]  # fmt: skip
    found = [path for path in tried if path.is_file()]
    if len(found) > 1:
        raise InputError(
            f"both {found[0].name} and {found[1].name} are there.",
            "Move one of them away, so that it is clear which one is meant.",
            path=prefix,
        )
    if found:
        return found[0]
    # Not by Path(prefix): that would take the last folder of `corpus/` for a name.
    folder, name = Path(os.path.dirname(prefix)), os.path.basename(prefix)
    if not folder.is_dir():
        raise InputError("there is no such folder.", "Check the prefix.", path=folder)
    others = sorted(p.name[len(name) :] for p in folder.iterdir()
                    if name and p.name.startswith(name + "."))  # fmt: skip
    if not others and Path(prefix).is_dir():
        raise InputError(
            "this is a folder, not the beginning of a file's name.",
            f"Name the files without their language: `{Path(prefix, 'train')}` for "
            f"`train.{language}`.",
            path=prefix or ".",
        )
    shown = ", ".join(f"`{ending}`" for ending in others[:12])
    raise InputError(
        f"there is no `{name}.{language}` (nor with .gz, .xz or .bz2).",
        f"With this prefix there are: {shown}. Check `--source-lang` and `--target-lang`."
        if others
        else f"No file there begins with `{name}.`; check the prefix.",
        path=folder,
    )


@contextlib.contextmanager
def open_writer(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for bytes: compressed by its suffix, `-` is standard output.

    It appears whole or not at all, unless it is a pipe or a device, which is written to as it is.
    Raises StorageError when it cannot be written.
    """
    place = Path(path)
    if str(path) == STANDARD:
        if sys.stdout is None:
            raise StorageError("Standard output is closed.", "Name a file with `--out`.")
        with _told("Standard output"):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
    elif is_stream(place):
        with _told(str(path)), open(place, "wb") as stream, pack(stream, place) as text:
            yield text
    else:
        # `bpe apply` does without numpy and torch, which other files of base/ bring along.
        from nmtgrid.base.io.atomic import atomic_file

        with atomic_file(place) as file, pack(file, place) as text:
            yield text


def is_stream(path: Path) -> bool:
    """Return whether `path` is a pipe or a device: read but once, written to but never replaced."""
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Let faults of writing say where; a reader that has gone away is passed on as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as fault:
        from nmtgrid.base.io.atomic import reason

        raise StorageError(
            f"{name} could not be written: {reason(fault)}.", "Write to another place."
        ) from fault
