"""Pairs of raw lines from parallel files, read side by side."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.text import Meter, empty, find_text, is_plain, open_text, read_lines
from nmtgrid.base.io.workers import chunks
from nmtgrid.text.cleaning import Cleaned, Part, as_parts
from nmtgrid.text.iwslt import ENDINGS, read_xml
from nmtgrid.text.parts import Lines
from nmtgrid.text.shards import RawLines

_CHUNK = 1000
_MISSING = object()


@dataclasses.dataclass(frozen=True)
class ParallelFiles:
    """Pairs of files, one after the other: line N of a source file belongs to line N of its target.

    `notes` counts by file what was put right or is uncommon in it.
    """

    pairs: list[tuple[Path, Path]]
    xml: bool
    notes: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def find(cls, prefixes: Sequence[str], languages: tuple[str, str], xml: bool) -> ParallelFiles:
        """Return the files with these prefixes. Raises InputError naming what is missing."""
        endings = ENDINGS if xml else ("",)
        source, target = languages
        return cls(
            [(find_text(p, source, endings), find_text(p, target, endings)) for p in prefixes], xml
        )

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [path for pair in self.pairs for path in pair]

    @property
    def noted(self) -> dict[str, dict[str, int]]:
        """The notes that are not zero, by file name."""
        found = {file: {note: n for note, n in counts.items() if n}
                 for file, counts in self.notes.items()}  # fmt: skip
        return {file: counts for file, counts in found.items() if counts}

    def parts(self, meter: Meter | None = None) -> Iterator[Part]:
        """Yield the pairs in parts. Plain files are not looked into here: `Lines.read` does that.

        Raises InputError when two files differ in their number of lines, and for what
        `text.files.read_lines` refuses.
        """
        for source, target in self.pairs:
            if self.xml or not (is_plain(source) and is_plain(target)):
                rows = ((*pair, "") for pair in self._read_pair(source, target, meter))
                yield from as_parts(chunks(rows, _CHUNK))
            else:
                yield from self._cut_pair(source, target, meter)

    def note(self, part: Part, cleaned: Cleaned) -> None:
        """Add what was noted of a part to the notes on its files."""
        for lines, found in zip((part.source, part.target), cleaned.notes, strict=True):
            if lines.path:
                self.notes.setdefault(Path(lines.path).name, Counter()).update(found)

    def _cut_pair(self, source: Path, target: Path, meter: Meter | None) -> Iterator[Part]:
        done = 0
        with open_text(source, meter) as first, open_text(target, meter) as second:
            sides = RawLines(first, source), RawLines(second, target)
            while True:
                raw, count = sides[0].some(done + 1)
                other, found = sides[1].exactly(count, done + 1)
                if not done and not (count and found):
                    raise empty(target if count else source)
                more = 0 if count else sides[1].rest()
                if found < count or more:
                    totals = [done + count + sides[0].rest(), done + found + more]
                    raise _unequal((source, target), totals, self.xml)
                if not count:
                    return
                yield Part(Lines(raw, str(source), done + 1), Lines(other, str(target), done + 1))
                done += count

    def _read_pair(
        self, source: Path, target: Path, meter: Meter | None
    ) -> Iterator[tuple[str, str]]:
        sources, targets = self._lines(source, meter), self._lines(target, meter)
        count = 0
        while True:
            source_line, target_line = next(sources, _MISSING), next(targets, _MISSING)
            if isinstance(source_line, str) and isinstance(target_line, str):
                count += 1
                yield source_line, target_line
            elif source_line is target_line:
                return
            else:
                break
        is_source_longer = isinstance(source_line, str)
        more = count + 1 + sum(1 for _ in (sources if is_source_longer else targets))
        totals = [more, count] if is_source_longer else [count, more]
        raise _unequal((source, target), totals, self.xml)

    def _lines(self, path: Path, meter: Meter | None) -> Iterator[str]:
        notes = self.notes.setdefault(path.name, Counter())
        lines = read_lines(path, notes, meter=meter)
        return read_xml(lines, str(path)) if self.xml else lines


def _unequal(paths: tuple[Path, Path], totals: list[int], xml: bool) -> InputError:
    longer = totals[1] > totals[0]
    more, fewer = max(totals), min(totals)
    return InputError(
        f"this file has {more:,} lines of text, but {paths[not longer]} has {fewer:,}.",
        "The two must be parallel: find the place where they part and mend it.",
        path=paths[longer],
        line=0 if xml else fewer + 1,
    )
