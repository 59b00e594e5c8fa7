"""From delays of BPE pieces to delays of words.

A piece that ends in the joiner (`@@`, given by the caller) goes on in the next one.
"""

from __future__ import annotations

from collections.abc import Sequence


def count_words(pieces: Sequence[str], joiner: str) -> int:
    """Return how many words the pieces make."""
    return len(_word_ends(pieces, joiner))


def words_read(source_pieces: Sequence[str], joiner: str) -> list[int]:
    """Return how many whole words there are in the first 0, 1, ..., S pieces [S + 1]."""
    ends = set(_word_ends(source_pieces, joiner))
    counts = [0]
    for index in range(len(source_pieces)):
        counts.append(counts[-1] + (index in ends))
    return counts


def word_delays(
    delays: Sequence[int],
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    joiner: str,
) -> list[int]:
    """Return the delay of each target word, in source words, from delays of pieces in pieces.

    A target word is written with its last piece; a source word is read with its last piece, so a
    word may have a delay of 0. Neither side has its end symbol; delays beyond the source count as
    all of it. Raises ValueError unless each target piece has a delay.
    """
    if len(delays) != len(target_pieces):
        raise ValueError(f"{len(delays)} delays for {len(target_pieces)} target pieces")
    counts = words_read(source_pieces, joiner)
    last = len(source_pieces)
    return [counts[min(delays[end], last)] for end in _word_ends(target_pieces, joiner)]


def _word_ends(pieces: Sequence[str], joiner: str) -> list[int]:
    """Return the last piece of each word; the last of all ends one in any case."""
    last = len(pieces) - 1
    return [i for i, piece in enumerate(pieces) if i == last or not piece.endswith(joiner)]
