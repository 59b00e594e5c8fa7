"""Tokenised splits to memory-mapped token ids: block by block, in several processes, in order."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy

from nmtgrid.base.io.arrays import ArrayFile
from nmtgrid.base.io.workers import map_ordered
from nmtgrid.data.captioning.dataset import FOLDER, Pictures, PictureSource
from nmtgrid.text.pipeline import Pipeline, Side
from nmtgrid.text.shards import Block, read_block, split_file, split_lines
from nmtgrid.text.vocabulary import UNKNOWN

SIDES = ("source", "target")
_LARGEST_CACHE = 200_000
_LARGEST_BLOCK = 1 << 22
_WIDTH = 4

Known = Sequence[Mapping[str, Iterable[str]]]
"""For each side the units of words that need not be cut again, such as the frequent ones."""


class WordEncoder(dict[str, bytes]):
    """Tokenised lines to ids; the ids of a word are looked up once."""

    def __init__(self, side: Side, known: Mapping[str, bytes] | None = None) -> None:
        """`known` holds the packed ids of words that need not be cut."""
        super().__init__(known or {})
        self._side = side

    def __missing__(self, word: str) -> bytes:
        if len(self) >= _LARGEST_CACHE:
            self.clear()
        found = self[word] = _packed(self._side.encode_words([word]))
        return found

    def encode_packed(self, line: str) -> bytes:
        """Return the ids of a tokenised line, four bytes each."""
        return b"".join(map(self.__getitem__, line.split()))

    def encode(self, line: str) -> list[int]:
        """Return the ids of a tokenised line, without special symbols."""
        return array("I", self.encode_packed(line)).tolist()


def _packed(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


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


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """A block of one side: its ids as they go into the file, and the length of each sentence."""

    tokens: bytes
    lengths: bytes
    unknown: int


class BlockEncoder:
    """Encodes blocks of tokenised text; works in a process of its own."""

    def __init__(self, pipeline: Pipeline, known: Known) -> None:
        self._sides = (pipeline.source, pipeline.target)
        self._known: list[dict[str, bytes]] = [
            {word: _packed(side.vocabulary.encode(units)) for word, units in words.items()}
            for side, words in zip(self._sides, known, strict=True)
        ]
        self._encoders: list[WordEncoder] = []

    def __call__(self, part: tuple[int, Block]) -> _Encoded:
        """Return the ids of a block of the side with this number."""
        number, block = part
        if not self._encoders:
            pairs = zip(self._sides, self._known, strict=True)
            self._encoders = [WordEncoder(side, known) for side, known in pairs]
        encode = self._encoders[number].encode_packed
        rows = list(map(encode, chain.from_iterable(map(split_lines, read_block(block)))))
        tokens = numpy.frombuffer(b"".join(rows), numpy.uint32)
        kind = _NUMPY[_kind(self._sides[number])]
        return _Encoded(
            tokens.astype(kind).tobytes(),
            array("I", [len(row) // _WIDTH for row in rows]).tobytes(),
            int((tokens == UNKNOWN).sum()),
        )


_NUMPY = {"U16": "<u2", "U32": "<u4"}


def _kind(side: Side) -> str:
    return "U16" if len(side.vocabulary) <= 1 << 16 else "U32"


def write_split(
    path: Path,
    pipeline: Pipeline,
    texts: Sequence[Path | None],
    report: Callable[[int], None] | None = None,
    *,
    known: Known | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Write the ids of the tokenised files `texts` (source, target) to `path`.

    A side without a file (None) is left out. Return the facts of the lengths, and as `pairs` the
    number of lines of each file. `report` is called with the number of further pairs done. The file
    does not depend on `workers`. Raises StorageError.
    """
    sides = (pipeline.source, pipeline.target)
    held = {number: text for number, text in enumerate(texts) if text is not None}
    kinds: dict[str, str] = {}
    for number in held:
        kinds[f"{SIDES[number]}.tokens"] = _kind(sides[number])
        kinds[f"{SIDES[number]}.offsets"] = "I64"
    parts = [
        (number, block)
        for number, text in held.items()
        for block in split_file(text, _LARGEST_BLOCK)
    ]
    # A process takes about as long to begin as to encode a block of text.
    enough = 1 + sum(text.stat().st_size for text in held.values()) // _LARGEST_BLOCK
    file = ArrayFile(path, kinds)
    try:
        streams = {n: _Stream(file, SIDES[n], kinds[f"{SIDES[n]}.tokens"]) for n in held}
        work = BlockEncoder(pipeline, known or ({}, {}))
        for (number, _), encoded in map_ordered(work, parts, min(workers, enough)):
            count = streams[number].append(encoded)
            if report is not None and number == min(held):
                report(count)
        file.close()
    except BaseException:
        file.discard()
        raise
    facts: dict[str, Any] = {"pairs": [stream.count for stream in streams.values()]}
    for number, stream in streams.items():
        facts[f"{SIDES[number]}_lengths"] = stream.lengths.summary()
        facts[f"{SIDES[number]}_unknown"] = stream.unknown
    return facts


def region_facts(folder: Path, name: str, source: PictureSource | None) -> dict[str, Any]:
    """Return the facts of a split's sources where they are pictures, in regions; else none."""
    if source is None:
        return {}
    lengths = Lengths()
    lengths.counts.update(
        Pictures(folder / FOLDER / f"{name}.safetensors", source).regions.tolist()
    )
    return {"source_lengths": lengths.summary(), "source_unknown": 0}


class _Stream:
    """One side of a split on its way into the file."""

    def __init__(self, file: ArrayFile, name: str, kind: str) -> None:
        self._file = file
        self._name = name
        self._kind = _NUMPY[kind]
        self._end = 0
        self.count = 0
        self.lengths = Lengths()
        self.unknown = 0
        file.append(f"{name}.offsets", numpy.zeros(1, numpy.int64))

    def append(self, encoded: _Encoded) -> int:
        """Append a block; return the number of its sentences."""
        lengths = numpy.frombuffer(encoded.lengths, numpy.uint32)
        ends = self._end + numpy.cumsum(lengths, dtype=numpy.int64)
        self._end = int(ends[-1]) if len(ends) else self._end
        self._file.append(f"{self._name}.tokens", numpy.frombuffer(encoded.tokens, self._kind))
        self._file.append(f"{self._name}.offsets", ends)
        for length, count in zip(*numpy.unique(lengths, return_counts=True), strict=True):
            self.lengths.counts[int(length)] += int(count)
        self.unknown += encoded.unknown
        self.count += len(lengths)
        return len(lengths)
