"""Parts of a text file as other processes get them: bytes, which are read as text only there."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmtgrid.base.io.text import STANDARD, decode_line, empty, is_plain, open_text, read_lines
from nmtgrid.base.io.workers import chunks
from nmtgrid.text.bpe import Codes
from nmtgrid.text.shards import RawLines, lines_of

_SEPARATOR = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CHUNK = 4000


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines of a file as they lie in it, from line `first` on; `path` is for messages.

    Without `path` they have been read already: they are good text, and nothing is noted of them.
    """

    raw: bytes
    path: str = ""
    first: int = 1

    def read(self, notes: Counter[str]) -> list[str]:
        """Return the lines as `text.files.read_lines` does, and note what it notes."""
        if not self.path:
            return lines_of(self.raw.decode("utf-8"))
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
        return lines_of(text)


def block_of(lines: Sequence[str]) -> bytes:
    """Return `lines` as they are written, each with its end."""
    return ("\n".join(lines) + "\n").encode("utf-8") if lines else b""


def raw_parts(path: Path) -> Iterator[Lines]:
    """Yield the lines of a file in parts; a packed file and standard input are read here.

    Raises InputError for what `text.files.read_lines` refuses, `Lines.read` the rest of it.
    """
    if str(path) == STANDARD or not path.is_file() or not is_plain(path):
        for some in chunks(read_lines(path), _CHUNK):
            yield Lines(block_of(some))
        return
    done = 0
    with open_text(path) as file:
        lines = RawLines(file, path)
        while True:
            raw, count = lines.some(done + 1)
            if not count:
                break
            yield Lines(raw, str(path), done + 1)
            done += count
    if not done:
        raise empty(path)


class LineCutter:
    """Cuts the words of lines into units; works in a process of its own."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def __call__(self, lines: Lines) -> bytes:
        """Return the lines of units, as they are written."""
        cut = self._codes.segment
        return block_of([" ".join(cut(line.split())) for line in lines.read(Counter())])
