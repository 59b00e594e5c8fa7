"""From delays of BPE pieces to delays of words.

A piece that ends in the joiner (`@@`, given by the caller; empty where pieces are words) goes on in
the next one. Source words are those of the raw line, which arrive whole: where a part of a word
has been read, it counts as read. Target words are the tokenised ones, written with their last
piece.
"""

from __future__ import annotations

from collections.abc import Sequence


def words_arrived(word_sizes: Sequence[int]) -> list[int]:
    """Return [S + 2]: how many words have arrived when 0, 1, ..., S pieces and the end are read.

    `word_sizes` has the pieces of each source word. A word without any arrives with what follows.
    """
    counts = [0]
    for word, size in enumerate(word_sizes, start=1):
        counts += [word] * size
    return [*counts, len(word_sizes)]


def word_delays(
    delays: Sequence[int],
    word_sizes: Sequence[int],
    target_pieces: Sequence[str],
    joiner: str,
) -> list[int]:
    """Return the delay of each target word, in source words, from delays of pieces in pieces.

    `delays` has one for each target piece, and may have that of the end symbol too: a last piece
    that asks for another is final only then. The source's end symbol is read after its pieces;
    delays beyond that count as all of it. Raises ValueError unless each target piece has a delay.
    """
    if len(delays) - len(target_pieces) not in (0, 1):
        raise ValueError(f"{len(delays)} delays for {len(target_pieces)} target pieces")
    counts = words_arrived(word_sizes)
    ends = _word_ends(target_pieces, joiner)
    if ends and _goes_on(target_pieces[-1], joiner):
        ends[-1] = len(delays) - 1
    return [counts[min(delays[end], len(counts) - 1)] for end in ends]


def _word_ends(pieces: Sequence[str], joiner: str) -> list[int]:
    """Return the last piece of each word; the last of all ends one in any case."""
    last = len(pieces) - 1
    return [i for i, piece in enumerate(pieces) if i == last or not _goes_on(piece, joiner)]


def _goes_on(piece: str, joiner: str) -> bool:
    return bool(joiner) and piece.endswith(joiner)
