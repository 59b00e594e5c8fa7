"""Word counts in memory that does not grow with the corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nmtgrid.text.bpe import Codes

LARGEST = 4_000_000


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


def count_units(words: Mapping[str, int], codes: Codes | None) -> Mapping[str, int]:
    """Return how often each unit occurs, given the counts of the words."""
    if codes is None:
        return words
    units: Counter[str] = Counter()
    for word, count in words.items():
        for unit in codes.segment((word,)):
            units[unit] += count
    return units
