"""What people say of toy pictures: five captions of a scene, from a small grammar.

A caption speaks of the things that strike the eye, large ones first, then from the top left to the
bottom right. Words have synonyms, what is said has several orders, and size, colour or further
things may be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

SHAPES: tuple[tuple[str, ...], ...] = (
    ("ball", "sphere"), ("cube", "box"), ("star",), ("cone",), ("ring", "hoop"), ("heart",),
    ("cross",), ("tube", "pipe"), ("moon", "crescent"), ("arrow",), ("key",), ("bell",),
    ("cup", "mug"), ("leaf",), ("fish",), ("umbrella", "parasol"),
)  # fmt: skip
"""Common things first: they are drawn oftener."""
COLOURS: tuple[tuple[str, ...], ...] = (
    ("red",), ("blue",), ("green",), ("yellow",), ("black", "dark"), ("white", "pale"),
    ("orange",), ("purple", "violet"), ("brown",), ("grey", "silver"), ("pink",),
    ("turquoise", "teal"),
)  # fmt: skip
SIZES: tuple[tuple[str, ...], ...] = (("large", "big"), ("small", "little", "tiny"))
ROWS: tuple[tuple[str, ...], ...] = (("at the top", "on top"), ("",), ("at the bottom", "below"))
COLUMNS: tuple[tuple[str, ...], ...] = (("on the left",), ("in the middle",), ("on the right",))
NUMBERS = ("one thing", "two things", "three things", "four things", "five things", "six things")
CAPTIONS = 5


class Thing(NamedTuple):
    """The numbers of a thing's shape, colour, size, row and column."""

    shape: int
    colour: int
    size: int
    row: int
    column: int


Scene = tuple[Thing, ...]


def salient(scene: Scene) -> list[Thing]:
    """Return the things in the order in which they strike the eye."""
    return sorted(scene, key=lambda thing: (thing.size, thing.row, thing.column))


def captions(scene: Scene, dice: Random) -> list[str]:
    """Return five captions; only `random()` is asked of the dice."""
    speaker = _Speaker(dice)
    return [speaker.caption(salient(scene)) for _ in range(CAPTIONS)]


def relation(first: Thing, second: Thing) -> str:
    """Return where the first thing is, seen from the second: sideways if that says it."""
    if first.column != second.column:
        return "to the left of" if first.column < second.column else "to the right of"
    return "above" if first.row < second.row else "below"


class _Speaker:
    """Chooses words and orders by chance."""

    def __init__(self, dice: Random) -> None:
        self._random = dice.random

    def caption(self, things: Sequence[Thing]) -> str:
        if len(things) == 1:
            return self._alone(things[0])
        first, second = things[0], things[1]
        kind = self._random()
        if kind < 0.4:
            return f"{self._named(first)} {relation(first, second)} {self._named(second)}."
        if kind < 0.6:
            return f"{self._named(second)} {relation(second, first)} {self._named(first)}."
        if kind < 0.75:
            return f"There is {self._placed(first)} and {self._named(second)}."
        if kind < 0.85 or len(things) == 2:
            return f"{NUMBERS[len(things) - 1]} with {self._placed(first)}."
        third = self._named(things[2])
        return f"{self._named(first)}, {self._named(second)} and {third}."

    def _alone(self, thing: Thing) -> str:
        begin = self._one_of(("", "there is ", "a picture of "))
        return f"{begin}{self._placed(thing)}."

    def _placed(self, thing: Thing) -> str:
        row, column = self._one_of(ROWS[thing.row]), self._one_of(COLUMNS[thing.column])
        if row and self._random() < 0.7:
            return f"{self._named(thing)} {row} {column}"
        return f"{self._named(thing)} {column}"

    def _named(self, thing: Thing) -> str:
        words = []
        if self._random() < 0.6:
            words.append(self._one_of(SIZES[thing.size]))
        if self._random() < 0.9:
            words.append(self._one_of(COLOURS[thing.colour]))
        words.append(self._one_of(SHAPES[thing.shape]))
        return f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"

    def _one_of(self, choices: Sequence[str]) -> str:
        """Return a choice, the first one oftener than the others."""
        draw = self._random()
        return choices[0] if draw < 0.6 else choices[int((draw - 0.6) / 0.4 * len(choices))]
