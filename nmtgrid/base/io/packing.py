"""Compressed text, read and written: .gz, .xz and .bz2, told by the first bytes or the suffix."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

DAMAGED = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)
"""What reading a cut or altered archive raises."""

_BLOCK = 1 << 17


def unpack(file: io.BufferedReader[Any]) -> IO[bytes]:
    """Return what `file` holds, unpacked if its first bytes say that it is packed."""
    first = file.peek(6)[:6]
    if first.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if first.startswith(b"\xfd7zXZ"):
        return _reader(file, lzma.LZMADecompressor)
    if first.startswith(b"BZh"):
        return _reader(file, bz2.BZ2Decompressor)
    return file


@contextlib.contextmanager
def pack(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Yield what takes text for `file`, packed as the suffix of `path` asks."""
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
            yield cast(IO[bytes], packed)
    elif path.suffix == ".xz":
        with lzma.LZMAFile(file, "wb") as packed_xz:
            yield packed_xz
    elif path.suffix == ".bz2":
        with bz2.BZ2File(file, "wb") as packed_bz2:
            yield packed_bz2
    else:
        yield file


def _reader(file: IO[bytes], begin: Callable[[], Any]) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(_Streams(file, begin), _BLOCK))


class _Streams(io.RawIOBase):
    """The streams of an archive, one after the other.

    Python's own readers end at the first stream that they cannot read, as if nothing followed:
    text would be lost without a word.
    """

    def __init__(self, file: IO[bytes], begin: Callable[[], Any]) -> None:
        self._file = file
        self._begin = begin
        self._stream = begin()

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with unpacked bytes. Raises what `DAMAGED` names."""
        while True:
            raw = self._packed()
            if raw is None:
                return 0
            try:
                data = self._stream.decompress(raw, len(buffer))
            except OSError as fault:  # how bz2 says it
                raise EOFError(str(fault)) from fault
            if data:
                buffer[: len(data)] = data
                return len(data)

    def _packed(self) -> bytes | None:
        """Return packed bytes for the present or a new stream; None at the end of the last one."""
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
        self._stream = self._begin()
        return raw.lstrip(b"\0")
