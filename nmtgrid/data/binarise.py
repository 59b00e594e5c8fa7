"""Binarisation: tokenised splits to memory-mapped token ids, block by block in several processes.

The last stage of `bpe learn` (subwords.py).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from nmtgrid.base.io.arrays import ArrayFile
from nmtgrid.base.io.workers import map_ordered
from nmtgrid.text.pipeline import Pipeline, Side
from nmtgrid.text.shards import Block, read_block, split_file, split_lines
from nmtgrid.text.vocabulary import UNKNOWN

_SIDES = ("source", "target")
_LARGEST_CACHE = 200_000
_LARGEST_BLOCK = 1 << 22
# Bytes of an id in memory; in the file, ids of up to 65,536 types take two.
_WIDTH = 4
_NUMPY = {"U16": "<u2", "U32": "<u4"}

# For each side the subwords of words that are already segmented, such as the frequent ones.
Segmented = Sequence[Mapping[str, Iterable[str]]]


class _WordIds(dict[str, bytes]):
    def __init__(self, side: Side, segmented: Mapping[str, Iterable[str]]) -> None:
        super().__init__(
            {word: _pack(side.vocabulary.encode(units)) for word, units in segmented.items()}
        )
        self._side = side

    def __missing__(self, word: str) -> bytes:
        if len(self) >= _LARGEST_CACHE:
            self.clear()
        ids = self[word] = _pack(self._side.encode_words([word]))
        return ids


def _pack(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def _kind(side: Side) -> str:
    return "U16" if len(side.vocabulary) <= 1 << 16 else "U32"


class _EncodedBlock(NamedTuple):
    """A block of one side: its ids as stored in the file, and the length of each sentence."""

    tokens: bytes
    lengths: bytes
    unknown: int


class _BlockEncoder:
    def __init__(self, sides: tuple[Side, Side], segmented: Segmented) -> None:
        self._sides, self._segmented = sides, segmented
        # Each worker fills it itself, so that only the table of subwords is sent to workers.
        self._ids: list[_WordIds] = []

    def __call__(self, part: tuple[int, Block]) -> _EncodedBlock:
        """Return the ids of a block of side 0 or 1."""
        side, block = part
        if not self._ids:
            self._ids = [_WordIds(*pair) for pair in zip(self._sides, self._segmented, strict=True)]
        word_ids = self._ids[side].__getitem__
        lines = chain.from_iterable(map(split_lines, read_block(block)))
        sentences = [b"".join(map(word_ids, line.split())) for line in lines]
        # Packed ids are joined as bytes, without Python lists of ids (benchmarks/text_scale.py).
        tokens = numpy.frombuffer(b"".join(sentences), numpy.uint32)
        return _EncodedBlock(
            tokens.astype(_NUMPY[_kind(self._sides[side])]).tobytes(),
            _pack([len(sentence) // _WIDTH for sentence in sentences]),
            int((tokens == UNKNOWN).sum()),
        )


class Lengths(Counter[int]):
    """Counts of sentence lengths, for exact percentiles."""

    def summary(self) -> dict[str, int]:
        """Return the 5th, 50th and 95th percentile and the total, in units without end symbols.

        The p-th percentile is the least length that at least p% of the sentences do not exceed.
        """
        values = dict.fromkeys(("p5", "p50", "p95"), 0)
        seen = 0
        for length in sorted(self, reverse=True):
            for percent in (5, 50, 95):
                if 100 * (self.total() - seen) >= percent * self.total():
                    values[f"p{percent}"] = length
            seen += self[length]
        return {**values, "total": sum(length * count for length, count in self.items())}


def write_split(
    path: Path,
    pipeline: Pipeline,
    texts: Sequence[Path | None],
    report: Callable[[int], None] = lambda count: None,
    *,
    segmented: Segmented = ({}, {}),
    workers: int = 1,
) -> dict[str, Any]:
    """Write the ids of the tokenised files `texts` (source, target) to `path`.

    A side without a file (None) is left out. Returns statistics of the lengths and, as `pairs`, the
    number of lines of each file. `report` is called with the number of further pairs done. The file
    does not depend on `workers`. Raises StorageError.
    """
    sides = (pipeline.source, pipeline.target)
    files = {side: text for side, text in enumerate(texts) if text is not None}
    kinds: dict[str, str] = {}
    for side in files:
        kinds |= {f"{_SIDES[side]}.tokens": _kind(sides[side]), f"{_SIDES[side]}.offsets": "I64"}
    parts = [(side, b) for side, text in files.items() for b in split_file(text, _LARGEST_BLOCK)]
    # A process takes about as long to start as to encode a block of text.
    useful = 1 + sum(text.stat().st_size for text in files.values()) // _LARGEST_BLOCK
    with ArrayFile(path, kinds) as file:
        streams = {side: _Stream(file, _SIDES[side]) for side in files}
        encoder = _BlockEncoder(sides, segmented)
        for (side, _), encoded in map_ordered(encoder, parts, min(workers, useful)):
            count = streams[side].append(encoded)
            if side == min(files):
                report(count)
    facts: dict[str, Any] = {"pairs": [stream.count for stream in streams.values()]}
    for side, stream in streams.items():
        facts[f"{_SIDES[side]}_lengths"] = stream.lengths.summary()
        facts[f"{_SIDES[side]}_unknown"] = stream.unknown
    return facts


class _Stream:
    """One side of a split while its blocks are appended to the file."""

    def __init__(self, file: ArrayFile, name: str) -> None:
        self._file, self._name = file, name
        self._end = 0
        self.count = 0
        self.lengths = Lengths()
        self.unknown = 0
        file.append(f"{name}.offsets", numpy.zeros(1, numpy.int64))

    def append(self, encoded: _EncodedBlock) -> int:
        """Append a block; return the number of its sentences."""
        lengths = numpy.frombuffer(encoded.lengths, numpy.uint32)
        ends = self._end + numpy.cumsum(lengths, dtype=numpy.int64)
        self._end += int(lengths.sum())
        kind = _NUMPY[self._file.kinds[f"{self._name}.tokens"]]
        self._file.append(f"{self._name}.tokens", numpy.frombuffer(encoded.tokens, kind))
        self._file.append(f"{self._name}.offsets", ends)
        for length, count in zip(*numpy.unique(lengths, return_counts=True), strict=True):
            self.lengths[int(length)] += int(count)
        self.unknown += encoded.unknown
        self.count += len(lengths)
        return len(lengths)
