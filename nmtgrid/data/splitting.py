"""One split of a dataset: read in chunks, tokenised, filtered, counted and written."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nmtgrid.data.writing import SplitWriter
from nmtgrid.text.cleaning import REASONS, Cleaned, Cleaner, Row
from nmtgrid.text.workers import chunks, map_ordered

CHUNK = 1000


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
        self, name: str, rows: Iterable[Row], cleaner: Cleaner, cut_every: int | None = None
    ) -> dict[str, dict[str, Any]]:
        """Write the split `name`; return its counts.

        Every `cut_every`-th kept pair goes to the split `valid` instead, whose counts are then
        returned too.
        """
        dropped: Counter[str] = Counter()
        read = kept = 0
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(self._writer(name).open())
            cut = stack.enter_context(self._writer("valid").open()) if cut_every else None
            for part, cleaned in map_ordered(cleaner, chunks(rows, CHUNK), self._workers):
                places: list[list[int]] = [[], []]
                for place, reason in enumerate(cleaned.reasons):
                    if reason:
                        dropped[reason] += 1
                        continue
                    kept += 1
                    places[bool(cut_every and kept % cut_every == 0)].append(place)
                _write(writer, part, cleaned, places[0])
                if cut is not None:
                    _write(cut, part, cleaned, places[1])
                read += len(part)
                self._tell(len(part))
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


def _write(writer: SplitWriter, part: list[Row], cleaned: Cleaned, places: list[int]) -> None:
    writer.write("text", 0, [cleaned.sources[place] for place in places])
    writer.write("text", 1, [cleaned.targets[place] for place in places])
    writer.write("raw", 0, [part[place][0] for place in places])
    writer.write("raw", 1, [part[place][1] for place in places])
    writer.write("truth", 0, [part[place][2] for place in places])


def _counts(read: int, kept: int, dropped: Counter[str]) -> dict[str, Any]:
    return {
        "pairs_read": read,
        "pairs_kept": kept,
        "dropped": {reason: dropped[reason] for reason in REASONS},
    }
