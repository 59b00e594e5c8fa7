"""Text files, plain or compressed: read line by line, found by prefix and language, written.

Every fault is an InputError with its file and line. Lines end at "\n" only: other Unicode
separators (U+0085, U+2028, ...) stay inside a line, so that parallel files stay aligned.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import select
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from nmtgrid.base.errors import InputError, StorageError, listed, nearest
from nmtgrid.base.io.atomic import atomic_file, is_stream, reason

# Errors raised by reading a truncated or altered archive.
DAMAGED = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)

SUFFIXES = ("", ".gz", ".xz", ".bz2")
STANDARD = "-"

_OTHER_ARCHIVES = {b"\x28\xb5\x2f\xfd": "zstandard", b"PK\x03\x04": "zip"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SEPARATORS = "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"
_WITHOUT_SEPARATORS = str.maketrans("", "", _SEPARATORS)
_BLOCK = 1 << 17
LONGEST_LINE = 64 << 20
"""Maximum bytes of a line: input without line ends, such as /dev/zero, must not fill the memory."""

# Messages for the notes of `read_lines`.
NOTES = {
    "carriage_returns": "removed carriage returns at the ends of {lines}.",
    "byte_order_marks": "removed a byte-order mark.",
    "line_separators": "carriage returns or Unicode line separators within {lines}, which do not "
    "end a line.",
}


def unpack(file: io.BufferedReader[Any], path: str | Path) -> IO[bytes]:
    """Return the content of `file`, decompressed if its first bytes are those of an archive.

    Raises InputError, which names `path`, for an archive of another kind.
    """
    first = file.peek(6)[:6]
    if (kind := _OTHER_ARCHIVES.get(first[:4])) is not None:
        raise InputError(
            f"this is a {kind} archive.",
            "Unpack it: plain text, .gz, .xz and .bz2 are read.",
            path=path,
        )
    if first.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if first.startswith(b"\xfd7zXZ"):
        return cast(IO[bytes], io.BufferedReader(_Streams(file, lzma.LZMADecompressor), _BLOCK))
    if first.startswith(b"BZh"):
        return cast(IO[bytes], io.BufferedReader(_Streams(file, bz2.BZ2Decompressor), _BLOCK))
    return file


class _Streams(io.RawIOBase):
    """The concatenated streams of an archive.

    Python's own readers end at the first stream that they cannot read, as if nothing followed:
    text would be lost silently.
    """

    def __init__(self, file: IO[bytes], decompressor: Callable[[], Any]) -> None:
        self._file = file
        self._new_decompressor = decompressor
        self._stream = decompressor()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with decompressed bytes. Raises one of `DAMAGED`."""
        while True:
            raw = self._read_compressed()
            if raw is None:
                return 0
            try:
                data = self._stream.decompress(raw, len(buffer))
            except OSError as fault:  # bz2's error for damaged data
                raise EOFError(str(fault)) from fault
            if data:
                buffer[: len(data)] = data
                return len(data)

    def _read_compressed(self) -> bytes | None:
        """Return bytes of the current or a new stream; None at the end of the last one."""
        if not self._stream.eof:
            raw = self._file.read(_BLOCK) if self._stream.needs_input else b""
            if self._stream.needs_input and not raw:
                raise EOFError("it ends before its end marker")
            return raw
        raw = self._stream.unused_data
        while not raw.lstrip(b"\0"):  # streams may be padded
            raw = self._file.read(_BLOCK)
            if not raw:
                return None
        self._stream = self._new_decompressor()
        return raw.lstrip(b"\0")


class Meter:
    """Progress of reading: `done` of `total` bytes on disk; `taken` are the bytes of the lines."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self.total = sum(path.stat().st_size for path in paths)
        self.done = self.taken = 0


class PipeMeter(Meter):
    """Progress of reading a pipe, and whether more input has arrived."""

    _PATIENCE = 0.05
    """Seconds within which a program that keeps writing, as `cat` does, has surely written more."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptor: int | None = None

    def is_waiting(self) -> bool:
        """Return whether the next line has, as far as is known, not been written yet."""
        # Bytes that were read, but not returned in lines yet, are in Python's buffer.
        if self.descriptor is None or self.done > self.taken:
            return False
        # At the end of a file or pipe the descriptor counts as readable.
        return not select.select([self.descriptor], [], [], self._PATIENCE)[0]


class _MeteredFile(io.FileIO):
    """A file that counts the bytes read from it in a meter."""

    meter: Meter

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self.meter.done += count or 0
        return count


@contextlib.contextmanager
def open_text(path: str | Path, meter: Meter | None = None) -> Iterator[IO[bytes]]:
    """Open a plain, .gz, .xz or .bz2 file (by its first bytes), or standard input for `-`.

    `meter` counts what is read. Raises InputError when it is missing or cannot be read.
    """
    source: str | Path | int = path
    if str(path) == STANDARD:
        if sys.stdin is None:
            raise InputError("standard input is closed.", "Name a file.", path=path)
        stdin = sys.stdin.buffer
        if not isinstance(stdin, io.BufferedReader):
            yield stdin
            return
        if meter is None or not isinstance(stdin.raw, io.FileIO):
            yield unpack(stdin, path)
            return
        source = stdin.fileno()
    try:
        raw = io.FileIO(source) if meter is None else _MeteredFile(source, closefd=source is path)
    except FileNotFoundError as fault:
        raise InputError("there is no such file.", "Check the name.", path=path) from fault
    except IsADirectoryError as fault:
        raise InputError("this is a folder.", "Name a text file.", path=path) from fault
    except OSError as fault:
        raise read_error(path, fault) from fault
    if isinstance(raw, _MeteredFile) and meter is not None:
        raw.meter = meter
    if isinstance(meter, PipeMeter):
        meter.descriptor = raw.fileno()
    with io.BufferedReader(cast(Any, raw), _BLOCK) as file, unpack(file, path) as text:
        yield text


def read_error(path: str | Path, fault: Exception, line: int = 0) -> InputError:
    """Return the error for a `fault` in reading a text file: an OSError or one of `DAMAGED`.

    A damaged gzip archive (`gzip.BadGzipFile`) is an OSError too.
    """
    if isinstance(fault, DAMAGED):
        return InputError(
            f"the compressed file is damaged ({fault}).",
            "Fetch or make it again.", path=path, line=line,
        )  # fmt: skip
    problem = getattr(fault, "strerror", None) or fault
    return InputError(f"cannot be read: {problem}.", path=path, line=line)


def read_lines(
    path: str | Path,
    notes: Counter[str] | None = None,
    *,
    allow_empty: bool = False,
    meter: Meter | None = None,
) -> Iterator[str]:
    """Yield the lines of a text file (`-`: standard input) without their ends.

    Carriage returns at the end of a line and a byte-order mark at the start of the file are
    removed; `notes` counts such lines and files (`carriage_returns`, `byte_order_marks`), and the
    lines with other Unicode separators (`line_separators`), which are kept. Raises InputError with
    the line for bytes that are not UTF-8, for NUL and for a damaged archive, and for a file without
    any line (standard input may be empty) or with carriage returns as its only line ends.
    """
    counts: Counter[str] = Counter() if notes is None else notes
    number = 0
    with open_text(path, meter) as file:
        while True:
            try:
                raw = read_line(file, path, number + 1)
            except (*DAMAGED, OSError) as fault:
                raise read_error(path, fault, number + 1) from fault
            if not raw:
                break
            number += 1
            if meter is not None:
                meter.taken += len(raw)
            if number == 1:
                check_line_ends(raw, path)
            try:
                line = decode_line(raw, path, number, counts)
            except InputError as fault:
                _check_rest(file, path, number, fault)
                raise
            yield line
    if number == 0 and not allow_empty and str(path) != STANDARD:
        raise empty_file_error(path)


def read_line(file: IO[bytes], path: str | Path, number: int) -> bytes:
    """Return a line, or the rest of one, with its end; b"" at the end of the file.

    Raises InputError for line `number` if it is longer than LONGEST_LINE.
    """
    raw = file.readline(LONGEST_LINE + 1)
    if len(raw) > LONGEST_LINE:
        check_line_ends(raw, path)
        raise InputError(
            f"the line has more than {LONGEST_LINE >> 20} MiB.",
            "Is this text? Split it into lines of one sentence each.",
            path=path,
            line=number,
        )
    return raw


def check_line_ends(raw: bytes, path: str | Path) -> None:
    """Raise InputError if a text, or its first line, has carriage returns but no line feed."""
    if b"\r" in raw.rstrip(b"\r") and b"\n" not in raw:
        raise line_ends_error(path)


def line_ends_error(path: str | Path) -> InputError:
    """Return the error for a text whose lines end in carriage returns only."""
    return InputError(
        "the lines end in carriage returns only, as on old Macs, not in line feeds.",
        "Convert the file: `tr '\\r' '\\n' < FILE > NEW`.",
        path=path,
    )


def check_file(path: str | Path) -> None:
    """Raise InputError for a pipe, a socket or a device: the input is read more than once.

    A missing file raises no error here.
    """
    if is_stream(Path(path)):
        advice = "Save it as a file first."
        raise InputError("this is a pipe, a socket or a device, not a file.", advice, path=path)


def empty_file_error(path: str | Path) -> InputError:
    """Return the error for a file without any line."""
    return InputError("the file is empty.", "Give a file with text.", path=path)


def _check_rest(file: IO[bytes], path: str | Path, line: int, fault: InputError) -> None:
    """Raise InputError if the text with `fault` is from a damaged archive, which is the cause."""
    if _is_uncompressed(file):
        return
    try:
        while file.read(_BLOCK):
            pass
    except DAMAGED as damage:
        raise read_error(path, damage, line) from fault
    except OSError:
        return


def _is_uncompressed(file: IO[bytes]) -> bool:
    return isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO)


def is_plain(path: Path) -> bool:
    """Return whether a text file is not compressed."""
    with open_text(path) as file:
        return _is_uncompressed(file)


def decode_line(raw: bytes, path: str | Path, number: int, notes: Counter[str]) -> str:
    """Return line `number` of a file without its end, as `read_lines` does."""
    # Files that were joined or saved repeatedly can begin with several marks.
    while number == 1 and raw.startswith(_BYTE_ORDER_MARK):
        raw = raw[len(_BYTE_ORDER_MARK) :]
        notes["byte_order_marks"] += 1
    raw = raw.removesuffix(b"\n")
    if raw.endswith(b"\r"):
        raw = raw.rstrip(b"\r")
        notes["carriage_returns"] += 1
    # NUL is valid UTF-8, but a sure sign of UTF-16 or of a hole in a damaged file.
    if b"\0" in raw:
        raise InputError(
            f"NUL byte at character {raw.index(0) + 1}.",
            "This is not plain UTF-8 text (UTF-16, or damaged?): convert or correct it.",
            path=path,
            line=number,
        )
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise InputError(
            f"not valid UTF-8 (byte {fault.start + 1} of the line is 0x{raw[fault.start]:02x}).",
            "Convert the file to UTF-8 (`iconv -f latin1 -t utf8`), or correct the line.",
            path=path,
            line=number,
        ) from fault
    # Most lines are printable ASCII, for which the translation would be the slowest part.
    if not line.isascii() or not line.isprintable():
        notes["line_separators"] += len(line.translate(_WITHOUT_SEPARATORS)) != len(line)
    return line


def find_text(prefix: str, language: str, endings: Iterable[str] = ("",)) -> Path:
    """Return the file `prefix.language` + ending, plain or compressed.

    Raises InputError that names the suffixes that exist instead.
    """
    paths = [Path(f"{prefix}.{language}{ending}{suffix}")
             for ending in endings for suffix in SUFFIXES]  # fmt: skip
    for path in paths:
        # Parallel files are opened more than once, and their sizes are read.
        check_file(path)
    files = [path for path in paths if path.is_file()]
    if len(files) > 1:
        raise InputError(
            f"both {files[0].name} and {files[1].name} exist.",
            "Move one of them away, so that it is clear which one is meant.",
            path=prefix,
        )
    if files:
        return files[0]
    # Path("corpus/") would drop the slash: its last folder would count as the beginning of a name.
    folder, name = Path(os.path.dirname(prefix)), os.path.basename(prefix)
    if not folder.is_dir():
        raise InputError("there is no such folder.", "Check the prefix.", path=folder)
    others = sorted(p.name[len(name) :] for p in folder.iterdir()
                    if name and p.name.startswith(name + "."))  # fmt: skip
    if not others and Path(prefix).is_dir():
        raise InputError(
            "this is a folder, not a prefix of file names.",
            f"Give the names of the files without their language: `{Path(prefix, 'train')}` for "
            f"`train.{language}`.",
            path=prefix or ".",
        )
    # The rest of the names that would match, after the prefix.
    suffixes = tuple(path.name.removeprefix(name) for path in paths)
    known = {p.name.rpartition(f".{language}")[0]
             for p in folder.iterdir() if p.name.endswith(suffixes)}  # fmt: skip
    suggestion = nearest(name, known) or "Check the prefix."
    raise InputError(
        f"There is no file `{prefix}.{language}` (nor with .gz, .xz or .bz2).",
        f"With this prefix there are: {listed([f'`{ending}`' for ending in others])}. Check "
        "`--source-lang` and `--target-lang`."
        if others
        else f"No file there begins with `{name}.`. {suggestion}",
    )


@contextlib.contextmanager
def open_writer(
    path: str | Path, keep_partial: Callable[[Path], None] | None = None
) -> Iterator[IO[bytes]]:
    """Open a file to write bytes, compressed according to its suffix; `-` is standard output.

    It is written completely or not at all, except for a pipe or a device, which is written
    directly; `keep_partial` is as in `atomic_file`. Raises StorageError if it cannot be written.
    """
    target = Path(path)
    if str(path) == STANDARD:
        if sys.stdout is None:
            raise StorageError("Standard output is closed.", "Name a file with `--out`.")
        with _write_errors("Standard output"):
            yield sys.stdout.buffer
            # At exit a failing flush could no longer be reported.
            sys.stdout.buffer.flush()
    elif is_stream(target):
        with _write_errors(str(path)), open(target, "wb") as file, _packed(file, target) as text:
            yield text
    else:
        with atomic_file(target, keep_partial) as whole, _packed(whole, target) as text:
            yield text


def _packed(file: IO[bytes], path: Path) -> contextlib.AbstractContextManager[Any]:
    """Return a file object that writes to `file`, compressed according to the suffix of `path`."""
    if path.suffix == ".gz":
        # No name and no time in the header: the same text gives the same bytes.
        return gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0)
    if path.suffix == ".xz":
        return lzma.LZMAFile(file, "wb")
    if path.suffix == ".bz2":
        return bz2.BZ2File(file, "wb")
    return contextlib.nullcontext(file)


@contextlib.contextmanager
def _write_errors(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has stopped, as `head` does: not an error for users
        raise
    except OSError as fault:
        raise StorageError(
            f"{name} could not be written: {reason(fault)}.", "Write to another place."
        ) from fault
