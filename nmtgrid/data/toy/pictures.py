"""Toy pictures: scenes of a few things, features of their regions, and captions, from a seed.

There is no image: a region's features are a linear code of what the thing in it is (its shape,
colour, size and place) through a fixed random matrix, with noise. The mean over regions says which
attributes there are, but hardly which of them belong together; who looks at regions one by one can
say it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.captioning.build import CaptionPlan, Picture, Report, build_pictures
from nmtgrid.data.captioning.coco import Caption
from nmtgrid.data.captioning.dataset import PictureSource

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


SIZE = 64
"""Features of a region."""
NOISE = 0.1
"""Standard deviation of the noise; each attribute's code is a standard normal vector."""
HELD_OUT = 500
"""Pictures of the validation and of the test split."""
MOST_THINGS = 6
_CODES = (SHAPES, COLOURS, SIZES, ROWS, COLUMNS)


def draw_scene(dice: Random) -> Scene:
    """Return 1 to 6 things in different places; only `random()` is asked of the dice."""
    places = [(row, column) for row in range(len(ROWS)) for column in range(len(COLUMNS))]
    found = []
    for _ in range(1 + int(dice.random() * MOST_THINGS)):
        row, column = places.pop(int(dice.random() * len(places)))
        # Low numbers come oftener, so that there are rare words.
        shape, colour = (int(dice.random() ** 1.5 * len(held)) for held in (SHAPES, COLOURS))
        size = int(dice.random() * len(SIZES))
        found.append(Thing(shape, colour, size, row, column))
    return tuple(found)


def code_matrix(seed: int) -> NDArray[numpy.float32]:
    """Return [attributes, F]: the code of each value of each attribute."""
    draw = numpy.random.default_rng([seed, 0])
    return draw.standard_normal((sum(map(len, _CODES)), SIZE)).astype(numpy.float32)


def features(scene: Scene, codes: NDArray[numpy.float32], seed: int) -> NDArray[Any]:
    """Return float16 features [regions, F] of a scene, a region for each thing; noise by `seed`."""
    rows = []
    for thing in scene:
        first, total = 0, numpy.zeros(SIZE, numpy.float32)
        for values, chosen in zip(_CODES, thing, strict=True):
            total = total + codes[first + chosen]
            first += len(values)
        rows.append(total)
    noise = numpy.random.default_rng([seed, 1]).standard_normal((len(scene), SIZE))
    return (numpy.stack(rows) + NOISE * noise).astype(numpy.float16)


def toy_pictures(train: int, seed: int = 1, held_out: int = HELD_OUT) -> dict[str, list[Picture]]:
    """Return the pictures of "train", "valid" and "test"; no scene comes twice.

    Raises ConfigError if `train` is not positive.
    """
    if train < 1:
        raise ConfigError(f"`--toy-pictures` must be at least 1, but is {train}.")
    dice, codes = Random(seed), code_matrix(seed)
    seen: set[frozenset[Thing]] = set()
    found: dict[str, list[Picture]] = {"train": [], "valid": [], "test": []}
    wanted: Mapping[str, int] = {"valid": held_out, "test": held_out, "train": train}
    for split, count in wanted.items():
        while len(found[split]) < count:
            scene = draw_scene(dice)
            if frozenset(scene) in seen:
                continue
            seen.add(frozenset(scene))
            number = len(seen)
            texts = tuple(Caption(text) for text in captions(scene, dice))
            made = functools.partial(features, scene, codes, 1_000_003 * seed + number)
            found[split].append(Picture(f"scene{number}", texts, made))
    return found


def preprocess_toy_pictures(
    plan: CaptionPlan,
    pictures: int,
    out: Path,
    *,
    seed: int = 1,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Build a dataset in `out` of so many training pictures; return the manifest."""
    facts = {"toy_pictures": {"pictures": pictures, "seed": seed}}
    return build_pictures(
        plan, PictureSource(SIZE, "F16"), toy_pictures(pictures, seed), out, facts,
        overwrite=overwrite, report=report,
    )  # fmt: skip
