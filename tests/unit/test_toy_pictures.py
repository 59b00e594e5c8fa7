"""Toy pictures: scenes, their captions against what is seen, and features from a seed."""

from __future__ import annotations

from random import Random

import numpy
import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.toy.pictures import (
    COLOURS,
    NOISE,
    SHAPES,
    SIZE,
    Scene,
    Thing,
    captions,
    code_matrix,
    draw_scene,
    features,
    relation,
    salient,
    toy_pictures,
)

BALL = Thing(shape=0, colour=0, size=1, row=0, column=0)
CUBE = Thing(shape=1, colour=1, size=0, row=2, column=2)
STAR = Thing(shape=2, colour=2, size=0, row=0, column=2)
SEED = 4


def scenes(count: int) -> list[Scene]:
    dice = Random(SEED)
    return [draw_scene(dice) for _ in range(count)]


def test_scenes_have_one_to_six_things_in_different_places() -> None:
    held = scenes(400)
    assert {len(scene) for scene in held} == {1, 2, 3, 4, 5, 6}
    for scene in held:
        assert len({(thing.row, thing.column) for thing in scene}) == len(scene)
    shapes = [thing.shape for scene in held for thing in scene]
    assert set(shapes) == set(range(len(SHAPES)))
    # Drawn as floor(16 u^1.5): the first has a probability of (1/16)^(2/3) = 0.157.
    assert shapes.count(0) / len(shapes) == pytest.approx(0.157, abs=0.03)


def test_large_things_strike_the_eye_then_those_at_the_top_left() -> None:
    assert salient((BALL, CUBE, STAR)) == [STAR, CUBE, BALL]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (BALL, CUBE, "to the left of"), (CUBE, BALL, "to the right of"), (STAR, CUBE, "above"),
        (CUBE, STAR, "below"),
    ],
)  # fmt: skip
def test_relations(first: Thing, second: Thing, words: str) -> None:
    assert relation(first, second) == words


def test_captions_say_what_is_there() -> None:
    """Nouns and adjectives of a caption are those of the scene's three most salient things."""
    nouns = {word: n for n, words in enumerate(SHAPES) for word in words}
    adjectives = {word: n for n, words in enumerate(COLOURS) for word in words}
    for scene in scenes(200):
        said = captions(scene, Random(9))
        assert len(said) == 5
        seen = salient(scene)[:3]
        for text in said:
            words = text.removesuffix(".").replace(",", "").split()
            named = [nouns[word] for word in words if word in nouns]
            assert named and set(named) <= {thing.shape for thing in seen}
            colours = {adjectives[word] for word in words if word in adjectives}
            assert colours <= {thing.colour for thing in seen}
            for place, word in enumerate(words[:-1]):
                if word in ("a", "an"):
                    assert (word == "an") == (words[place + 1][0] in "aeiou")


def test_captions_differ_in_words_and_orders() -> None:
    found = {text for _ in range(40) for text in captions((BALL, CUBE, STAR), Random(_))}
    assert len(found) > 60
    assert any("sphere" in text for text in found) and any("ball" in text for text in found)
    assert any(text.startswith("three things") for text in found)


def test_features_are_the_code_of_a_thing_and_noise() -> None:
    codes = code_matrix(SEED)
    found = features((BALL, CUBE), codes, 5)
    assert found.dtype == numpy.float16 and found.shape == (2, SIZE)
    # Attributes stand one behind the other: shapes, colours, two sizes, three rows, three columns.
    starts = numpy.cumsum([0, len(SHAPES), len(COLOURS), 2, 3])
    wanted = sum(codes[start + value] for start, value in zip(starts, CUBE, strict=True))
    apart = found[1].astype(numpy.float32) - wanted
    assert 0.5 * NOISE < apart.std() < 1.5 * NOISE
    assert len(codes) == starts[-1] + 3
    assert (features((BALL, CUBE), codes, 5) == found).all()
    assert (features((BALL, CUBE), codes, 6) != found).any()


def test_splits_share_no_scene_and_follow_from_the_seed() -> None:
    first, again, other = (toy_pictures(30, seed, held_out=20) for seed in (1, 1, 2))
    assert {name: len(held) for name, held in first.items()} == {
        "train": 30, "valid": 20, "test": 20,
    }  # fmt: skip
    names = [picture.name for held in first.values() for picture in held]
    assert len(set(names)) == 70
    for held, same, different in zip(first["test"], again["test"], other["test"], strict=True):
        assert held.captions == same.captions
        assert (held.features() == same.features()).all()
        assert held.captions != different.captions
    with pytest.raises(ConfigError, match="at least 1"):
        toy_pictures(0)
