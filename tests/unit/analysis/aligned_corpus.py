"""Sentence pairs in two invented languages whose word links are known.

The target follows the source phrase by phrase: some phrases change places with the next, the words
of some turn round. A source word has one translation, or two words in a row (linked to both), or
none; some translations are picked among synonyms; target words without a source word are strewn in.
"""

from __future__ import annotations

import random

Pairs = tuple[list[list[str]], list[list[str]], list[list[tuple[int, int]]]]


def corpus(sentences: int, seed: int = 1, types: int = 600) -> Pairs:
    """Return source sentences, target sentences, and their links (source, target) from 0."""
    draw = random.Random(seed)
    weights = [1 / (rank + 3) for rank in range(types)]
    lexicon = [_translations(number, draw) for number in range(types)]
    sources, targets, links = [], [], []
    for _ in range(sentences):
        words = draw.choices(range(types), weights, k=draw.randint(4, 22))
        sources.append([f"s{number}" for number in words])
        written: list[tuple[str, int | None]] = []
        for position in _order(len(words), draw):
            written += [(word, position) for word in draw.choice(lexicon[words[position]])]
            if draw.random() < 0.06:
                written.append((draw.choice(("nul", "nal", "nil")), None))
        if not written:
            written.append(("nul", None))
        targets.append([word for word, _ in written])
        links.append(sorted((s, t) for t, (_, s) in enumerate(written) if s is not None))
    return sources, targets, links


def _translations(number: int, draw: random.Random) -> list[list[str]]:
    """Return the ways to translate a source word; the commonest first words vary least."""
    kind = draw.random()
    if kind < 0.04:
        return [[]]
    if kind < 0.14:
        return [[f"t{number}a", f"t{number}b"]]
    if kind < 0.34:
        return [[f"t{number}"], [f"u{number}"]]
    return [[f"t{number}"]]


def _order(length: int, draw: random.Random) -> list[int]:
    """Return the source places in the order in which they are translated."""
    phrases: list[list[int]] = []
    start = 0
    while start < length:
        size = draw.randint(1, 4)
        phrase = list(range(start, min(length, start + size)))
        phrases.append(phrase[::-1] if draw.random() < 0.2 else phrase)
        start += size
    position = 0
    while position + 1 < len(phrases):
        if draw.random() < 0.2:
            phrases[position], phrases[position + 1] = phrases[position + 1], phrases[position]
            position += 1
        position += 1
    return [position for phrase in phrases for position in phrase]
