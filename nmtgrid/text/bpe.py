"""Byte-pair encoding (Sennrich et al. 2016); the only module that imports subword-nmt.

Codes files have subword-nmt's format 0.2 (older ones are read as well). A subword that does not
end its word carries the joiner `@@`.

Departs: words of more than 1,000 characters, which do not occur in our training texts, are first
cut into segments of that length; all others are segmented as by subword-nmt.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path

from subword_nmt.apply_bpe import BPE, check_vocab_and_split
from subword_nmt.learn_bpe import get_pair_statistics, prune_stats, update_pair_statistics

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.atomic import write_text
from nmtgrid.base.io.text import read_lines
from nmtgrid.base.subword_marks import JOINER as JOINER

_HEADER = "#version: 0.2"
WORD_END = "</w>"
_JOINED = re.compile(rf"{JOINER}( |$)")
LONGEST_WORD = 1000
_LARGEST_CACHE = 200_000
_LEAST_COUNT = 2


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
                "there is no merge in it.", "Is this a codes file of subword-nmt?", path=path
            )
        # Lists of units with their counts have two fields a line as well.
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
        """Return the subwords of `words`; `@@` ends each that does not end its word."""
        subwords: list[str] = []
        for word in words:
            segments = self._cache.get(word)
            if segments is None:
                segments = []
                # subword-nmt caches each word for ever; ours serves, and is emptied when full. A
                # new cache, for another thread may still be reading the old one.
                self._bpe.cache = {}
                # The time grows with the square of the length: longer words are cut first.
                for part in word_parts(word):
                    if segments:
                        segments[-1] += JOINER
                    segments += self._bpe.segment_tokens([part])
                if len(self._cache) >= _LARGEST_CACHE:
                    self._cache.clear()
                self._cache[word] = segments
            subwords.extend(segments)
        return subwords

    def symbols(self, word: str) -> tuple[str, ...]:
        """Return what the merges of `word` begin with: its characters and the mark of its end."""
        if self._bpe.version == (0, 1):
            return (*word, WORD_END)
        return (*word[:-1], word[-1] + WORD_END)

    def rank(self, pair: tuple[str, str]) -> int | None:
        """Return how many merges come before that of two symbols; None where there is none."""
        rank: int | None = self._bpe.bpe_codes.get(pair)
        return rank

    def units(self, symbols: Sequence[str], vocabulary: Container[str]) -> list[str]:
        """Return the subwords of a word that is merged to `symbols`.

        Those that the `vocabulary` lacks are split, as long as a merge can be undone.
        """
        *first, last = symbols
        # With codes of version 0.1 the mark can be a symbol of its own.
        segments = [*first, last.removesuffix(WORD_END)] if last != WORD_END else first
        *first, last = check_vocab_and_split(
            segments, self._bpe.bpe_codes_reverse, vocabulary, JOINER
        )
        return [*(segment + JOINER for segment in first), last]


def learn(
    word_counts: Mapping[str, int], merges: int, report: Callable[[int], None] | None = None
) -> Codes:
    """Return up to `merges` merge operations learned from the words' counts.

    `report` is called with the number of merges so far. There are fewer than `merges` when no
    pair is left that occurs twice. Raises ConfigError when there is nothing to learn.
    """
    if merges < 1:
        raise ConfigError(f"`--merges` must be at least 1, but is {merges}.")
    if not any(len(word) > 1 for word in word_counts):
        raise ConfigError(
            "There is nothing to learn merges from: no word has two characters.",
            "Check the training text, or use `--words`.",
        )
    learned = _learn(word_counts, merges, report or (lambda done: None))
    if not learned:
        raise ConfigError(
            "There is nothing to learn merges from: no two characters stand together twice.",
            "Give more training text, or use `--words`.",
        )
    return Codes(learned)


def _learn(word_counts: Mapping[str, int], merges: int, report: Callable[[int], None]) -> list[str]:
    """Return the merges that subword-nmt's `learn_bpe` finds, by its own steps.

    Two of them are done otherwise, several times faster (benchmarks/text_scale.py): the most
    frequent pair is the greatest of those with the largest count, and a pair is merged without
    joining the word to a text.
    """
    words = {(*word[:-1], f"{word[-1]}</w>"): count for word, count in word_counts.items()}
    ranked = sorted(words.items(), key=lambda item: item[1], reverse=True)
    counts, words_of_pair = get_pair_statistics(ranked)
    full_counts = counts.copy()
    # Rare pairs are kept in `full_counts` only, until the others have become as rare.
    threshold = max(counts.values()) / 10
    learned: list[str] = []
    for number in range(merges):
        pair = _most_frequent(counts)
        if pair is None or (number and counts[pair] < threshold):
            prune_stats(counts, full_counts, threshold)
            counts = full_counts.copy()
            pair = _most_frequent(counts)
            assert pair is not None
            threshold = counts[pair] * number / (number + 10000.0)
            prune_stats(counts, full_counts, threshold)
        if counts[pair] < _LEAST_COUNT:
            break
        learned.append(" ".join(pair))
        changes = _merge(pair, ranked, words_of_pair[pair])
        update_pair_statistics(pair, changes, counts, words_of_pair)
        counts[pair] = 0
        if number % 100 == 0:
            prune_stats(counts, full_counts, threshold)
        report(len(learned))
    return learned


def _merge(
    pair: tuple[str, str], words: list[tuple[tuple[str, ...], int]], occurrences: Mapping[int, int]
) -> list[tuple[int, tuple[str, ...], tuple[str, ...], int]]:
    """Merge `pair` in the words in which it occurs; return (index, new, old, count) of each."""
    first, second = pair
    changes = []
    for index, times in occurrences.items():
        if times < 1:
            continue
        old, count = words[index]
        new: list[str] = []
        for symbol in old:
            # A merged symbol is never one of the two: it is longer than either.
            if symbol == second and new and new[-1] == first:
                new[-1] = first + second
            else:
                new.append(symbol)
        words[index] = tuple(new), count
        changes.append((index, tuple(new), old, count))
    return changes


def _most_frequent(counts: Mapping[tuple[str, str], int]) -> tuple[str, str] | None:
    """Return the pair with the largest count, of several the greatest; None where there is none."""
    largest = max(counts.values(), default=None)
    return max((pair for pair, count in counts.items() if count == largest), default=None)


def word_parts(word: str) -> list[str]:
    """Return the parts that a word of more than 1,000 characters is cut into; others are whole."""
    starts = range(0, max(1, len(word)), LONGEST_WORD)
    return [word[start : start + LONGEST_WORD] for start in starts]


def remove_bpe(text: str) -> str:
    """Return `text` with its subwords joined to words."""
    return _JOINED.sub("", text)
