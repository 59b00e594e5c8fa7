"""The Moses tokenizer and detokenizer; the only door to sacremoses.

Departs: sacremoses keeps the full stop of a line's last word when that word looks like an
abbreviation ("in the U.S."); the Perl tokenizer always splits it off, as corpora made with it
show, and so do we.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sacremoses import MosesDetokenizer, MosesTokenizer


class Moses:
    """Tokenises and detokenises lines of one language.

    `tokenize=False` leaves the words as they are (the text is tokenised already). In either case
    the words of the result stand between single ordinary spaces: no other white space or Unicode
    separator is left.
    """

    def __init__(self, lang: str, tokenize: bool = True, lowercase: bool = False) -> None:
        self.lang = lang
        self.tokenizes = tokenize
        self.lowercase = lowercase

    def tokenize(self, line: str) -> str:
        """Return the words of the raw `line` between single spaces, `'` written `&apos;`."""
        if self.tokenizes:
            line = self._tokenizer.tokenize(line, return_str=True)
        if self.lowercase:
            line = line.lower()
        return " ".join(line.split())

    def detokenize(self, text: str) -> str:
        """Return tokenised `text` as people write it; the case is not restored."""
        if not self.tokenizes:
            return " ".join(text.split())
        detokenized: str = self._detokenizer.detokenize(text.split())
        return " ".join(detokenized.split())

    @cached_property
    def _tokenizer(self) -> Any:
        return _PerlTokenizer(self.lang)

    @cached_property
    def _detokenizer(self) -> Any:
        return MosesDetokenizer(self.lang)


class _PerlTokenizer(MosesTokenizer):  # type: ignore[misc]
    """sacremoses with the Perl tokenizer's rule for full stops, and sets made only once."""

    _alphabetic = frozenset(MosesTokenizer.IsAlpha)
    _lower = frozenset(MosesTokenizer.IsLower)

    def __init__(self, lang: str) -> None:
        super().__init__(lang)
        self._numeric = frozenset(self.NUMERIC_ONLY_PREFIXES)
        self._prefixes = frozenset(self.NONBREAKING_PREFIXES) - self._numeric

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        words = text.split()
        last = len(words) - 1
        for place, word in enumerate(words):
            if len(word) > 1 and word[-1] == ".":
                following = words[place + 1] if place < last else ""
                if not self._keeps_stop(word[:-1], following):
                    words[place] = word[:-1] + " ."
        return " ".join(words)

    def _keeps_stop(self, prefix: str, following: str) -> bool:
        """Whether the full stop after `prefix` belongs to it; never at the end of a line."""
        if not following:
            return False
        if "." in prefix and not self._alphabetic.isdisjoint(prefix):
            return True
        if prefix in self._prefixes or following[0] in self._lower:
            return True
        return prefix in self._numeric and following[0] in "0123456789"
