"""The embedded toy corpus: parallel sentences whose needed delay is known, from a seed."""

from __future__ import annotations

from random import Random

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.toy.corpus import write_pair
from nmtgrid.data.toy.language import LINK, build_lexicon
from nmtgrid.data.toy.toy_pair import (
    ToyPair,
    average_lagging,
    least_average_lagging,
    smallest_wait_k,
)
from nmtgrid.data.toy.toy_phrases import Rules
from nmtgrid.data.toy.toy_settings import ToySettings, settings_for
from nmtgrid.data.toy.toy_words import Choice, Item

__all__ = [
    "SOURCE_LANG",
    "TARGET_LANG",
    "ToyGrammar",
    "ToyPair",
    "ToySettings",
    "average_lagging",
    "least_average_lagging",
    "smallest_wait_k",
    "toy_splits",
]

SOURCE_LANG, TARGET_LANG = "qa", "qb"

# So many draws in a row without a new sentence mean that the grammar has no more of them.
_PATIENCE = 2_000
# So many draws look for a sentence whose every word training holds.
_REPLACEMENTS = 50


class _Dice:
    """Decides by chance. Only `random()` is used: its stream is the same in every Python."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random

    def pick(self, choice: Choice[Item]) -> Item:
        return choice.at(self.random())

    def chance(self, percent: int) -> bool:
        return self.random() * 100 < percent


class ToyGrammar:
    """Two invented languages made from `seed`, and an endless stream of their sentence pairs.

    `settings`, if given, replaces those of `difficulty` (1, 2 or 3). Every `stream` (0 to 99)
    has other sentences of the same languages; `toy_splits` uses 0 to 2.
    """

    def __init__(
        self,
        seed: int = 1,
        difficulty: int = 1,
        settings: ToySettings | None = None,
        stream: int = 0,
    ) -> None:
        self.settings = settings_for(difficulty) if settings is None else settings
        self.lexicon = build_lexicon(self.settings, seed)
        self._rules = Rules(self.lexicon, self.settings)
        self._dice = _Dice(100 * seed + stream)

    def sample(self, count: int) -> list[ToyPair]:
        """Return the next `count` sentence pairs; a sentence may come twice."""
        return [write_pair(self._rules, self._dice) for _ in range(count)]


def toy_splits(
    train: int,
    seed: int = 1,
    difficulty: int = 1,
    valid: int = 200,
    test: int = 200,
    settings: ToySettings | None = None,
) -> dict[str, list[ToyPair]]:
    """Return the splits "train", "valid" and "test", in this order.

    No source sentence comes twice, and no target sentence of one split stands in another. Each
    word of valid and test, and each part of their compounds, is in train too; whole compounds may
    be new. A train split of less than some 3,000 pairs cannot always show every word; a larger
    one leaves valid and test as they are.

    Raises: ConfigError if a size is negative or the grammar has too few sentences.
    """
    sizes = {"valid": valid, "test": test, "train": train}
    faults = [f"`{name}` must not be negative, but is {n}." for name, n in sizes.items() if n < 0]
    if faults:
        raise ConfigError(faults, "Give the number of sentence pairs.")
    barred: set[str] = set()
    streams = {"train": 0, "valid": 1, "test": 2}
    grammars = {name: ToyGrammar(seed, difficulty, settings, streams[name]) for name in sizes}
    splits = {name: _draw(grammars[name], sizes[name], barred) for name in sizes}
    known = {part for pair in splits["train"] for part in word_parts(pair)}
    for name in ("valid", "test"):
        splits[name] = [_known_pair(p, grammars[name], barred, known) for p in splits[name]]
    return {name: splits[name] for name in streams}


def word_parts(pair: ToyPair) -> set[str]:
    """Return the pair's words in lower case, source compounds as their parts."""
    sources = (part for word in pair.source_words for part in word.lower().split(LINK))
    return {*sources, *(word.lower() for word in pair.target_words)}


def _draw(grammar: ToyGrammar, count: int, barred: set[str]) -> list[ToyPair]:
    """Return new pairs of which no side is barred, and bar both sides for other splits."""
    kept: dict[str, ToyPair] = {}
    misses = 0
    while len(kept) < count and misses < _PATIENCE:
        pair = grammar.sample(1)[0]
        is_new = pair.source not in kept and barred.isdisjoint((pair.source, pair.target))
        misses = 0 if is_new else misses + 1
        if is_new:
            kept[pair.source] = pair
    if len(kept) < count:
        raise ConfigError(
            f"The toy grammar has no {count} different sentences.", "Ask for fewer sentences."
        )
    for pair in kept.values():
        barred.update((pair.source, pair.target))
    return list(kept.values())


def _known_pair(pair: ToyPair, grammar: ToyGrammar, barred: set[str], known: set[str]) -> ToyPair:
    """Return the pair if every word of it is known, else another one, if one is found."""
    if word_parts(pair) <= known:
        return pair
    for _ in range(_REPLACEMENTS):
        other = grammar.sample(1)[0]
        if word_parts(other) <= known and barred.isdisjoint((other.source, other.target)):
            barred.update((other.source, other.target))
            return other
    return pair
