"""One toy sentence pair with the delay that its translation needs, and what follows from that."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True, slots=True)
class ToyPair:
    """A raw source sentence (language qa), its one translation (qb), and its known delays.

    Positions count the words of the Moses-tokenised text, in which each punctuation mark is a
    word of its own (`source_words`, `target_words`). `reads[t]` is the least number of source
    words after which target word t is settled: every sentence of the grammar that starts with
    them has a translation that starts with the target words 0 to t. So `reads` never falls,
    starts at 1 or more and ends with the whole source. `links` are the word alignments
    (target word, source word), from 0, by target word; only a source comma may stay unlinked. A
    comma or the preposition "ad" may be certain, and so be written, before the word it is linked
    to is read; every other word is read before.
    """

    source: str
    target: str
    reads: tuple[int, ...]
    links: tuple[tuple[int, int], ...]

    @property
    def source_words(self) -> list[str]:
        """The source words, as Moses tokenises them."""
        return _WORD.findall(self.source)

    @property
    def target_words(self) -> list[str]:
        """The target words, as Moses tokenises them."""
        return _WORD.findall(self.target)

    @property
    def source_length(self) -> int:
        """The number of source words, punctuation included."""
        return self.reads[-1]

    @property
    def is_reordered(self) -> bool:
        """Whether two of its links cross."""
        highest = -1
        for _, links in groupby(self.links, key=itemgetter(0)):
            sources = [source for _, source in links]
            if min(sources) < highest:
                return True
            highest = max(highest, *sources)
        return False


def average_lagging(path: Sequence[int], source_length: int) -> float:
    """Return the average lagging, in source words, of a path z [|y|] of words read. Eq. (4.48)."""
    rate = source_length / len(path)
    full = (t for t, read in enumerate(path, 1) if read >= source_length)
    last = next(full, len(path))
    return sum(path[t] - rate * t for t in range(last)) / last


def least_average_lagging(pair: ToyPair) -> float:
    """Return the least average lagging, in source words, that never writes a word too early.

    The path `reads` need not be the best one: the measure ends where the source is read, so it
    may pay to read all of it early. Hence the least over every place to do so. Eq. (4.48).
    """
    length, reads = pair.source_length, pair.reads
    paths = (
        (*reads[:place], *[length] * (len(reads) - place))
        for place in range(reads.index(length) + 1)
    )
    return min(average_lagging(path, length) for path in paths)


def smallest_wait_k(pair: ToyPair) -> int:
    """Return the least k for which wait-k, min(k + t - 1, |x|), has read enough for each word."""
    return max(needed - t for t, needed in enumerate(pair.reads))
