"""Incremental text for simultaneous translation: whole words from a stream, raw text from words.

Used by `decode --stream` and the SimulEval agent. Output that has been written cannot be revised,
so nothing here ever changes earlier output.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.text import (
    DAMAGED,
    LONGEST_LINE,
    STANDARD,
    line_ends_error,
    open_text,
    read_error,
)
from nmtgrid.base.subword_marks import SPACE
from nmtgrid.text.moses import Moses, is_invisible

_BLOCK = 1 << 16
# Maximum characters of a word of a stream, whose end may never come.
_LONGEST_WORD = 1 << 22
_REPLACEMENT = "\ufffd"
_BYTE_ORDER_MARK = "\ufeff"
# A stream is not text if invalid characters exceed both this number and this share of recent ones.
_MOST_DAMAGED, _DAMAGED_SHARE = 1000, 0.25
# Bytes that are not UTF-8, as decoded by `surrogateescape`, and NUL, which does not occur in text.
_NO_TEXT = re.compile("[\udc80-\udcff\0]")
# Maximum number of words that are detokenised again with each new one.
_LONGEST_CONTEXT = 32
_HYPHEN = "@-@"
_QUOTATION_MARKS = re.compile("(?:['\"`„“]|&apos;|&quot;)+")


def stream_words(path: str | Path, warn: Callable[[str], None]) -> Iterator[str | None]:
    """Yield each word as soon as the white space after it is read, and None at each line's end.

    Bytes are read as they arrive. Invalid UTF-8 and NUL become U+FFFD; `warn` is called at the
    first such line, at the end with the number of such lines, and if the input ends in the middle
    of a word or a character. Raises InputError for a file that cannot be read, a damaged archive,
    and input that is not text: too many such characters, an endless word or line.
    """
    splitter = _WordSplitter("standard input" if str(path) == STANDARD else str(path), warn)
    with open_text(path) as file:
        while True:
            try:
                # `read1` returns what has arrived; `read` would wait for a whole block.
                raw = cast(io.BufferedReader, file).read1(_BLOCK)
            except (*DAMAGED, OSError) as fault:
                raise read_error(path, fault, splitter.line) from fault
            if not raw:
                break
            yield from splitter.feed(raw)
    yield from splitter.end()


class _WordSplitter:
    """Splits bytes into lines and words; keeps the last word until it is complete."""

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        self.line = 1
        self._name, self._warn = name, warn
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._word = ""
        # Of the current line, and of the recent text.
        self._line_length = self._characters = self._damaged = 0
        self._line_is_open = self._line_is_damaged = False
        self._damaged_lines = 0
        self._is_first = True
        # Of the first line: whether text follows a carriage return, and whether one is last.
        self._goes_on = self._has_returned = False

    def feed(self, raw: bytes) -> Iterator[str | None]:
        """Yield the words and line ends that `raw` completes."""
        text = self._decoder.decode(raw)
        if self._is_first and text:
            # The bytes of the mark can arrive one by one: it is in the first text that decodes.
            text = text.lstrip(_BYTE_ORDER_MARK)
            self._is_first = not text
        if self.line == 1:
            first = "\r" * self._has_returned + text
            self._goes_on |= "\r" in first.rstrip("\r")
            self._has_returned = first.endswith("\r")
        *lines, rest = text.split("\n")
        for line in lines:
            yield from self._split(line, line_ends=True)
            yield None
            self.line += 1
            self._line_length = 0
            self._line_is_damaged = False
        # A partial character opens a line too.
        self._line_is_open = not lines or bool(rest or self._decoder.getstate()[0])
        yield from self._split(rest, line_ends=False)

    def end(self) -> Iterator[str | None]:
        """Yield the last word and line end of a stream that ended without one.

        Raises InputError if all lines of the stream ended in carriage returns only.
        """
        if self.line == 1 and self._goes_on:
            raise line_ends_error(self._name)
        if self._damaged_lines > 1:
            self._warn(f"{self._name}: {self._damaged_lines:,} lines are not valid UTF-8 text.")
        if not self._line_is_open:
            return
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._warn_of_line("the input ends in the middle of a character, which becomes U+FFFD.")
        elif self._word:
            self._warn_of_line(
                "the input ends without a line's end: its last word may not be whole."
            )
        self._line_is_damaged = True  # `rest` has been reported already
        yield from self._split(rest, line_ends=True)
        yield None

    def _split(self, text: str, *, line_ends: bool) -> list[str]:
        what = "NUL bytes are not text" if "\0" in text else "some bytes are not valid UTF-8"
        text, count = _NO_TEXT.subn(_REPLACEMENT, text)
        if count and not self._line_is_damaged:
            self._line_is_damaged = True
            self._damaged_lines += 1
            if self._damaged_lines == 1:
                self._warn_of_line(
                    f"{what}; each becomes U+FFFD. If the text is UTF-16 or Latin-1, convert it to "
                    "UTF-8. No further line is reported."
                )
        self._check(len(text), count)
        text = self._word + text
        words, self._word = text.split(), ""
        if words and not line_ends and not text[-1].isspace():
            self._word = words.pop()
        return [word for word in words if not is_invisible(word)]

    def _check(self, length: int, damaged: int) -> None:
        """Raise InputError if, with these further characters, the input cannot be text."""
        self._characters += length
        self._damaged += damaged
        self._line_length += length
        problem = ""
        if self._damaged > max(_MOST_DAMAGED, _DAMAGED_SHARE * self._characters):
            counts = f"{self._damaged:,} of the last {self._characters:,}"
            problem = f"{counts} characters are not valid UTF-8 text"
        elif len(self._word) > _LONGEST_WORD:
            problem = f"a word has more than {_LONGEST_WORD:,} characters"
        elif self._line_length > LONGEST_LINE:
            problem = f"the line has more than {LONGEST_LINE:,} characters"
        if problem:
            raise InputError(
                f"{problem}.",
                "Is this text? Convert it to UTF-8, with spaces between words and one sentence per "
                "line.",
                path=self._name,
                line=self.line,
            )
        # Older characters count less and less.
        if self._characters > _BLOCK:
            self._characters //= 2
            self._damaged //= 2

    def _warn_of_line(self, message: str) -> None:
        self._warn(f"{self._name}, line {self.line}: {message}")


class IncrementalDetokenizer:
    """Detokenises words that arrive one by one.

    Each word adds the difference from the detokenised text before it: closing punctuation without
    a space, and so on. If the detokeniser would change earlier output, the word is appended after
    a space, as in tokenised text; the next words are detokenised as if the text began there.
    """

    def __init__(self, moses: Moses) -> None:
        self._moses = moses
        self._words: list[str] = []
        self._shown = ""
        # A dict used as an ordered set: the order decides how a substitute begins.
        self._quotes: dict[str, None] = {}
        self.text = ""

    def add(self, word: str) -> str:
        """Return what `word` adds to the text."""
        self._words.append(word)
        text = self._moses.detokenize(" ".join(self._words))
        if text.startswith(self._shown):
            addition = text[len(self._shown) :]
        else:
            self._words = [word]
            text = self._moses.detokenize(word)
            addition = f" {text}"
            self._quotes.clear()
        self._shown = text
        self.text += addition
        if _QUOTATION_MARKS.fullmatch(word):
            self._quotes[word] = None
        if len(self._words) > _LONGEST_CONTEXT:
            self._drop_context()
        return addition

    def _drop_context(self) -> None:
        """Drop the words before the last one that is not a mark: later words do not need them.

        Only the quotations that they leave open matter: a substitute for each is kept.
        """
        for start in range(len(self._words) - 1, 0, -1):
            before, word = self._words[start - 1 : start + 1]
            if word[0].isalnum() and before != _HYPHEN:
                break
        else:
            return
        dropped, substitute = self._words[:start], list[str]()
        for quote in self._quotes:
            if self._is_open(dropped, quote) != self._is_open(substitute, quote):
                substitute += [quote, "x"]
        self._words = [*substitute, *self._words[start:]]
        self._shown = self._moses.detokenize(" ".join(self._words))

    def _is_open(self, words: list[str], quote: str) -> bool:
        """Return whether `quote` after `words` would end a quotation: a space would follow it."""
        return self._moses.detokenize(" ".join([*words, "x", quote, "x"])).endswith(" x")


class IncrementalPieces:
    """Joins SentencePiece pieces that arrive one by one, in any script."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, piece: str) -> str:
        """Return what `piece` adds to the text."""
        addition = piece.replace(SPACE, " ")
        # The text does not begin with a space, and has no second one after a space.
        if not self.text or self.text.endswith(" "):
            addition = addition.lstrip(" ")
        self.text += addition
        return addition


class IncrementalWords:
    """Joins tokenised words that arrive one by one into raw words, each once it is complete.

    The next token may belong to a word (a full stop, `'s`), so a word is complete when the next
    one begins or the text ends.
    """

    def __init__(self, moses: Moses) -> None:
        self._text = IncrementalDetokenizer(moses)
        self._word = ""

    def add(self, word: str) -> list[str]:
        """Return the raw words that are complete after the tokenised `word`."""
        *whole, self._word = (self._word + self._text.add(word)).split(" ")
        return [word for word in whole if word]

    def end(self) -> list[str]:
        """Return the last raw word, if there is one, at the end of the text."""
        word, self._word = self._word, ""
        return [word] if word else []
