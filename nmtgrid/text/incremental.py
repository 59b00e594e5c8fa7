"""Text while it arrives and while it grows: words as soon as they are whole, raw text from words.

What has been written cannot be taken back, so nothing here ever changes what was said before.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.text import DAMAGED, STANDARD, open_text
from nmtgrid.text.moses import Moses

_BLOCK = 1 << 16
_REPLACEMENT = "\ufffd"
_BYTE_ORDER_MARK = "\ufeff"
# The bytes that are no UTF-8, as `surrogateescape` shows them, and what no text has.
_NO_TEXT = re.compile("[\udc80-\udcff\0]")
_MOST_HELD = 32
"""Words that are detokenised anew with each further one."""
_HYPHEN = "@-@"
_QUOTATION_MARKS = re.compile("(?:['\"`„“]|&apos;|&quot;)+")


def stream_words(path: str | Path, warn: Callable[[str], None]) -> Iterator[str | None]:
    """Yield each word as soon as the white space behind it has come, and None at each line's end.

    Nothing is waited for but the next bytes. What is no UTF-8, and NUL, becomes U+FFFD; `warn` is
    told once for each such line, and when the input ends in the middle of a word or a character.
    Raises InputError for a file that cannot be read and a damaged archive.
    """
    reader = _Words("standard input" if str(path) == STANDARD else str(path), warn)
    with open_text(path) as file:
        while True:
            try:
                raw = cast(io.BufferedReader, file).read1(_BLOCK)
            except DAMAGED as fault:
                raise InputError(
                    f"the compressed file is damaged ({fault}).",
                    "Fetch or make it again.", path=path, line=reader.line,
                ) from fault  # fmt: skip
            except OSError as fault:
                raise InputError(
                    f"cannot be read: {fault.strerror or fault}.", path=path, line=reader.line
                ) from fault
            if not raw:
                break
            yield from reader.feed(raw)
    yield from reader.end()


class _Words:
    """Cuts bytes into characters, words and lines; keeps what may go on."""

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        self.line = 1
        self._name, self._warn = name, warn
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""
        self._line_is_open = self._is_told = False
        self._is_first = True

    def feed(self, raw: bytes) -> Iterator[str | None]:
        """Yield the words and lines that `raw` makes whole."""
        text = self._decoder.decode(raw)
        if self._is_first and text:
            text = text.lstrip(_BYTE_ORDER_MARK)
            self._is_first = not text
        *lines, rest = text.split("\n")
        for line in lines:
            yield from self._whole(line)
            yield None
            self.line += 1
            self._is_told = False
        # Half a character opens a line too.
        self._line_is_open = not lines or bool(rest or self._decoder.getstate()[0])
        yield from self._words(rest)

    def end(self) -> Iterator[str | None]:
        """Yield what a stream that has ended still holds."""
        if not self._line_is_open:
            return
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._is_told = True
            self._tell("the input ends in the middle of a character, which becomes U+FFFD")
        elif self._held:
            self._tell("the input ends without a line's end: its last word may not be whole")
        yield from self._whole(rest)
        yield None

    def _whole(self, text: str) -> Iterator[str]:
        words, self._held = (self._held + self._mended(text)).split(), ""
        yield from words

    def _words(self, text: str) -> Iterator[str]:
        whole = self._held + self._mended(text)
        words, self._held = whole.split(), ""
        if words and not whole[-1].isspace():
            self._held = words.pop()
        yield from words

    def _mended(self, text: str) -> str:
        mended, count = _NO_TEXT.subn(_REPLACEMENT, text)
        if count and not self._is_told:
            self._is_told = True
            self._tell("some bytes are no UTF-8 text; each becomes U+FFFD")
        return mended

    def _tell(self, what: str) -> None:
        self._warn(f"{self._name}, line {self.line}: {what}.")


class IncrementalDetokenizer:
    """Raw text made of tokenised words that come one by one.

    Each word brings what it adds to the detokenised words before it: closing punctuation without
    a space, and so on. Where the detokeniser would change what has been said, the word stands
    apart, as in tokenised text; what follows is detokenised as if it began there.
    """

    def __init__(self, moses: Moses) -> None:
        self._moses = moses
        self._words: list[str] = []
        self._shown = ""
        self._quotes: dict[str, None] = {}
        self.text = ""

    def add(self, word: str) -> str:
        """Return what `word` adds to the text."""
        self._words.append(word)
        text = self._moses.detokenize(" ".join(self._words))
        if text.startswith(self._shown):
            more = text[len(self._shown) :]
        else:
            self._words = [word]
            text = self._moses.detokenize(word)
            more = f" {text}"
            self._quotes.clear()
        self._shown = text
        self.text += more
        if _QUOTATION_MARKS.fullmatch(word):
            self._quotes[word] = None
        if len(self._words) > _MOST_HELD:
            self._forget()
        return more

    def _forget(self) -> None:
        """Drop the words before the last one that is no mark: they have no say in what follows.

        Of quotations that they leave open a stand-in is kept.
        """
        for place in range(len(self._words) - 1, 0, -1):
            before, word = self._words[place - 1 : place + 1]
            if word[0].isalnum() and before != _HYPHEN:
                break
        else:
            return
        dropped, held = self._words[:place], list[str]()
        for quote in self._quotes:
            if self._is_open(dropped, quote) != self._is_open(held, quote):
                held += [quote, "x"]
        self._words = [*held, *self._words[place:]]
        self._shown = self._moses.detokenize(" ".join(self._words))

    def _is_open(self, words: list[str], quote: str) -> bool:
        """Whether `quote` after `words` would end a quotation, and so be followed by a space."""
        return self._moses.detokenize(" ".join([*words, "x", quote, "x"])).endswith(" x")


class IncrementalWords:
    """Raw words made of tokenised ones that come one by one, each as soon as it is whole.

    What comes next may belong to a word (a full stop, `'s`), so a word is whole when the next one
    begins, or the text ends.
    """

    def __init__(self, moses: Moses) -> None:
        self._text = IncrementalDetokenizer(moses)
        self._held = ""

    def add(self, word: str) -> list[str]:
        """Return the raw words that are whole now that the tokenised `word` has come."""
        *whole, self._held = (self._held + self._text.add(word)).split(" ")
        return [one for one in whole if one]

    def end(self) -> list[str]:
        """Return the last raw word, if there is one; the text has ended."""
        held, self._held = self._held, ""
        return [held] if held else []
