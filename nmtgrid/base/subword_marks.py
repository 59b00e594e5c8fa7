"""Marks of subword units that show where words end: BPE's `@@` and SentencePiece's `▁`.

A BPE unit that does not end its word is followed by `@@`. A SentencePiece piece that begins a word
is preceded by `▁`, so whether a piece ends its word depends on the next one. For units that are
whole words the mark is the empty string.
"""

from __future__ import annotations

from collections.abc import Sequence

JOINER, SPACE = "@@", "▁"


def mark_of(units: Sequence[str]) -> str:
    """Return the mark of a sentence's `units`, such as those of a trace."""
    return SPACE if any(unit.startswith(SPACE) for unit in units) else JOINER


def begins_word(unit: str, mark: str, before: str) -> bool:
    """Return whether `unit` begins a new word after the units `before` it."""
    if mark == SPACE:
        # A `▁` alone belongs to the word after it.
        return unit.startswith(SPACE) and before.strip(SPACE) != ""
    return not (mark and before.endswith(mark))


def word_numbers(units: Sequence[str], mark: str) -> list[int]:
    """Return the number of the word that each unit belongs to, from 0."""
    numbers: list[int] = []
    word, before = 0, ""
    for unit in units:
        if numbers and begins_word(unit, mark, before):
            word, before = word + 1, ""
        numbers.append(word)
        before += unit
    # A `▁` after the last word is not visible as a word.
    if mark == SPACE and word and not before.strip(SPACE):
        numbers = [min(number, word - 1) for number in numbers]
    return numbers


def joined_words(units: Sequence[str], mark: str) -> list[str]:
    """Return the words of the units; an unfinished last word is kept as it is."""
    words: list[str] = []
    for number, unit in zip(word_numbers(units, mark), units, strict=True):
        if number == len(words):
            words.append("")
        words[number] += unit.removeprefix(SPACE) if mark == SPACE else unit.removesuffix(mark)
    return words
