"""Tokenising pairs of lines, and the filters for training pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from nmtgrid.text.moses import Moses

Row = tuple[str, str, str]
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
class Cleaned:
    """Tokenised pairs, and for each why it is to be dropped (empty: it is kept)."""

    sources: list[str]
    targets: list[str]
    reasons: list[str]


class Cleaner:
    """Tokenises chunks of pairs and says which ones to drop; works in a process of its own."""

    def __init__(self, source: Moses, target: Moses, filters: Filters | None) -> None:
        """Without `filters` every pair is kept."""
        self._source = source
        self._target = target
        self._filters = filters

    def __call__(self, rows: Sequence[Row]) -> Cleaned:
        """Return `rows` tokenised; what is known of the pairs is passed over."""
        sources = [self._source.tokenize(source) for source, _, _ in rows]
        targets = [self._target.tokenize(target) for _, target, _ in rows]
        if self._filters is None:
            return Cleaned(sources, targets, [""] * len(rows))
        reasons = list(map(self._filters.refuse, sources, targets))
        return Cleaned(sources, targets, reasons)
