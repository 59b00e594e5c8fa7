"""One split of a dataset: read in chunks, tokenised, filtered, counted and written."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nmtgrid.base.io.workers import map_ordered
from nmtgrid.data.writing import SplitWriter
from nmtgrid.text.cleaning import REASONS, Cleaned, Cleaner, Part


class SplitBuilder:
    """Writes splits into a folder; `files` gathers the sizes and hashes of what it wrote."""

    def __init__(
        self,
        folder: Path,
        languages: tuple[str, str],
        *,
        workers: int = 1,
        truth: bool = False,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """`truth`: what is known of the pairs is kept; `report` is told the pairs done so far."""
        self._folder = folder
        self._languages = languages
        self._workers = workers
        self._truth = truth
        self._report = report
        self._done = 0
        self.files: dict[str, dict[str, Any]] = {}

    def build(
        self,
        name: str,
        parts: Iterable[Part],
        cleaner: Cleaner,
        cut_every: int | None = None,
        note: Callable[[Part, Cleaned], None] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Write the split `name`; return its counts.

        Every `cut_every`-th kept pair goes to the split `valid` instead, whose counts are then
        returned too. `note` is told of each part.
        """
        dropped: Counter[str] = Counter()
        read = kept = 0
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(self._writer(name).open())
            cut = stack.enter_context(self._writer("valid").open()) if cut_every else None
            for part, cleaned in map_ordered(cleaner, parts, self._workers):
                if note is not None:
                    note(part, cleaned)
                dropped.update(cleaned.dropped)
                read += cleaned.read
                for (kind, side), block in _blocks(cleaned).items():
                    if cut is not None and cut_every is not None and block:
                        block, moved = _cut(block, kept, cut_every)
                        cut.write(kind, side, moved)
                    writer.write(kind, side, block)
                kept += cleaned.kept
                self._tell(cleaned.read)
        counts = {name: _counts(read, writer.count, dropped)}
        self.files.update(writer.facts)
        if cut is not None:
            counts[name]["moved_to_valid"] = cut.count
            counts["valid"] = _counts(cut.count, cut.count, Counter())
            self.files.update(cut.facts)
        return counts

    def _writer(self, name: str) -> SplitWriter:
        return SplitWriter(self._folder, name, self._languages, truth=self._truth)

    def _tell(self, pairs: int) -> None:
        self._done += pairs
        if self._report is not None:
            self._report(self._done)


def _blocks(cleaned: Cleaned) -> dict[tuple[str, int], bytes]:
    """Return the blocks of lines by kind and side."""
    sides = {
        (kind, side): block
        for kind, blocks in (("text", cleaned.text), ("raw", cleaned.raw))
        for side, block in enumerate(blocks)
    }
    return {**sides, ("truth", 0): cleaned.truth}


def _cut(block: bytes, before: int, every: int) -> tuple[bytes, bytes]:
    """Return what stays and what is moved; `before` lines came before those of the block."""
    lines = [line + b"\n" for line in block.split(b"\n")[:-1]]
    first = every - 1 - before % every
    moved = lines[first::every]
    del lines[first::every]
    return b"".join(lines), b"".join(moved)


def _counts(read: int, kept: int, dropped: Counter[str]) -> dict[str, Any]:
    return {
        "pairs_read": read,
        "pairs_kept": kept,
        "dropped": {reason: dropped[reason] for reason in REASONS},
    }
