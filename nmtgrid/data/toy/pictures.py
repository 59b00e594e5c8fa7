"""Toy pictures: scenes of a few things, features of their regions, and captions, from a seed.

There is no image: a region's features are a linear code of what the thing in it is (its shape,
colour, size and place) through a fixed random matrix, with noise. The mean over regions says which
attributes there are, but hardly which of them belong together; who looks at regions one by one can
say it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.captioning.build import CaptionPlan, Picture, Report, build_pictures
from nmtgrid.data.captioning.captions import PictureSource
from nmtgrid.data.captioning.coco import Caption
from nmtgrid.data.toy.toy_pictures_words import (
    COLOURS,
    COLUMNS,
    ROWS,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    captions,
)

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
