"""Pairs of raw lines from parallel files, read side by side."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmtgrid.base.errors import InputError
from nmtgrid.text.files import Meter, find_text, read_lines
from nmtgrid.text.iwslt import ENDINGS, read_xml

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

    def read(self, meter: Meter | None = None) -> Iterator[tuple[str, str]]:
        """Yield (source line, target line).

        Raises InputError when two files differ in their number of lines, and for what
        `text.files.read_lines` refuses.
        """
        for source, target in self.pairs:
            yield from self._read_pair(source, target, meter)

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
        longer, shorter = (source, target) if is_source_longer else (target, source)
        raise InputError(
            f"this file has {more:,} lines of text, but {shorter} has {count:,}.",
            "The two must be parallel: find the place where they part and mend it.",
            path=longer,
            line=0 if self.xml else count + 1,
        )

    def _lines(self, path: Path, meter: Meter | None) -> Iterator[str]:
        notes = self.notes.setdefault(path.name, Counter())
        lines = read_lines(path, notes, meter=meter)
        return read_xml(lines, str(path)) if self.xml else lines
