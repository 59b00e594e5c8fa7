"""Detection of text that a model does not know, such as text in another language or script."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.vocabulary import UNKNOWN

_FEWEST = 5
_MOST_SUBWORDS, _MOST_WORDS = 0.2, 0.6
"""Shares of unknown units: text in the model's own language, even of another domain (or, for words,
with a small vocabulary), stays below these, and text in another script does not."""


def are_too_many(unknown: int, total: int, subwords: str) -> bool:
    """Return whether so many of a text's units are unknown that it may be in another language."""
    most = _MOST_WORDS if subwords == "words" else _MOST_SUBWORDS
    return unknown >= _FEWEST and unknown > most * total


class UnknownUnits:
    """Counts the source units of an input that a model does not know; warns once of too many.

    Subwords of one script are shared by many languages: a related language, such as French in a
    German model, is not noticed.
    """

    def __init__(self, pipeline: Pipeline, warn: Callable[[str], None]) -> None:
        self._facts, self._warn = pipeline.facts, warn
        self._total = self._unknown = 0
        self._has_warned = False

    def add(self, lines: Iterable[list[int]]) -> None:
        """Count the units of more lines, given as their ids."""
        for ids in lines:
            self._total += len(ids)
            self._unknown += ids.count(UNKNOWN)
        is_strange = are_too_many(self._unknown, self._total, self._facts.subwords)
        if is_strange and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"unknown-text: {100 * self._unknown / self._total:.0f} % of {self._total:,} "
                "source units read are unknown to the model, which translates from "
                f"`{self._facts.source_lang}`: is the input in that language and script?"
            )
