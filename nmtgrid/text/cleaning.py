"""Tokenisation of parallel text in shards, and the length filters for training pairs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress

from nmtgrid.text.moses import Moses
from nmtgrid.text.scripts import count_unspaced, estimated_words
from nmtgrid.text.shards import LineShard, join_lines

# A raw source line, its target line, and the known truth about the pair (often empty).
RawPair = tuple[str, str, str]

# Why a training pair is dropped, in the order of the checks.
REASONS = ("empty", "too_long", "ratio", "long_word")

# Pairs with longer words (in characters) are dropped, as by Moses' clean-corpus-n.
_LONGEST_WORD = 1000


@dataclasses.dataclass(frozen=True)
class Filters:
    """Limits of a training pair, counted in tokenised words.

    In text without spaces between words their number is estimated.
    """

    max_words: int = 175
    max_ratio: float = 1.5

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        faults = []
        if self.max_words < 1:
            faults.append(f"`--max-words` must be at least 1, but is {self.max_words}.")
        if not 1 <= self.max_ratio < math.inf:
            faults.append(f"`--max-ratio` must be a number from 1 on, but is {self.max_ratio}.")
        return faults

    def refuse(self, source: str, target: str) -> str:
        """Return the reason to drop this tokenised pair, or "" to keep it."""
        source_words, target_words = source.split(), target.split()
        shorter, longer = sorted(map(estimated_words, (source_words, target_words)))
        if shorter == 0:
            return "empty"
        if longer > self.max_words:
            return "too_long"
        if longer / shorter > self.max_ratio:
            return "ratio"
        # Last, because it looks at every word.
        if max(map(len, source_words + target_words)) > _LONGEST_WORD:
            return "long_word"
        return ""


@dataclasses.dataclass(frozen=True)
class PairShard:
    """Equally many source and target lines, and the known truth about each pair, if any."""

    source: LineShard
    target: LineShard
    truth: list[str] = dataclasses.field(default_factory=list)


def to_shards(chunks: Iterable[list[RawPair]]) -> Iterator[PairShard]:
    """Yield shards of pairs that are already in memory."""
    for pairs in chunks:
        sources, targets, truth = zip(*pairs, strict=True)
        yield PairShard(LineShard(join_lines(sources)), LineShard(join_lines(targets)), list(truth))


@dataclasses.dataclass(frozen=True)
class CleanedShard:
    """The kept pairs of a shard, as bytes of lines: `text` tokenised, `raw` as it was read.

    Both are (source, target); `raw` may be left out (empty). `truth` is that of the kept pairs.
    """

    pairs_read: int
    pairs_kept: int
    text: tuple[bytes, bytes]
    raw: tuple[bytes, bytes]
    truth: bytes
    dropped: Counter[str]
    notes: tuple[Counter[str], Counter[str]]
    scripts: tuple[Counter[str], Counter[str]]
    """Counts of lines in scripts without spaces, of all lines read: see `count_unspaced`."""


@dataclasses.dataclass(frozen=True)
class Cleaner:
    """Tokenises shards and filters their pairs (None: no filters), in a worker process."""

    source: Moses
    target: Moses
    filters: Filters | None
    raw: bool = True
    """Whether to return the raw lines too."""

    def __call__(self, shard: PairShard) -> CleanedShard:
        """Return the kept pairs of `shard`. Raises InputError for invalid text."""
        notes: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        raw_sources, raw_targets = shard.source.read(notes[0]), shard.target.read(notes[1])
        sources = list(map(self.source.tokenize, raw_sources))
        targets = list(map(self.target.tokenize, raw_targets))
        scripts = count_unspaced(raw_sources), count_unspaced(raw_targets)
        columns = [sources, targets, raw_sources, raw_targets, shard.truth]
        dropped: Counter[str] = Counter()
        if self.filters is not None:
            reasons = list(map(self.filters.refuse, sources, targets))
            dropped.update(filter(None, reasons))
            if dropped:
                is_kept = [not reason for reason in reasons]
                columns = [list(compress(lines, is_kept)) for lines in columns]
        if not self.raw:
            # Raw training text is not kept, so the workers need not send it back.
            columns[2:4] = [], []
        source, target, raw_source, raw_target, truth = map(join_lines, columns)
        return CleanedShard(
            pairs_read=len(raw_sources),
            pairs_kept=len(columns[0]),
            text=(source, target),
            raw=(raw_source, raw_target),
            truth=truth,
            dropped=dropped,
            notes=notes,
            scripts=scripts,
        )
