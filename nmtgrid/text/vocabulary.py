"""Vocabularies: token types and their ids. Ids 0 to 3 are the special symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.atomic import write_text
from nmtgrid.base.io.text import read_lines

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


class Vocabulary:
    """Token types with their ids and training counts; the four special symbols come first.

    A word of the text that is spelt like a special symbol never gets that symbol's id: it is
    unknown.
    """

    def __init__(self, types: Sequence[str], counts: Sequence[int] | None = None) -> None:
        """`types` are the ordinary types in the order of their ids, from id 4 on."""
        self.types = (*SPECIALS, *types)
        self.counts = (0, 0, 0, 0, *(counts or [0] * len(types)))
        self._ids = {token: index for index, token in enumerate(self.types)}
        if len(self._ids) != len(self.types) or len(self.counts) != len(self.types):
            raise ValueError("types must be distinct, and each must have one count")
        # A word spelt like a special symbol must not become one.
        for special in SPECIALS:
            self._ids[special] = UNKNOWN

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], min_count: int = 1) -> Vocabulary:
        """Return the vocabulary of types seen at least `min_count` times, most frequent first."""
        pairs = [
            (token, count)
            for token, count in counts.items()
            if count >= min_count and token not in SPECIALS
        ]
        # Ties are sorted by name, so that ids do not depend on the order of counting.
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
        return cls([token for token, _ in pairs], [count for _, count in pairs])

    def __len__(self) -> int:
        return len(self.types)

    def __contains__(self, token: object) -> bool:
        return token in self._ids and token not in SPECIALS

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of `tokens`; unknown ones get the id of `<unk>`."""
        ids = self._ids
        return [ids.get(token, UNKNOWN) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the types of `ids`, special symbols included."""
        return [self.types[int(index)] for index in ids]

    def save(self, path: Path) -> None:
        """Write one `type count` line for each type; line number - 1 is the id."""
        pairs = zip(self.types, self.counts, strict=True)
        write_text(Path(path), "".join(f"{token} {count}\n" for token, count in pairs))

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Return the vocabulary that `save` wrote. Raises StorageError for any other file."""
        try:
            types, counts = _read_pairs(Path(path))
        except InputError as fault:
            raise StorageError(
                f"{path} is damaged: {fault.problem}", "Make it again or restore a copy."
            ) from fault
        if tuple(types[:4]) != SPECIALS:
            raise StorageError(
                f"{path} is not a vocabulary of nmtgrid: it does not begin with "
                f"{', '.join(SPECIALS)}.",
                "Give dictionaries of other programs to `nmtgrid bpe learn --vocab-source F "
                "--vocab-target F`.",
            )
        return cls(types[4:], counts[4:])

    @classmethod
    def read_foreign(cls, path: Path) -> Vocabulary:
        """Return another program's dictionary after our special symbols.

        Reads fairseq's `unit count` lines and lists with one word per line; special symbols in the
        file count as ours. Published lists of words often lack the pad symbol, or all four: here
        they always come first, so sizes and ids differ from those of the publication by the
        symbols that it leaves out. Raises InputError with the faulty line.
        """
        types, counts = _read_pairs(Path(path))
        pairs = [pair for pair in zip(types, counts, strict=True) if pair[0] not in SPECIALS]
        if not pairs:
            raise InputError(
                "the file contains only special symbols.", "Give another file.", path=path
            )
        return cls([token for token, _ in pairs], [count for _, count in pairs])


def _read_pairs(path: Path) -> tuple[list[str], list[int]]:
    types: dict[str, int] = {}
    has_counts: bool | None = None
    for number, line in enumerate(read_lines(path), start=1):
        token, space, count = line.rstrip().rpartition(" ")
        # Counts of up to 18 digits fit into 64 bits.
        is_counted = bool(space) and count.isascii() and count.isdigit() and len(count) < 19
        if has_counts is None:  # the first line decides the format of the file
            has_counts = is_counted
        if not has_counts:
            token, count = line.strip(), "0"
        # SentencePiece's `.vocab` has tabs.
        if not token or " " in token or "\t" in token or (has_counts and not is_counted):
            entry = "`type count`" if has_counts else "one word"
            raise InputError(
                f"a line of a vocabulary must be {entry}, but is `{line[:60]}`.",
                "Correct the line, or give another file.",
                path=path,
                line=number,
            )
        if token in types:
            raise InputError(
                f"the type `{token[:60]}` occurs twice.",
                "Remove one of the lines.",
                path=path,
                line=number,
            )
        types[token] = int(count)
    return list(types), list(types.values())
