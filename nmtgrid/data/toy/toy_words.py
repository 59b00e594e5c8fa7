"""The lexicon of the two toy languages: invented lexemes, their forms and their frequencies."""

from __future__ import annotations

import dataclasses
from bisect import bisect
from collections.abc import Iterable
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")


class Choice(Generic[Item]):
    """Items with integer weights: sums are exact, so every Python draws the same items."""

    __slots__ = ("cumulative", "items", "total")

    def __init__(self, items: Iterable[Item], weights: Iterable[int] | None = None) -> None:
        self.items = tuple(items)
        chosen = [1] * len(self.items) if weights is None else list(weights)
        self.cumulative = list(accumulate(chosen))
        self.total = self.cumulative[-1] if chosen else 0

    @classmethod
    def zipfian(cls, items: Iterable[Item]) -> Choice[Item]:
        """Return the choice in which an item's weight falls with its rank, as 1 / (rank + 5)."""
        ranked = tuple(items)
        return cls(ranked, [100_000 // (rank + 6) for rank in range(len(ranked))])

    def at(self, fraction: float) -> Item:
        """Return the item that holds the place `fraction`, in [0, 1), of the weights."""
        return self.items[bisect(self.cumulative, int(fraction * self.total))]


class Chooser(Protocol):
    """What decides between the rules of the grammar: chance, or a test that tries them all."""

    def pick(self, choice: Choice[Item], /) -> Item:
        """Return one item."""
        ...

    def chance(self, percent: int, /) -> bool:
        """Return True in `percent` of the cases."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """A word without forms, or a person (name or pronoun), who has a target gender."""

    source: str
    target: str
    gender: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Determiner:
    """Forms: `source[case][column]` and `target[agreement]`."""

    source: tuple[tuple[str, ...], ...]
    target: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Adjective:
    """Forms: `source[column]` (gender, or 3 for the plural) and `target[agreement]`."""

    source: tuple[str, ...]
    target: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Noun:
    """Forms by number; `joint` opens a source compound, `genitive` follows a target noun."""

    source: tuple[str, str]
    joint: str
    target: tuple[str, str]
    genitive: str
    target_gender: int


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a verb means with one prefix ("" for the bare verb): an unrelated target verb."""

    prefix: str
    target: tuple[str, ...]
    infinitive: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verb:
    """A source stem: `finite` forms by number and its readings, several if it is separable."""

    finite: tuple[str, str]
    infinitive: str
    readings: Choice[Reading]


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """All words. `agreement` is 2 * target gender + number; `column` source gender, or plural.

    nouns[source gender], people[number] (pronouns), verbs[valency][is separable].
    """

    determiners: Choice[Determiner]
    adjectives: Choice[Adjective]
    nouns: tuple[Choice[Noun], ...]
    modifiers: Choice[Noun]
    names: Choice[Word]
    pronouns: tuple[Choice[Word], Choice[Word]]
    verbs: tuple[tuple[Choice[Verb], Choice[Verb]], ...]
    modals: Choice[Verb]
    adverbs: Choice[Word]
    prepositions: Choice[Word]
    complementizers: Choice[Word]
    question: str
    recipient: str
