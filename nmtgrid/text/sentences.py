"""Sentence boundaries within a line, in tokenised words or in a stream of words.

Used by the search for lines longer than the model's training sources (`search/long_sources.py`),
and by simultaneous translation, which cannot see the next words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nmtgrid.text.moses import Moses, unescape

_UNSPACED_MARKS = "。！？｡"
_MARKS = ".!?…؟।" + _UNSPACED_MARKS
_ATTACHED_MARKS = re.compile(f"[{_MARKS}]+$")
_OPENING = "([{¿¡‘‚„'"
_CLOSING = ")]}”’›）】」』〉》'"
_QUOTES = '"“”„«»'
# These open or close, depending on the language: they close after an odd number of marks.
_EITHER = '"“«»'
_WITHIN_WORD = re.compile(rf"(?<=[{_UNSPACED_MARKS}])(?=[^{re.escape(_MARKS + _CLOSING)}\"])")


def ends_sentence(word: str, moses: Moses) -> bool:
    """Return whether a sentence can end with `word`: a mark, or a word that ends in one.

    A full stop after an abbreviation of the language, an initial or a number does not count.
    """
    text = unescape(word)
    # "Mann.)" and 'Mann."', but not a bracket or a quotation mark alone.
    text = text.rstrip(_CLOSING + _EITHER) or text
    marks = _ATTACHED_MARKS.search(text)
    if marks is None:
        return False
    stem = text[: marks.start()].lstrip(_OPENING + _QUOTES)
    return not stem or marks.group() != "." or not moses.is_abbreviation(stem)


def sentences_of_word(word: str) -> list[str]:
    """Return the sentences in a `word` of text without spaces; any other word is returned whole.

    No sentence ends before a mark that may close a quotation or bracket: `「走。」他说。` is one.
    """
    return _WITHIN_WORD.split(word)


def sentence_ends(words: Sequence[str], moses: Moses) -> list[int]:
    """Return the number of words up to each end of a sentence; the last one is that of all words.

    Closing quotation marks and brackets belong to the sentence before them. In text with capitals
    no sentence begins in lower case: `"Was?" fragte er` is one.
    """
    texts = [unescape(word) for word in words]
    has_capitals = not moses.lowercase and any(text[:1].isupper() for text in texts)
    ends: list[int] = []
    quotes = 0
    is_end = False
    for position, text in enumerate(texts):
        if is_end and not _closes(text, quotes):
            if not (has_capitals and text.lstrip(_OPENING + _QUOTES)[:1].islower()):
                ends.append(position)
            is_end = False
        is_end = is_end or ends_sentence(text, moses)
        quotes += sum(letter in _QUOTES for letter in text)
    return [*ends, len(words)]


def _closes(word: str, quotes: int) -> bool:
    """Return whether a separate word closes a quotation or bracket; `quotes` marks precede it."""
    if not word:
        return False
    if all(letter in _EITHER for letter in word):
        return quotes % 2 == 1
    return all(letter in _CLOSING + _MARKS for letter in word)
