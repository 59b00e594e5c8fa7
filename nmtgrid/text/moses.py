"""The Moses tokenizer and detokenizer; the only module that imports sacremoses.

Departs: sacremoses keeps the full stop of a line's last word when that word looks like an
abbreviation ("in the U.S."). The Perl tokenizer always splits it off, as corpora tokenised with it
show, and so does this one. Both detokenizers leave a space before Arabic and Devanagari
punctuation; this one does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

from sacremoses import MosesDetokenizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

_LARGEST_CACHE = 200_000
# In characters: longer words are rare, and many of them would fill the memory.
_LONGEST_CACHED = 60
_JUNK = re.compile(r"[\0-\x1f]")
_DIGITS = "0123456789"
# Spaces and the characters of Unicode's category Cf, which are invisible by themselves.
_INVISIBLE = re.compile(
    "[\\s\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]*"
)
# The Perl tokenizer's escapes of characters with a meaning for the Moses decoder; `&` comes first.
_ESCAPES = (
    ("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"),
    ('"', "&quot;"), ("[", "&#91;"), ("]", "&#93;"),
)  # fmt: skip
# The Perl detokenizer joins these three words; sacremoses tries to, but raises TypeError.
_CZECH_DASH = re.compile(r"(\w(?:'|&apos;)) ([-–]) (?=li(?: |$)|mail)", re.IGNORECASE)
# The Perl detokenizer joins a decimal number; sacremoses tries to, but looks at the end of the line
# instead: if that is a number and a mark, it joins each number of the line to the word before it.
_CZECH_NUMBER = re.compile(r"(?<!\S)([0-9]+) ([.,]) (?=[0-9]+(?!\S))")
# Arabic and Devanagari commas, semicolons, question marks and full stops, each after a space.
_FOREIGN_MARKS = re.compile("(?<=\\S) ([،؛؟۔।॥]+)(?!\\S)")
TURKIC = frozenset(["tr", "az", "tur", "aze"])
"""Languages in which upper-case i has a dot, and lower-case I has none."""
_ESCAPED = re.compile("|".join(re.escape(code) for _, code in _ESCAPES))


def unescape(text: str) -> str:
    """Return `text` without the tokenizer's escapes."""
    for character, escape in reversed(_ESCAPES):
        text = text.replace(escape, character)
    return text


def has_rules(lang: str) -> bool:
    """Return whether Moses has abbreviations for a language; for others it uses the English."""
    return lang in NonbreakingPrefixes().available_langs.values()


def count_escaped(lines: Iterable[str]) -> int:
    """Return how many of the `lines` contain an escape of the tokenizer, such as `&apos;`."""
    return sum(_ESCAPED.search(line) is not None for line in lines)


def is_invisible(text: str) -> bool:
    """Return whether `text` consists of spaces and zero-width characters only."""
    return _INVISIBLE.fullmatch(text) is not None


class Moses:
    """Tokenises and detokenises lines of one language.

    `tokenize=False` leaves the words as they are (the text is tokenised already). In either case
    the words of the result are separated by single ordinary spaces, without any other white space
    or Unicode separator.
    """

    def __init__(
        self, lang: str, tokenize: bool = True, lowercase: bool = False, turkic_case: bool = False
    ) -> None:
        """`turkic_case`: lower-casing maps I to ı and İ to i if `lang` is one of `TURKIC`."""
        self.lang = lang
        self._is_turkic = turkic_case and lang in TURKIC
        self.tokenizes = tokenize
        self.lowercase = lowercase

    def tokenize(self, line: str) -> str:
        """Return the words of the raw `line`, separated by single spaces, with `'` as `&apos;`.

        An invisible line, such as one of zero-width spaces, has no words.
        """
        if is_invisible(line):
            return ""
        text = self._tokenizer.tokenize_line(line) if self.tokenizes else " ".join(line.split())
        return self.lower(text) if self.lowercase else text

    def lower(self, text: str) -> str:
        """Return `text` in lower case."""
        if self._is_turkic:
            text = text.replace("İ", "i").replace("I", "ı")
        return text.lower()

    def detokenize(self, text: str) -> str:
        """Return tokenised `text` as people write it; the case is not restored."""
        if not self.tokenizes:
            return " ".join(text.split())
        words = _FOREIGN_MARKS.sub(r"\1", " ".join(text.split()))
        if self.lang == "cs":
            # With a final word that is not a mark sacremoses sees no number at the end.
            words = _CZECH_NUMBER.sub(r"\1\2", _CZECH_DASH.sub(r"\1\2", words)) + " x"
        detokenized: str = self._detokenizer.detokenize(words.split())
        if self.lang == "cs":
            detokenized = detokenized.removesuffix("x")
        return " ".join(detokenized.split())

    def is_abbreviation(self, stem: str) -> bool:
        """Return whether a full stop belongs to `stem`: "Dr", "z.B", an initial, a number."""
        if len(stem) == 1 or stem.isdigit() or ("." in stem and any(map(str.isalpha, stem))):
            return True
        return (self.lower(stem) if self.lowercase else stem) in self._abbreviations

    @cached_property
    def _abbreviations(self) -> frozenset[str]:
        prefixes = {*self._tokenizer.NONBREAKING_PREFIXES, *self._tokenizer.NUMERIC_ONLY_PREFIXES}
        return frozenset(map(self.lower, prefixes) if self.lowercase else prefixes)

    @cached_property
    def _tokenizer(self) -> _PerlTokenizer:
        return _PerlTokenizer(self.lang)

    @cached_property
    def _detokenizer(self) -> Any:
        return MosesDetokenizer(self.lang)


class _WithStop(NamedTuple):
    """The tokens of a word that ends in a full stop; the next word decides if it is split off.

    `text` keeps the full stop on its last token, `stem` is that token without it, `split` has the
    full stop as a separate token.
    """

    text: str
    stem: str
    split: str


class _Cache(dict[str, "str | _WithStop | None"]):
    def __init__(self, tokenize: Callable[[str], str | _WithStop | None]) -> None:
        super().__init__()
        self._tokenize = tokenize

    def __missing__(self, word: str) -> str | _WithStop | None:
        tokens = self._tokenize(word)
        if len(word) <= _LONGEST_CACHED:
            if len(self) >= _LARGEST_CACHE:
                self.clear()
            self[word] = tokens
        return tokens


class _PerlTokenizer(MosesTokenizer):  # type: ignore[misc]
    """sacremoses with the Perl tokenizer's rule for full stops, and a cache of words.

    All rules look at one character before and after a comma, an apostrophe or a special character,
    so a word has the same tokens everywhere and is rewritten only once (benchmarks/text_scale.py).
    There are two exceptions. A full stop at the end of a word depends on the next word and is
    decided each time. Rules for apostrophes and commas at the edge of a word may match two words:
    a line with such a word is tokenised without the cache.
    """

    # sacremoses keeps strings of all letters and searches them for each character.
    _alphabetic = frozenset(MosesTokenizer.IsAlpha)
    _lower = frozenset(MosesTokenizer.IsLower)

    def __init__(self, lang: str) -> None:
        super().__init__(lang)
        self._numeric = frozenset(self.NUMERIC_ONLY_PREFIXES)
        self._prefixes = frozenset(self.NONBREAKING_PREFIXES) - self._numeric
        self._cache = _Cache(self.look)
        self._commas = [self.COMMA_SEPARATE_1, self.COMMA_SEPARATE_2, self.COMMA_SEPARATE_3]
        if lang == "en":
            self._apostrophes = self.ENGLISH_SPECIFIC_APOSTROPHE
        elif lang in ("fr", "it"):
            self._apostrophes = self.FR_IT_SPECIFIC_APOSTROPHE
        else:
            self._apostrophes = [self.NON_SPECIFIC_APOSTROPHE]

    def tokenize_line(self, line: str) -> str:
        """Return the same as `tokenize(line, return_str=True)`, faster."""
        words = line.split()
        texts: list[str] = []
        for position, tokens in enumerate(map(self._cache.__getitem__, words), start=1):
            if isinstance(tokens, str):
                texts.append(tokens)
            elif tokens is None:
                return self._tokenize_whole(" ".join(words))
            else:
                following = words[position] if position < len(words) else ""
                keeps_stop = self._keeps_stop(tokens.stem, following)
                texts.append(tokens.text if keeps_stop else tokens.split)
        return " ".join(texts)

    def look(self, word: str) -> str | _WithStop | None:
        """Return the tokens of `word`, or None if they depend on its neighbours."""
        if word.isalnum() and word.isascii() and "MULTI" not in word:
            return word
        # "MULTI" is sacremoses' mark of several full stops; junk characters are removed.
        is_edge = word[0] in ",'" or word[-1] == "'" or word[-2:] == ",,"
        if is_edge or "MULTI" in word or _JUNK.search(word):
            return None
        # Between two one-letter words, so that a comma or an apostrophe at an edge is at a space.
        tokens = self._rewrite(f"a {word} a").split()[1:-1]
        *_, last = tokens
        if len(last) == 1 or last[-1] != ".":
            return self._finish(self.handles_nonbreaking_prefixes(" ".join(tokens)))
        rest = self.handles_nonbreaking_prefixes(" ".join([*tokens[:-1], last[:-1]]))
        text = self._finish(rest)
        return _WithStop(f"{text}.", last[:-1], f"{text} .")

    def _tokenize_whole(self, line: str) -> str:
        """Return the tokens of a line, rule by rule as sacremoses applies them."""
        text = self.handles_nonbreaking_prefixes(self._rewrite(_JUNK.sub("", line).strip()))
        if "'" in text:
            regexp, substitution = self.TRAILING_DOT_APOSTROPHE
            text = regexp.sub(substitution, text)
        return " ".join(self._finish(text).split())

    def _rewrite(self, text: str) -> str:
        """Separate special characters, commas and apostrophes; skip rules that cannot match."""
        regexp, substitution = self.PAD_NOT_ISALNUM
        text = regexp.sub(substitution, text)
        if ".." in text:
            text = self.replace_multidots(text)
        rules = self._commas if "," in text else []
        for regexp, substitution in [*rules, *(self._apostrophes if "'" in text else [])]:
            text = regexp.sub(substitution, text)
        return text

    def _finish(self, text: str) -> str:
        """Restore sequences of full stops and write the escapes."""
        if "MULTI" in text:
            text = self.restore_multidots(text)
        for character, escape in _ESCAPES:
            text = text.replace(character, escape)
        return text

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        words = text.split()
        for index, (word, following) in enumerate(zip_longest(words, words[1:], fillvalue="")):
            if len(word) > 1 and word[-1] == "." and not self._keeps_stop(word[:-1], following):
                words[index] = word[:-1] + " ."
        return " ".join(words)

    def _keeps_stop(self, prefix: str, following: str) -> bool:
        """Return whether a full stop belongs to `prefix`; never at the end of a line."""
        if not following:
            return False
        if "." in prefix and not self._alphabetic.isdisjoint(prefix):
            return True
        if prefix in self._prefixes or following[0] in self._lower:
            return True
        return prefix in self._numeric and following[0] in _DIGITS
