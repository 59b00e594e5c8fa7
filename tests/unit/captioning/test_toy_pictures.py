"""Toy pictures: scenes, their captions against what is seen, and features from a seed."""

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
    SceneObject,
    captions,
    code_matrix,
    draw_scene,
    features,
    relation,
    salient,
    toy_pictures,
)

BALL = SceneObject(shape=0, colour=0, size=1, row=0, column=0)
CUBE = SceneObject(shape=1, colour=1, size=0, row=2, column=2)
STAR = SceneObject(shape=2, colour=2, size=0, row=0, column=2)
SEED = 4


def scenes(count: int) -> list[Scene]:
    dice = Random(SEED)
    return [draw_scene(dice) for _ in range(count)]


def test_scenes_have_one_to_six_things_in_different_places() -> None:
    pictures = scenes(400)
    assert {len(scene) for scene in pictures} == {1, 2, 3, 4, 5, 6}
    for scene in pictures:
        assert len({(thing.row, thing.column) for thing in scene}) == len(scene)
    shapes = [thing.shape for scene in pictures for thing in scene]
    assert set(shapes) == set(range(len(SHAPES)))
    # Drawn as floor(16 u^1.5): the first has a probability of (1/16)^(2/3) = 0.157.
    assert shapes.count(0) / len(shapes) == pytest.approx(0.157, abs=0.03)


def test_saliency_and_relations() -> None:
    """Large things strike the eye, then those at the top left."""
    assert salient((BALL, CUBE, STAR)) == [STAR, CUBE, BALL]
    assert relation(BALL, CUBE) == "to the left of" and relation(CUBE, BALL) == "to the right of"
    assert relation(STAR, CUBE) == "above" and relation(CUBE, STAR) == "below"


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
            for index, word in enumerate(words[:-1]):
                if word in ("a", "an"):
                    assert (word == "an") == (words[index + 1][0] in "aeiou")
    values = {text for _ in range(40) for text in captions((BALL, CUBE, STAR), Random(_))}
    assert len(values) > 60
    assert any("sphere" in text for text in values) and any("ball" in text for text in values)
    assert any(text.startswith("three things") for text in values)


def test_features_are_the_code_of_a_thing_and_noise() -> None:
    codes = code_matrix(SEED)
    values = features((BALL, CUBE), codes, 5)
    assert values.dtype == numpy.float16 and values.shape == (2, SIZE)
    # Attributes stand one behind the other: shapes, colours, two sizes, three rows, three columns.
    starts = numpy.cumsum([0, len(SHAPES), len(COLOURS), 2, 3])
    expected = sum(codes[start + value] for start, value in zip(starts, CUBE, strict=True))
    apart = values[1].astype(numpy.float32) - expected
    assert 0.5 * NOISE < apart.std() < 1.5 * NOISE
    assert len(codes) == starts[-1] + 3
    assert (features((BALL, CUBE), codes, 5) == values).all()
    assert (features((BALL, CUBE), codes, 6) != values).any()


def test_splits_share_no_scene_and_follow_from_the_seed() -> None:
    first, again, other = (toy_pictures(30, seed, held_out=20) for seed in (1, 1, 2))
    assert {name: len(pictures) for name, pictures in first.items()} == {
        "train": 30, "valid": 20, "test": 20,
    }  # fmt: skip
    names = [picture.name for pictures in first.values() for picture in pictures]
    assert len(set(names)) == 70
    for pictures, same, different in zip(first["test"], again["test"], other["test"], strict=True):
        assert pictures.captions == same.captions
        assert (pictures.features() == same.features()).all()
        assert pictures.captions != different.captions
    with pytest.raises(ConfigError, match="at least 1"):
        toy_pictures(0)
