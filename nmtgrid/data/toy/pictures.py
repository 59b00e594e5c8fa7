"""Toy pictures: scenes of a few objects, features of their regions, and captions, from a seed.

There are no images: the features of a region are a linear code of its object (shape, colour, size
and position) through a fixed random matrix, with noise. The mean over regions shows which
attributes occur, but hardly which of them belong together; attention to single regions does.
`nmtgrid preprocess --toy-pictures` writes them as a dataset.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.captioning.build import Picture
from nmtgrid.data.captioning.coco import Caption


def _synonyms(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(words.split("/")) for words in text.split(", "))


# Common objects first: they are sampled more often.
SHAPES = _synonyms(
    "ball/sphere, cube/box, star, cone, ring/hoop, heart, cross, tube/pipe, moon/crescent, arrow, "
    "key, bell, cup/mug, leaf, fish, umbrella/parasol"
)
COLOURS = _synonyms(
    "red, blue, green, yellow, black/dark, white/pale, orange, purple/violet, brown, grey/silver, "
    "pink, turquoise/teal"
)
_SIZES = _synonyms("large/big, small/little/tiny")
_ROWS = (("at the top", "on top"), ("",), ("at the bottom", "below"))
_COLUMNS = (("on the left",), ("in the middle",), ("on the right",))
_ATTRIBUTES = (SHAPES, COLOURS, _SIZES, _ROWS, _COLUMNS)
_NUMBERS = ("one thing", "two things", "three things", "four things", "five things", "six things")
_CAPTIONS = 5
# Features of a region.
SIZE = 64
# Standard deviation of the noise; each attribute's code is a standard normal vector.
NOISE = 0.1
# Number of pictures in the validation and in the test split.
_HELD_OUT = 500


class SceneObject(NamedTuple):
    """An object of a scene: indices of its shape, colour, size, row and column."""

    shape: int
    colour: int
    size: int
    row: int
    column: int


Scene = tuple[SceneObject, ...]


def draw_scene(dice: Random) -> Scene:
    """Return 1 to 6 objects in different positions; only `dice.random()` is used."""
    places = [(row, column) for row in range(len(_ROWS)) for column in range(len(_COLUMNS))]
    objects = []
    for _ in range(1 + int(dice.random() * len(_NUMBERS))):
        row, column = places.pop(int(dice.random() * len(places)))
        # Low indices are more frequent, so that there are rare words.
        shape, colour = (int(dice.random() ** 1.5 * len(names)) for names in (SHAPES, COLOURS))
        size = int(dice.random() * len(_SIZES))
        objects.append(SceneObject(shape, colour, size, row, column))
    return tuple(objects)


def salient(scene: Scene) -> list[SceneObject]:
    """Return the objects by salience."""
    return sorted(scene, key=lambda item: (item.size, item.row, item.column))


def relation(first: SceneObject, second: SceneObject) -> str:
    """Return the position of the first object relative to the second, sideways if possible."""
    if first.column != second.column:
        return "to the left of" if first.column < second.column else "to the right of"
    return "above" if first.row < second.row else "below"


def captions(scene: Scene, dice: Random) -> list[str]:
    """Return five captions; only `dice.random()` is used."""
    return [_caption(salient(scene), dice) for _ in range(_CAPTIONS)]


# The order of the calls below is the order of the draws, and so determines the captions of a seed.
def _caption(objects: Sequence[SceneObject], dice: Random) -> str:
    if len(objects) == 1:
        beginning = _one_of(("", "there is ", "a picture of "), dice)
        return f"{beginning}{_with_place(objects[0], dice)}."
    first, second = objects[0], objects[1]
    kind = dice.random()
    if 0.4 <= kind < 0.6:
        first, second = second, first
    if kind < 0.6:
        return f"{_name(first, dice)} {relation(first, second)} {_name(second, dice)}."
    if kind < 0.75:
        return f"There is {_with_place(first, dice)} and {_name(second, dice)}."
    if kind < 0.85 or len(objects) == 2:
        return f"{_NUMBERS[len(objects) - 1]} with {_with_place(first, dice)}."
    third = _name(objects[2], dice)
    return f"{_name(first, dice)}, {_name(second, dice)} and {third}."


def _with_place(item: SceneObject, dice: Random) -> str:
    row, column = _one_of(_ROWS[item.row], dice), _one_of(_COLUMNS[item.column], dice)
    if row and dice.random() < 0.7:
        return f"{_name(item, dice)} {row} {column}"
    return f"{_name(item, dice)} {column}"


def _name(item: SceneObject, dice: Random) -> str:
    words = []
    if dice.random() < 0.6:
        words.append(_one_of(_SIZES[item.size], dice))
    if dice.random() < 0.9:
        words.append(_one_of(COLOURS[item.colour], dice))
    words.append(_one_of(SHAPES[item.shape], dice))
    return f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"


def _one_of(choices: Sequence[str], dice: Random) -> str:
    """Return one of the choices, the first one more often than the others."""
    draw = dice.random()
    return choices[0] if draw < 0.6 else choices[int((draw - 0.6) / 0.4 * len(choices))]


def code_matrix(seed: int) -> NDArray[numpy.float32]:
    """Return [attributes, F]: the code of each value of each attribute."""
    generator = numpy.random.default_rng([seed, 0])
    return generator.standard_normal((sum(map(len, _ATTRIBUTES)), SIZE)).astype(numpy.float32)


def features(scene: Scene, codes: NDArray[numpy.float32], seed: int) -> NDArray[Any]:
    """Return float16 features [regions, F] of a scene, one region per object, with seeded noise."""
    sums = numpy.zeros((len(scene), SIZE), numpy.float32)
    start = 0
    for attribute, values in enumerate(_ATTRIBUTES):
        sums += codes[[start + item[attribute] for item in scene]]
        start += len(values)
    noise = numpy.random.default_rng([seed, 1]).standard_normal((len(scene), SIZE))
    return (sums + NOISE * noise).astype(numpy.float16)


def toy_pictures(train: int, seed: int = 1, held_out: int = _HELD_OUT) -> dict[str, list[Picture]]:
    """Return the pictures of "train", "valid" and "test"; no scene occurs twice.

    Raises ConfigError if `train` is not positive.
    """
    if train < 1:
        raise ConfigError(f"`--toy-pictures` must be at least 1, but is {train}.")
    dice, codes = Random(seed), code_matrix(seed)
    seen: set[frozenset[SceneObject]] = set()
    splits: dict[str, list[Picture]] = {"train": [], "valid": [], "test": []}
    # Valid and test are drawn first, so that they do not depend on the size of train.
    for split, count in (("valid", held_out), ("test", held_out), ("train", train)):
        while len(splits[split]) < count:
            scene = draw_scene(dice)
            if frozenset(scene) in seen:
                continue
            seen.add(frozenset(scene))
            number = len(seen)
            texts = tuple(Caption(text) for text in captions(scene, dice))
            draw_features = functools.partial(features, scene, codes, 1_000_003 * seed + number)
            splits[split].append(Picture(f"scene{number}", texts, draw_features))
    return splits
