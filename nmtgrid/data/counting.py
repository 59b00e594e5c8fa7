"""Word counts in memory that does not grow with the corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from nmtgrid.base.io.workers import chunks, map_ordered
from nmtgrid.text.bpe import Codes
from nmtgrid.text.shards import Block, lines_of, read_block

LARGEST = 4_000_000
CHUNK = 4000
"""Distinct words that are cut at once."""


class Counted(NamedTuple):
    """The counts of a block of text."""

    counts: Counter[str]
    words: int
    lines: int


def count_block(block: Block) -> Counted:
    """Return how often each word occurs in a block of tokenised text."""
    counts: Counter[str] = Counter()
    total = lines = 0
    for text in read_block(block):
        words = text.split()
        counts.update(words)
        total += len(words)
        lines += len(lines_of(text))
    return Counted(counts, total, lines)


class WordCounts:
    """Counts words; at most `largest` distinct ones are kept.

    Where there are more, the rarest are forgotten, which `forgotten` counts: this touches only
    words far too rare to matter for merges or vocabularies of usual sizes.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self.counts: Counter[str] = Counter()
        self.words = 0
        self.forgotten = 0
        self._largest = largest

    def add(self, lines: Iterable[str]) -> None:
        """Count the words of tokenised `lines`."""
        for line in lines:
            words = line.split()
            self.words += len(words)
            self.counts.update(words)
        self._forget_rare()

    def merge(self, counted: Counted) -> None:
        """Add the counts of a block."""
        self.words += counted.words
        self.counts.update(counted.counts)
        self._forget_rare()

    def _forget_rare(self) -> None:
        if len(self.counts) > self._largest:
            self._forget()

    def _forget(self) -> None:
        """Forget the rarest words until half of the room is free."""
        floor = 0
        while len(self.counts) > self._largest // 2:
            floor += 1
            rare = [word for word, count in self.counts.items() if count <= floor]
            for word in rare:
                del self.counts[word]
            self.forgotten += len(rare)


def merge_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of two counts."""
    merged = Counter(first)
    merged.update(second)
    return merged


def most_frequent(counts: Mapping[str, int], largest: int) -> dict[str, int]:
    """Return the `largest` most frequent words with their counts, in the order of `counts`."""
    if len(counts) <= largest:
        return dict(counts)
    floor = sorted(counts.values(), reverse=True)[largest - 1]
    above = sum(count > floor for count in counts.values())
    room = largest - above
    kept: dict[str, int] = {}
    for word, count in counts.items():
        if count > floor or (count == floor and room > 0):
            room -= count == floor
            kept[word] = count
    return kept


def count_units(
    words: Mapping[str, int],
    codes: Codes | None,
    workers: int = 1,
    kept: dict[str, str] | None = None,
    report: Callable[[int], None] | None = None,
) -> Mapping[str, int]:
    """Return how often each unit occurs, given the counts of the words.

    The units of the words in `kept` are put into it, between spaces. `report` is called with the
    number of further words done.
    """
    if codes is None:
        for word in kept or {}:
            cast(dict[str, str], kept)[word] = word
        return words
    units: Counter[str] = Counter()
    parts = chunks(words, CHUNK)
    # A process takes about as long to begin as to cut some chunks.
    enough = 1 + len(words) // (5 * CHUNK)
    for part, cut in map_ordered(_Cutter(codes), parts, min(workers, enough)):
        for word, text in zip(part, cut, strict=True):
            count = words[word]
            for unit in text.split(" "):
                units[unit] += count
            if kept is not None and word in kept:
                kept[word] = text
        if report is not None:
            report(len(part))
    return units


class _Cutter:
    """Cuts words into units; works in a process of its own."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def __call__(self, words: Sequence[str]) -> list[str]:
        return [" ".join(self._codes.segment((word,))) for word in words]
