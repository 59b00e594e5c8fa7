"""Sentence pairs laid out for the aligner: pairs of equal shape together, a number for every cell.

A cell is a source word and a target word of one sentence pair; it holds the number of the pair of
words in a table of all pairs of words that occur together. Numbers, not words, are what EM works
on, a block [sentences, target words, source words] at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import InputError

Integers = NDArray[numpy.int32]
Words = Sequence[str]

_CHUNK = 1 << 22
"""Cells that are numbered at a time."""
MOST_CELLS = 1 << 24
"""Cells of one sentence pair: beyond, a line is no sentence."""
_MARKS = ".,;:!?…\"'()[]{}<>«»„“”‚‘’¡¿。，！？、；："


@dataclasses.dataclass(frozen=True)
class Block:
    """Pairs of one shape: their places in the corpus, and the numbers of words and cells."""

    places: list[int]
    source: Integers
    target: Integers
    """[B, n] and [B, m]."""
    cells: Integers
    """[B, m, n]: rows of the table of pairs of words."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Blocks, and the source and target word of each row of the table of pairs of words."""

    blocks: list[Block]
    pair_source: Integers
    pair_target: Integers
    source_types: int
    target_types: int


def lay_out(
    source: Sequence[Words],
    target: Sequence[Words],
    advance: Callable[[int], None] = lambda cells: None,
) -> Corpus:
    """Return the pairs whose sides both have words.

    Words count as one without regard to case, and to marks at their edges. `advance` is told of
    the cells as they are numbered. Raises InputError with the line for a pair of immense lines.
    """
    for line, (one, other) in enumerate(zip(source, target, strict=True), start=1):
        if len(one) * len(other) > MOST_CELLS:
            raise InputError(
                f"line {line} has {len(one):,} source and {len(other):,} target words: too many "
                "for a sentence pair.",
                "Give a sentence a line, or take the line out.",
            )
    source_ids, source_types = _numbered(source)
    target_ids, target_types = _numbered(target)
    blocks: list[Block] = []
    found: list[NDArray[numpy.int64]] = []
    chunks: list[list[Block]] = []
    for places in _batches([*map(len, source)], [*map(len, target)]):
        chunk, keys = [], []
        for members in places:
            x = numpy.stack([source_ids[place] for place in members])
            y = numpy.stack([target_ids[place] for place in members])
            table = x[:, None, :].astype(numpy.int64) * target_types + y[:, :, None]
            keys.append(table.ravel())
            chunk.append(Block(members, x, y, numpy.empty(table.shape, dtype=numpy.int32)))
        unique, rows = numpy.unique(numpy.concatenate(keys), return_inverse=True)
        _fill(chunk, rows.astype(numpy.int32))
        found.append(unique)
        chunks.append(chunk)
        advance(len(rows))
    every = numpy.unique(numpy.concatenate(found)) if found else numpy.empty(0, dtype=numpy.int64)
    for chunk, unique in zip(chunks, found, strict=True):
        rows = numpy.searchsorted(every, unique).astype(numpy.int32)
        for block in chunk:
            block.cells[...] = rows[block.cells]
        blocks += chunk
    return Corpus(
        blocks,
        (every // max(target_types, 1)).astype(numpy.int32),
        (every % max(target_types, 1)).astype(numpy.int32),
        source_types,
        target_types,
    )


def form(word: str) -> str:
    """Return what words that count as one have in common: no case, no marks at the edges."""
    return word.casefold().strip(_MARKS) or word


def _numbered(sentences: Sequence[Words]) -> tuple[list[Integers], int]:
    """Return each sentence as numbers of words, and how many words there are."""
    numbers: dict[str, int] = {}
    forms: dict[str, int] = {}

    def number(word: str) -> int:
        found = forms.get(word)
        if found is None:
            found = forms[word] = numbers.setdefault(form(word), len(numbers))
        return found

    ids = [
        numpy.fromiter(map(number, words), dtype=numpy.int32, count=len(words))
        for words in sentences
    ]
    return ids, len(numbers)


def _batches(source: Sequence[int], target: Sequence[int]) -> list[list[list[int]]]:
    """Return chunks of groups of places of equal shape, the same for the same lengths."""
    kept = [place for place in range(len(source)) if source[place] and target[place]]
    kept.sort(key=lambda place: (target[place], source[place], place))
    chunks: list[list[list[int]]] = []
    room = 0
    for (m, n), group in groupby(kept, key=lambda place: (target[place], source[place])):
        members = list(group)
        while members:
            if room < m * n:
                chunks.append([])
                room = max(_CHUNK, m * n)
            taken, members = members[: room // (m * n)], members[room // (m * n) :]
            chunks[-1].append(taken)
            room -= len(taken) * m * n
    return chunks


def _fill(chunk: Sequence[Block], rows: Integers) -> None:
    start = 0
    for block in chunk:
        stop = start + block.cells.size
        block.cells[...] = rows[start:stop].reshape(block.cells.shape)
        start = stop
