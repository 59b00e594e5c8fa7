"""Tokenised splits to memory-mapped token ids, as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy

from nmtgrid.base.arrays import ArrayFile
from nmtgrid.text.pipeline import Pipeline, Side
from nmtgrid.text.vocabulary import UNKNOWN
from nmtgrid.text.workers import chunks

SIDES = ("source", "target")
CHUNK = 2000
_LARGEST_CACHE = 200_000


class WordEncoder:
    """Tokenised lines to ids; the ids of a word are looked up once."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._known: dict[str, list[int]] = {}

    def encode(self, line: str) -> list[int]:
        """Return the ids of a tokenised line, without special symbols."""
        known = self._known
        ids: list[int] = []
        for word in line.split():
            found = known.get(word)
            if found is None:
                if len(known) >= _LARGEST_CACHE:
                    known.clear()
                found = known[word] = self._side.encode_words([word])
            ids += found
        return ids


class Lengths:
    """Counts of sentence lengths, from which percentiles follow exactly."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    @property
    def total(self) -> int:
        """The sum of all lengths."""
        return sum(length * count for length, count in self.counts.items())

    def percentile(self, percent: float) -> int:
        """Return the least length that at least `percent` of the sentences do not exceed."""
        sentences = sum(self.counts.values())
        seen = 0
        for length in sorted(self.counts):
            seen += self.counts[length]
            if 100 * seen >= percent * sentences:
                return length
        return 0

    def summary(self) -> dict[str, int]:
        """Return the 5th, 50th and 95th percentile and the total, in units, no end symbol."""
        percents = {f"p{percent}": self.percentile(percent) for percent in (5, 50, 95)}
        return {**percents, "total": self.total}


def write_split(
    path: Path,
    pipeline: Pipeline,
    pairs: Iterable[tuple[str, str]],
    report: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write the ids of tokenised `pairs` to `path`; return the facts of the lengths.

    `report` is called with the number of further pairs done. Raises StorageError.
    """
    sides = (pipeline.source, pipeline.target)
    kinds: dict[str, str] = {}
    for name, side in zip(SIDES, sides, strict=True):
        kinds[f"{name}.tokens"] = "U16" if len(side.vocabulary) <= 1 << 16 else "U32"
        kinds[f"{name}.offsets"] = "I64"
    file = ArrayFile(path, kinds)
    try:
        streams = [_Stream(file, name, side) for name, side in zip(SIDES, sides, strict=True)]
        for part in chunks(pairs, CHUNK):
            for place, stream in enumerate(streams):
                stream.extend(pair[place] for pair in part)
            if report is not None:
                report(len(part))
        file.close()
    except BaseException:
        file.discard()
        raise
    facts: dict[str, Any] = {}
    for name, stream in zip(SIDES, streams, strict=True):
        facts[f"{name}_lengths"] = stream.lengths.summary()
        facts[f"{name}_unknown"] = stream.unknown
    return facts


class _Stream:
    """One side of a split on its way into the file."""

    def __init__(self, file: ArrayFile, name: str, side: Side) -> None:
        self._file = file
        self._name = name
        self._encoder = WordEncoder(side)
        self._end = 0
        self.lengths = Lengths()
        self.unknown = 0
        file.append(f"{name}.offsets", numpy.zeros(1, numpy.int64))

    def extend(self, lines: Iterable[str]) -> None:
        ids: list[int] = []
        lengths: list[int] = []
        for line in lines:
            sentence = self._encoder.encode(line)
            ids += sentence
            lengths.append(len(sentence))
        ends = list(accumulate(lengths, initial=self._end))
        self._end = ends[-1]
        tokens = numpy.array(ids, numpy.uint32)
        self._file.append(f"{self._name}.tokens", tokens)
        self._file.append(f"{self._name}.offsets", numpy.array(ends[1:], numpy.int64))
        self.lengths.counts.update(lengths)
        self.unknown += int((tokens == UNKNOWN).sum())
