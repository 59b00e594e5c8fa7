"""Byte-pair encoding (Sennrich et al. 2016); the only module that imports subword-nmt.

Codes files have subword-nmt's format 0.2; older ones can be read too. A subword that does not end
its word is marked by `@@`.

Departs: subword-nmt takes time quadratic in the length of a word. Here words of more than 1,000
characters, which hardly occur in text, are first cut into pieces of that length; all others are
segmented as by subword-nmt.
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from pathlib import Path

from subword_nmt.apply_bpe import BPE, check_vocab_and_split

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import write_text
from nmtgrid.base.io.text import read_lines
from nmtgrid.base.subword_marks import JOINER

_HEADER = "#version: 0.2"
WORD_END = "</w>"
_JOINED = re.compile(rf"{JOINER}( |$)")
LONGEST_WORD = 1000
_LARGEST_CACHE = 200_000


class Codes:
    """Merge operations, most important first."""

    def __init__(self, merges: Sequence[str], header: str = _HEADER) -> None:
        """`merges` are the lines "left right" of a codes file, without its header; at least one."""
        if not merges:
            raise ValueError("codes without a merge")
        self.merges = list(merges)
        self._header = header
        self._bpe = BPE(io.StringIO("\n".join(([header] if header else []) + self.merges)))
        self._cache: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.merges)

    @classmethod
    def load(cls, path: str | Path) -> Codes:
        """Return the codes in `path`. Raises InputError with the faulty line."""
        merges: list[str] = []
        header = ""
        for number, line in enumerate(read_lines(path), start=1):
            if number == 1 and line.startswith("#version:"):
                header = line.strip()
                if not re.fullmatch(r"#version: 0\.[12](\.0+)*", header):
                    raise InputError(
                        f"codes of version `{header[9:].strip()}` are not known.",
                        "Give codes of subword-nmt, version 0.1 or 0.2.", path=path, line=1,
                    )  # fmt: skip
                continue
            fields = line.strip("\r ").split(" ")  # as subword-nmt reads it
            if len(fields) != 2:
                raise InputError(
                    f"a merge must be two units with a space between, but is `{line[:60]}`.",
                    "Is this a codes file of subword-nmt?",
                    path=path,
                    line=number,
                )
            merges.append(" ".join(fields))
        if not merges:
            raise InputError(
                "the file contains no merges.", "Is this a codes file of subword-nmt?", path=path
            )
        # Lists of units with their counts have two fields per line as well.
        if not header and all(merge.rpartition(" ")[2].isdecimal() for merge in merges):
            raise InputError(
                "these are words with their counts, not merges.",
                "Give the codes of `bpe learn` or subword-nmt; lists of units are for "
                "`--vocab-source` and `--vocab-target`.", path=path, line=1,
            )  # fmt: skip
        return cls(merges, header)

    def save(self, path: str | Path) -> None:
        """Write the codes as subword-nmt does."""
        lines = [*([self._header] if self._header else []), *self.merges]
        write_text(Path(path), "\n".join(lines) + "\n")

    def segment(self, words: Iterable[str]) -> list[str]:
        """Return the subwords of `words`; those that do not end their word end in `@@`."""
        subwords: list[str] = []
        for word in words:
            segments = self._cache.get(word)
            if segments is None:
                segments = []
                # subword-nmt's cache is never emptied; ours replaces it, and is when full. A new
                # dict, because another thread may still be reading the old one.
                self._bpe.cache = {}
                # The time is quadratic in the length, so long words are cut first.
                for part in word_parts(word):
                    if segments:
                        segments[-1] += JOINER
                    segments += self._bpe.segment_tokens([part])
                if len(self._cache) >= _LARGEST_CACHE:
                    self._cache.clear()
                self._cache[word] = segments
            subwords.extend(segments)
        return subwords

    def remember(self, words: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Cache the segmentation of (word, symbols) pairs, up to a limit."""
        for word, (*first, last) in islice(words, _LARGEST_CACHE):
            if len(word) <= LONGEST_WORD:
                last = last.removesuffix(WORD_END)
                self._cache[word] = [*(symbol + JOINER for symbol in first), last]

    def symbols(self, word: str) -> tuple[str, ...]:
        """Return the initial symbols of `word`: its characters and the end-of-word mark."""
        if self._bpe.version == (0, 1):
            return (*word, WORD_END)
        return (*word[:-1], word[-1] + WORD_END)

    def rank(self, pair: tuple[str, str]) -> int | None:
        """Return the number of merges before that of `pair`, or None if it is not a merge."""
        rank: int | None = self._bpe.bpe_codes.get(pair)
        return rank

    def units(self, symbols: Sequence[str], vocabulary: Container[str]) -> list[str]:
        """Return the subwords of a word that was merged to `symbols`.

        Those not in the `vocabulary` are split again as long as a merge can be undone.
        """
        *first, last = symbols
        # With codes of version 0.1 the end-of-word mark can be a separate symbol.
        segments = [*first, last.removesuffix(WORD_END)] if last != WORD_END else first
        *first, last = check_vocab_and_split(
            segments, self._bpe.bpe_codes_reverse, vocabulary, JOINER
        )
        return [*(segment + JOINER for segment in first), last]


def word_parts(word: str) -> list[str]:
    """Return a word cut into parts of at most 1,000 characters, in general only one."""
    starts = range(0, max(1, len(word)), LONGEST_WORD)
    return [word[start : start + LONGEST_WORD] for start in starts]


def remove_bpe(text: str) -> str:
    """Return `text` with subwords joined into words."""
    return _JOINED.sub("", text)
