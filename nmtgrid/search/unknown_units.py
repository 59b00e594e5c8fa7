"""Text that a model does not know, such as text in another language or script."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nmtgrid.text.pipeline import Pipeline

_FEWEST = 5
_MOST_SUBWORDS, _MOST_WORDS = 0.2, 0.6
"""Shares of unknown units. Of Multi30k's test sets 0.4 % of the subwords (3,000 training pairs) and
12 % of the words are unknown; of other German text up to 9 % and 53 %; of English text 31 % and
70 %, of Czech 22 % and 84 %, of another script more than 95 %."""


def are_too_many(unknown: int, total: int, subwords: str) -> bool:
    """Return whether so many of a text's units are unknown that it may be in another language."""
    most = _MOST_WORDS if subwords == "words" else _MOST_SUBWORDS
    return unknown >= _FEWEST and unknown > most * total


class UnknownUnits:
    """Counts the source units of an input that a model does not know; warns once of too many.

    Subwords are known in most languages of the same script: of French text in a German model only
    9 % are unknown, and no warning is given.
    """

    def __init__(self, pipeline: Pipeline, warn: Callable[[str], None]) -> None:
        self._vocabulary, self._warn = pipeline.source.vocabulary, warn
        self._facts = pipeline.facts
        self._total = self._unknown = 0
        self._has_warned = False

    def add(self, lines: Iterable[Iterable[str]]) -> None:
        """Count the units of more lines."""
        for units in lines:
            is_known = [unit in self._vocabulary for unit in units]
            self._total += len(is_known)
            self._unknown += is_known.count(False)
        is_strange = are_too_many(self._unknown, self._total, self._facts.subwords)
        if is_strange and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"unknown-text: {100 * self._unknown / self._total:.0f} % of {self._total:,} "
                "source units read are unknown to the model, which translates from "
                f"`{self._facts.source_lang}`: is the input in that language and script?"
            )
