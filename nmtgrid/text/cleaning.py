"""Tokenising parts of parallel text, and the filters for training pairs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from itertools import compress

from nmtgrid.text.moses import Moses
from nmtgrid.text.shards import LineShard, join_lines

RawPair = tuple[str, str, str]
"""A raw source line, its target line, and what else is known of the pair (often nothing)."""

REASONS = ("empty", "too_long", "ratio", "long_word")
"""Why a training pair is dropped, in the order in which it is asked."""

LONGEST_WORD = 1000
"""Moses' clean-corpus-n drops pairs with longer words (in characters), and so do we."""


@dataclasses.dataclass(frozen=True)
class Filters:
    """What a training pair must fulfil, counted in tokenised words."""

    max_words: int = 175
    max_ratio: float = 1.5

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        found = []
        if self.max_words < 1:
            found.append(f"`--max-words` must be at least 1, but is {self.max_words}.")
        if not 1 <= self.max_ratio < math.inf:
            found.append(f"`--max-ratio` must be a number from 1 on, but is {self.max_ratio}.")
        return found

    def refuse(self, source: str, target: str) -> str:
        """Return why this tokenised pair is dropped, or an empty text for a good one."""
        source_words, target_words = source.split(), target.split()
        shorter, longer = sorted((len(source_words), len(target_words)))
        if shorter == 0:
            return "empty"
        if longer > self.max_words:
            return "too_long"
        if longer / shorter > self.max_ratio:
            return "ratio"
        if max(map(len, source_words + target_words)) > LONGEST_WORD:
            return "long_word"
        return ""


@dataclasses.dataclass(frozen=True)
class PairShard:
    """Some pairs: source and target lines, as many of each, and what is known of each pair."""

    source: LineShard
    target: LineShard
    truth: list[str] = dataclasses.field(default_factory=list)


def to_shards(rows: Iterable[list[RawPair]]) -> Iterable[PairShard]:
    """Yield parts of rows that have been read already."""
    for some in rows:
        sources, targets, truth = zip(*some, strict=True)
        yield PairShard(LineShard(join_lines(sources)), LineShard(join_lines(targets)), list(truth))


@dataclasses.dataclass(frozen=True)
class CleanedShard:
    """What is kept of a part, as blocks of lines: `text` tokenised, `raw` as it was read.

    Each has the source and the target; `raw` is empty unless asked for. `truth` is what is known
    of the kept pairs.
    """

    read: int
    kept: int
    text: tuple[bytes, bytes]
    raw: tuple[bytes, bytes]
    truth: bytes
    dropped: Counter[str]
    notes: tuple[Counter[str], Counter[str]]


class Cleaner:
    """Tokenises parts and drops what the filters refuse; works in a process of its own."""

    def __init__(
        self, source: Moses, target: Moses, filters: Filters | None, *, raw: bool = True
    ) -> None:
        """Without `filters` every pair is kept; `raw`: the raw lines are wanted too."""
        self._source = source
        self._target = target
        self._filters = filters
        self._raw = raw

    def __call__(self, part: PairShard) -> CleanedShard:
        """Return what is kept of `part`. Raises InputError for what is no text."""
        notes: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        raws = part.source.read(notes[0]), part.target.read(notes[1])
        texts = (
            list(map(self._source.tokenize, raws[0])),
            list(map(self._target.tokenize, raws[1])),
        )
        read = len(raws[0])
        dropped: Counter[str] = Counter()
        truth = part.truth
        if self._filters is not None:
            reasons = list(map(self._filters.refuse, *texts))
            dropped.update(filter(None, reasons))
            if dropped:
                keep = [not reason for reason in reasons]
                texts = _only(texts[0], keep), _only(texts[1], keep)
                raws = _only(raws[0], keep), _only(raws[1], keep)
                truth = _only(truth, keep)
        held = (join_lines(raws[0]), join_lines(raws[1])) if self._raw else (b"", b"")
        text = (join_lines(texts[0]), join_lines(texts[1]))
        return CleanedShard(read, len(texts[0]), text, held, join_lines(truth), dropped, notes)


def _only(lines: list[str], keep: list[bool]) -> list[str]:
    return list(compress(lines, keep))
