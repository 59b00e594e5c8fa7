"""Text that a model does not know, such as text in another language or script."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nmtgrid.text.pipeline import Pipeline

_FEWEST = 5
_MOST_SUBWORDS, _MOST_WORDS = 0.2, 0.6
"""Shares of unknown units. Of Multi30k's test sets 0.4 % of the subwords (3,000 training pairs) and
12 % of the words are unknown; of other German text up to 9 % and 53 %; of English text 31 % and
70 %, of Czech 22 % and 84 %, of another script more than 95 %."""


class UnknownUnits:
    """Counts the source units of an input that a model does not know; warns once of too many.

    Subwords are known in most languages of the same script: of French text in a German model only
    9 % are unknown, and no warning is given.
    """

    def __init__(self, pipeline: Pipeline, warn: Callable[[str], None]) -> None:
        self._vocabulary, self._warn = pipeline.source.vocabulary, warn
        self._language = pipeline.facts.source_lang
        self._most = _MOST_WORDS if pipeline.facts.subwords == "words" else _MOST_SUBWORDS
        self._total = self._unknown = 0
        self._has_warned = False

    def add(self, lines: Iterable[Iterable[str]]) -> None:
        """Count the units of more lines."""
        for units in lines:
            is_known = [unit in self._vocabulary for unit in units]
            self._total += len(is_known)
            self._unknown += is_known.count(False)
        share = self._unknown / max(self._total, 1)
        if not self._has_warned and self._unknown >= _FEWEST and share > self._most:
            self._has_warned = True
            self._warn(
                f"unknown-text: of {self._total:,} source units read {share:.0%} are unknown to "
                f"the model, which translates from `{self._language}`: is the input in that "
                "language and script?"
            )
