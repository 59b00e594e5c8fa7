"""Settings, distribution, splits and seeds of the toy corpus."""

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.toy.corpus import (
    ToyGrammar,
    ToyPair,
    toy_splits,
    word_parts,
)
from nmtgrid.data.toy.language import LINK, Lexicon, ToySettings, build_lexicon
from tests.unit.data.toy_languages import BARE, all_forms, is_reordered, smallest_wait_k

# -- settings and distribution


def share(pairs: list[ToyPair], holds: Callable[[ToyPair], bool]) -> float:
    return sum(map(holds, pairs)) / len(pairs)


def has_compound(pair: ToyPair) -> bool:
    return any(LINK in word for word in pair.source_words)


def is_split(pair: ToyPair) -> bool:
    """Whether one target word stands for two source words: a verb and its prefix."""
    count = Counter(t for t, _ in pair.links)
    return max(count.values()) == 2


def test_difficulties() -> None:
    pairs = ToyGrammar(1, 1).sample(5000)
    mean = sum(p.reads[-1] for p in pairs) / len(pairs)
    assert 8 <= mean <= 12
    assert max(p.reads[-1] for p in pairs) <= 25
    assert share(pairs, is_reordered) > 0.6
    assert share(pairs, has_compound) > 0.2
    assert share(pairs, is_split) > 0.1
    assert share(pairs, lambda p: "," in p.source) > 0.3
    assert share(pairs, lambda p: smallest_wait_k(p) > 3) > 0.3
    means = []
    for difficulty in (1, 2, 3):
        pairs = ToyGrammar(1, difficulty).sample(3000)
        lengths = sum(p.reads[-1] for p in pairs) / len(pairs)
        means.append((lengths, sum(map(smallest_wait_k, pairs)) / len(pairs)))
    assert means[0][0] < means[1][0] < means[2][0]
    assert means[0][1] < means[1][1] < means[2][1]


def test_settings_do_what_they_say() -> None:
    def sample(**changes: int) -> list[ToyPair]:
        return ToyGrammar(1, settings=replace(ToySettings(), **changes)).sample(1000)

    assert share(sample(compound=0), has_compound) == 0
    assert share(sample(compound=100, pronoun=0, name=0), has_compound) == 1
    assert share(sample(separable=0), is_split) == 0
    assert share(sample(separable=100), is_split) > 0.4
    assert share(sample(depth=0), lambda p: "," in p.source) == 0
    assert share(sample(open_verb=0), lambda p: "?" in p.source) == 0
    only_questions = sample(
        open_verb=1, open_subject=0, open_object=0, open_adverb=0, open_clause=0
    )
    assert share(only_questions, lambda p: p.target.startswith("Ka ")) == 1
    deep = sample(depth=3, nested=100, subordinate=100, room=99, open_clause=0)
    assert share(deep, lambda p: p.source.count(",") == 3) == 1
    few, many = (
        {word for pair in sample(**sizes) for word in word_parts(pair)}
        for sizes in ({"nouns": 12, "modifiers": 6}, {"nouns": 90, "modifiers": 60})
    )
    assert len(few) + 80 < len(many)


def test_lexicons() -> None:
    settings = ToySettings()
    assert settings.nouns * settings.modifiers > 3000
    words = {w for p in ToyGrammar(1).sample(12_000) for w in p.source_words if LINK in w}
    assert len(words) > 2000
    nouns = build_lexicon(ToySettings(), 1).nouns[0]
    counts = Counter(nouns.at(i / 10_000).source[0] for i in range(10_000))
    ranked = [counts[noun.source[0]] for noun in nouns.items]
    assert ranked == sorted(ranked, reverse=True)
    # Weights 1 / (rank + 5): the first of 24 nouns is 29 / 6 times as frequent as the last.
    assert ranked[0] / ranked[-1] == pytest.approx(29 / 6, rel=0.05)
    meanings: dict[str, set[str]] = defaultdict(set)
    lexicon = ToyGrammar(1).lexicon
    for _, separable in lexicon.verbs:
        for entry in separable.items:
            meanings[entry.infinitive] |= {r.infinitive for r in entry.readings.items}
            assert len(entry.readings.items) == len(meanings[entry.infinitive]) >= 2
    assert len(meanings) > 5


def test_bad_settings_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        ToySettings(nouns=3, plural=101, transitive=80, ditransitive=30)
    assert len(caught.value.faults) == 4  # also more modifiers than nouns
    with pytest.raises(ConfigError, match="open_object"):
        ToySettings(transitive=0)
    with pytest.raises(ConfigError, match="open_"):
        ToySettings(open_subject=0, open_object=0, open_adverb=0, open_verb=0, open_clause=0)
    with pytest.raises(ConfigError, match="no difficulty 4"):
        ToyGrammar(1, 4)


# -- splits and determinism


def test_splits_are_disjoint_and_every_word_was_seen() -> None:
    splits = toy_splits(4000, seed=3, valid=150, test=250)
    assert {name: len(pairs) for name, pairs in splits.items()} == {
        "train": 4000,
        "valid": 150,
        "test": 250,
    }
    assert list(splits) == ["train", "valid", "test"]
    for side in ("source", "target"):
        texts = {name: {getattr(p, side) for p in pairs} for name, pairs in splits.items()}
        assert not texts["train"] & (texts["valid"] | texts["test"])
        assert not texts["valid"] & texts["test"]
    for pairs in splits.values():
        assert len({pair.source for pair in pairs}) == len(pairs)
    known = {part for pair in splits["train"] for part in word_parts(pair)}
    for name in ("valid", "test"):
        assert all(word_parts(pair) <= known for pair in splits[name])
    compounds = {w.lower() for p in splits["train"] for w in p.source_words if LINK in w}
    new = [
        w
        for p in splits["test"]
        for w in p.source_words
        if LINK in w and w.lower() not in compounds
    ]
    assert len(new) > 10


def test_test_set_does_not_depend_on_the_size_of_train() -> None:
    first, second = toy_splits(5000), toy_splits(6000)
    assert first["test"] == second["test"]
    assert first["valid"] == second["valid"]
    assert first["train"] == second["train"][:5000]


def test_small_and_empty_splits() -> None:
    splits = toy_splits(20, valid=5, test=0)
    assert [len(pairs) for pairs in splits.values()] == [20, 5, 0]
    assert toy_splits(0, valid=0, test=0) == {"train": [], "valid": [], "test": []}
    with pytest.raises(ConfigError, match="`valid` must not be negative, but is -1"):
        toy_splits(10, valid=-1)
    tiny = replace(BARE, nouns=6, modifiers=1, transitive=0, separable=0)
    with pytest.raises(ConfigError, match="200 different sentences"):
        toy_splits(0, settings=tiny)


def test_seeds_streams_and_calls() -> None:
    first = ToyGrammar(7).sample(50)
    assert ToyGrammar(7).sample(50) == first
    again = ToyGrammar(7)
    assert again.sample(20) + again.sample(30) == first
    assert ToyGrammar(8).sample(50) != first
    other = ToyGrammar(7, stream=1)
    assert other.sample(50) != first
    assert all_words(other.lexicon) == all_words(ToyGrammar(7).lexicon)
    assert all_words(ToyGrammar(8).lexicon) != all_words(other.lexicon)
    code = (
        "from nmtgrid.data.toy.corpus import toy_splits\n"
        "import hashlib\n"
        "print(hashlib.sha256(repr(toy_splits(300, 2, 3)).encode()).hexdigest())"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        digests.add(result.stdout)
    assert len(digests) == 1


def all_words(lexicon: Lexicon) -> set[str]:
    return {form for side in ("source", "target") for form in all_forms(lexicon, side)}
