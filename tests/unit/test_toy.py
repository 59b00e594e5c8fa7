"""The toy corpus against brute force: whole small languages are written out and compared."""

from __future__ import annotations

import os
import subprocess
import sys
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.toy import (
    ToyGrammar,
    ToyPair,
    ToySettings,
    average_lagging,
    least_average_lagging,
    smallest_wait_k,
    toy_splits,
    word_parts,
)
from nmtgrid.data.toy_grammar import write_pair
from nmtgrid.data.toy_lexicon import LINK, build_lexicon
from nmtgrid.data.toy_phrases import Rules
from nmtgrid.data.toy_words import (
    Adjective,
    Choice,
    Determiner,
    Item,
    Lexicon,
    Noun,
    Reading,
    Verb,
    Word,
)
from nmtgrid.text.moses import Moses

# -- a language small enough to be written out whole


class EveryWay:
    """Takes every decision every way, one after the other."""

    def __init__(self) -> None:
        self.plan: list[int] = []
        self.widths: list[int] = []

    def _decide(self, width: int) -> int:
        place = len(self.widths)
        self.widths.append(width)
        if place == len(self.plan):
            self.plan.append(0)
        return self.plan[place]

    def pick(self, choice: Choice[Item]) -> Item:
        return choice.items[self._decide(len(choice.items))]

    def chance(self, percent: int) -> bool:
        return percent == 100 or (percent > 0 and bool(self._decide(2)))

    def advance(self) -> bool:
        """Move to the next combination; return False after the last."""
        while self.plan and self.plan[-1] + 1 == self.widths[len(self.plan) - 1]:
            self.plan.pop()
        self.widths = []
        if self.plan:
            self.plan[-1] += 1
        return bool(self.plan)


def whole_language(rules: Rules) -> Iterator[ToyPair]:
    chooser = EveryWay()
    while True:
        yield write_pair(rules, chooser)
        if not chooser.advance():
            return


def forms(stem: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}{letter}" for letter in "abcd"[:count])


def plain(*words: str) -> Choice[Word]:
    return Choice([Word(word, word.upper().lower() + "q") for word in words])


def verb(name: str, *prefixes: str) -> Verb:
    readings = [Reading(p, forms(f"{p}{name}x", 4), f"{p}{name}y") for p in ("", *prefixes)]
    return Verb((f"{name}e", f"{name}u"), f"{name}ir", Choice(readings))


def tiny_lexicon(plain_verbs: int = 1) -> Lexicon:
    """One source gender with a noun of each target gender, and two of whatever must differ."""
    nouns = [
        Noun((f"n{i}", f"n{i}en"), f"n{i}s", (f"N{i}", f"N{i}im"), f"N{i}ur", i) for i in range(2)
    ]
    kinds = ("i", "t", "d")
    return Lexicon(
        determiners=Choice(
            [Determiner(tuple(forms(case, 2) for case in ("no", "ac", "da")), forms("D", 4))]
        ),
        adjectives=Choice([Adjective(forms("adj", 2), forms("ADJ", 4))]),
        nouns=(Choice(nouns),),
        modifiers=Choice(nouns),
        names=Choice([Word("Tano", "Tano", 0)]),
        pronouns=(Choice([Word("ik", "mi", 0)]), Choice([Word("wir", "nos", 1)])),
        verbs=tuple(
            (
                Choice([verb(kind + letter) for letter in "po"[:plain_verbs]]),
                Choice([verb(f"{kind}z", "ab")]),
            )
            for kind in kinds
        ),
        modals=Choice([verb("moda"), verb("modo")]),
        adverbs=plain("heute", "gern"),
        prepositions=plain("in", "mit"),
        complementizers=plain("dat", "ob"),
        question="ka",
        recipient="ad",
    )


BARE = ToySettings(
    plural=0,
    pronoun=0,
    name=0,
    adjective=0,
    compound=0,
    adverb=0,
    place=0,
    transitive=50,
    separable=50,
    open_subject=1,
    open_object=0,
    open_adverb=0,
    open_verb=0,
    open_clause=0,
    subordinate=0,
    depth=0,
    room=99,
)
EVERY_OPENING = {"open_object": 1, "open_adverb": 1, "open_verb": 1}
CLAUSES = {"subordinate": 50, "open_clause": 1, "depth": 1}

LANGUAGES = {
    "subjects": replace(BARE, plural=50, pronoun=50, name=50, adjective=50, **EVERY_OPENING),
    "compounds": replace(BARE, plural=50, adjective=50, compound=50, second_adjective=50),
    "triple": replace(BARE, plural=50, compound=50, triple_compound=50, open_object=1),
    "places": replace(BARE, plural=50, adverb=50, place=50, **EVERY_OPENING),
    "recipients": replace(BARE, ditransitive=25, plural=50, adverb=50, **EVERY_OPENING),
    "modals": replace(BARE, ditransitive=25, modal=50, adverb=50, place=50, **EVERY_OPENING),
    "no prefixes": replace(BARE, separable=0, modal=50, adverb=50, place=50, **EVERY_OPENING),
    "prefixes": replace(BARE, separable=100, adverb=50, open_object=1, **CLAUSES),
    "clauses": replace(BARE, adverb=50, **CLAUSES),
    "clauses and places": replace(
        BARE, transitive=100, place=50, open_object=1, **{**CLAUSES, "subordinate": 0}
    ),
    "nested": replace(BARE, transitive=0, place=50, nested=50, room=7, **{**CLAUSES, "depth": 2}),
    "nested thrice": replace(
        BARE, separable=0, nested=50, transitive=0, open_subject=0, **{**CLAUSES, "depth": 3}
    ),
    "always nested": replace(BARE, transitive=0, pronoun=50, nested=100, **{**CLAUSES, "depth": 2}),
    "little room": replace(
        BARE,
        transitive=0,
        adverb=50,
        place=50,
        nested=50,
        open_adverb=1,
        room=4,
        **{**CLAUSES, "depth": 2},
    ),
    "always an adverb": replace(
        BARE, transitive=0, adverb=100, place=50, **{**CLAUSES, "subordinate": 0}
    ),
    "always a place": replace(BARE, adverb=50, place=100, open_object=1),
}


def shared(first: list[str], second: list[str]) -> int:
    """Return how many words two sentences start with in common."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def least_reads(pairs: list[ToyPair]) -> list[tuple[int, ...]]:
    """Return by brute force, for each pair, the reads that its language asks for.

    After j source words, what is settled is what the translations of all sentences that start
    with these words have in common.
    """
    settled: dict[tuple[str, ...], list[str]] = {}
    sides = [(tuple(pair.source_words), pair.target_words) for pair in pairs]
    for source, target in sides:
        for j in range(1, len(source) + 1):
            common = settled.setdefault(source[:j], target)
            if common != target:
                settled[source[:j]] = common[: shared(common, target)]
    found = []
    for source, target in sides:
        sure = [len(settled[source[:j]]) for j in range(1, len(source) + 1)]
        # Reading on never unsettles a word: bisection finds the first j that settles word t.
        found.append(tuple(bisect(sure, t) + 1 for t in range(len(target))))
    return found


@pytest.mark.parametrize("name", LANGUAGES)
def test_reads_are_sound_and_least_in_whole_languages(name: str) -> None:
    settings = LANGUAGES[name]
    lexicon = tiny_lexicon(plain_verbs=1 if settings.separable else 2)
    pairs = list(whole_language(Rules(lexicon, settings)))
    assert len(pairs) > 100
    for pair, expected in zip(pairs, least_reads(pairs), strict=True):
        assert pair.reads == expected, pair


def test_brute_force_and_reads_of_one_sentence_by_hand() -> None:
    settings = replace(BARE, separable=100)
    pairs = list(whole_language(Rules(tiny_lexicon(), settings)))
    place = [p.source for p in pairs].index("Noa n0 tze aca n1 ab.")
    # The determiner waits for its noun; verb, and so all behind it, for the prefix, word 6 of 7.
    expected = (2, 2, 6, 6, 6, 7)
    assert least_reads(pairs)[place] == pairs[place].reads == expected
    assert pairs[place].target == "Da N0 abtzxa Dc N1."


# -- the real grammar: sentences that share a beginning


class Replay:
    """Repeats the first decisions of a sentence and takes the others by chance."""

    def __init__(self, dice: Random, kept: list[object]) -> None:
        self.dice, self.kept, self.made = dice, kept, list[object]()

    def _decide(self, decision: Callable[[], object]) -> object:
        place = len(self.made)
        self.made.append(self.kept[place] if place < len(self.kept) else decision())
        return self.made[-1]

    def pick(self, choice: Choice[Item]) -> Item:
        return self._decide(lambda: choice.at(self.dice.random()))  # type: ignore[return-value]

    def chance(self, percent: int) -> bool:
        # Even odds for all that may happen, so that rare continuations are found too.
        rule = percent if percent in (0, 100) else 50
        return bool(self._decide(lambda: self.dice.random() * 100 < rule))


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_reads_are_sound_and_least_for_other_endings_of_real_sentences(difficulty: int) -> None:
    grammar = ToyGrammar(4, difficulty)
    rules, dice = Rules(grammar.lexicon, grammar.settings), Random(difficulty)
    places = least = 0
    for _ in range(40):
        chooser = Replay(dice, [])
        pair = write_pair(rules, chooser)
        source, target = pair.source_words, pair.target_words
        unsettled = [0] * len(target)  # the longest shared beginning that misleads
        for cut in range(len(chooser.made)):
            for _ in range(16):
                other = write_pair(rules, Replay(dice, chooser.made[:cut]))
                j = shared(source, other.source_words)
                sure = shared(target, other.target_words)
                for t in range(sure, len(target)):
                    unsettled[t] = max(unsettled[t], j)
        assert all(j < read for j, read in zip(unsettled, pair.reads, strict=True)), pair
        places += len(target)
        least += sum(j == read - 1 for j, read in zip(unsettled, pair.reads, strict=True))
    assert least >= 0.99 * places


# -- records


def pair_with(reads: tuple[int, ...], links: tuple[tuple[int, int], ...] = ()) -> ToyPair:
    return ToyPair("a b c.", "A b c.", reads, links)


def test_smallest_wait_k_covers_the_reads_and_no_smaller_one_does() -> None:
    assert smallest_wait_k(pair_with((1, 2, 3, 4))) == 1
    assert smallest_wait_k(pair_with((1, 4, 4, 4))) == 3
    assert smallest_wait_k(pair_with((1, 1, 1, 4))) == 1
    for pair in ToyGrammar(3, 3).sample(300):
        k, length = smallest_wait_k(pair), pair.source_length

        def covers(k: int, pair: ToyPair = pair, length: int = length) -> bool:
            return all(min(k + t, length) >= read for t, read in enumerate(pair.reads))

        assert covers(k)
        assert k == 1 or not covers(k - 1)


def test_average_lagging_by_hand() -> None:
    # |x| = |y| = 4: wait-1 lags by 1; reading all first by 4; tau = 2 stops the sum below.
    assert average_lagging((1, 2, 3, 4), 4) == 1.0
    assert average_lagging((4, 4, 4, 4), 4) == 4.0
    assert average_lagging((1, 4, 4, 4), 4) == (1 + 3) / 2
    assert average_lagging((2, 4), 4) == (2 + (4 - 2)) / 2
    assert average_lagging((1, 1), 4) == (1 + (1 - 2)) / 2  # never reads all: tau = |y|


def test_least_average_lagging_is_least_over_all_sufficient_paths() -> None:
    for reads in ((1, 1, 1, 4, 4, 5), (2, 3, 3, 5), (1, 1, 1, 1, 1, 1, 5), (5, 5), (1, 1, 4, 5)):
        length = reads[-1]
        paths = product(*(range(read, length + 1) for read in reads))
        rising = (path for path in paths if list(path) == sorted(path))
        expected = min(average_lagging(path, length) for path in rising)
        assert least_average_lagging(pair_with(reads)) == pytest.approx(expected)


def test_is_reordered_is_a_crossing_of_links() -> None:
    assert not pair_with((1, 2), ((0, 0), (1, 1))).is_reordered
    assert not pair_with((1, 1), ((0, 0), (1, 0))).is_reordered
    assert not pair_with((2, 2), ((0, 0), (0, 1), (1, 1))).is_reordered
    assert pair_with((2, 2), ((0, 1), (1, 0))).is_reordered
    assert pair_with((3, 3), ((0, 0), (0, 2), (1, 1))).is_reordered


# -- the languages


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_pairs_are_well_formed(difficulty: int) -> None:
    for pair in ToyGrammar(2, difficulty).sample(3000):
        source, target = pair.source_words, pair.target_words
        assert len(pair.reads) == len(target)
        assert list(pair.reads) == sorted(pair.reads)
        assert pair.reads[0] >= 1
        assert pair.reads[-1] == pair.source_length == len(source)
        assert list(pair.links) == sorted(set(pair.links))
        assert {t for t, _ in pair.links} == set(range(len(target)))
        linked = {s for _, s in pair.links}
        assert all(s in linked or source[s] == "," for s in range(len(source)))
        # Only the comma after a clause that must end, and the recipient's preposition after a
        # verb that must have one, may be written before their source words are read.
        early = {t for t, s in pair.links if s >= pair.reads[t]}
        assert {target[t] for t in early} <= {",", "ad"}
        for text in (pair.source, pair.target):
            assert text[0].isupper() and text[-1] in ".!?"
            assert text.isascii() and "  " not in text and " ," not in text


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_moses_makes_the_words_and_takes_them_apart_again(difficulty: int) -> None:
    moses = {side: Moses(side) for side in ("qa", "qb")}
    for pair in ToyGrammar(2, difficulty).sample(500):
        assert moses["qa"].tokenize(pair.source).split() == pair.source_words
        assert moses["qb"].tokenize(pair.target).split() == pair.target_words
        assert moses["qb"].detokenize(" ".join(pair.target_words)) == pair.target


def test_one_source_has_one_target() -> None:
    for settings in (LANGUAGES["subjects"], LANGUAGES["always nested"]):
        targets: dict[str, str] = {}
        for pair in whole_language(Rules(tiny_lexicon(), settings)):
            assert targets.setdefault(pair.source, pair.target) == pair.target
    targets = {}
    for pair in ToyGrammar(5, 1).sample(10_000):
        assert targets.setdefault(pair.source, pair.target) == pair.target


@pytest.mark.parametrize("difficulty", [1, 2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_two_forms_are_written_alike(seed: int, difficulty: int) -> None:
    lexicon = ToyGrammar(seed, difficulty).lexicon
    forms = {side: Counter(all_forms(lexicon, side)) for side in ("source", "target")}
    for count in forms.values():
        assert max(count.values()) == 1
    assert not any(LINK in form for form in forms["source"])


def all_forms(lexicon: Lexicon, side: str) -> Iterator[str]:
    words = (*lexicon.adverbs.items, *lexicon.prepositions.items, *lexicon.complementizers.items)
    people = (*lexicon.names.items, *lexicon.pronouns[0].items, *lexicon.pronouns[1].items)
    yield from (getattr(word, side).lower() for word in (*words, *people))
    nouns = [noun for choice in lexicon.nouns for noun in choice.items]
    yield from (form for noun in nouns for form in getattr(noun, side))
    yield from (form for a in lexicon.adjectives.items for form in getattr(a, side))
    verbs = [v for pair in lexicon.verbs for choice in pair for v in choice.items]
    verbs += lexicon.modals.items
    if side == "source":
        yield from (f for d in lexicon.determiners.items for row in d.source for f in row)
        yield from (
            reading.prefix + form
            for v in verbs
            for reading in v.readings.items
            for form in (*v.finite, v.infinitive)
        )
        yield from {r.prefix for v in verbs for r in v.readings.items if r.prefix}
    else:
        yield from (form for d in lexicon.determiners.items for form in d.target)
        yield from (noun.genitive for noun in nouns)
        yield from (f for v in verbs for r in v.readings.items for f in (*r.target, r.infinitive))
        yield from (lexicon.question, lexicon.recipient)


# -- agreement


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_target_words_agree(difficulty: int) -> None:
    grammar = ToyGrammar(6, difficulty)
    kinds = target_kinds(grammar.lexicon)
    seen: Counter[str] = Counter()
    for pair in grammar.sample(2000):
        determiner = head = None
        for word in pair.target_words:
            kind, agreement = kinds.get(word.lower(), ("", None))
            seen[kind] += 1
            if kind == "determiner":
                determiner = agreement
            elif kind == "noun":
                # Its determiner stands right before a noun, and every noun has one.
                assert agreement == determiner, pair
                head, determiner = agreement, None
            elif kind == "person":
                head = agreement
            elif kind in ("adjective", "verb"):
                # In every clause the subject stands right before its verb.
                assert agreement == head, pair
    assert min(seen[kind] for kind in ("noun", "person", "adjective", "verb")) > 100


def target_kinds(lexicon: Lexicon) -> dict[str, tuple[str, int]]:
    kinds: dict[str, tuple[str, int]] = {}
    for number, people in enumerate(lexicon.pronouns):
        kinds |= {p.target: ("person", 2 * p.gender + number) for p in people.items}
    kinds |= {p.target.lower(): ("person", 2 * p.gender) for p in lexicon.names.items}
    for noun in (noun for choice in lexicon.nouns for noun in choice.items):
        kinds |= {f: ("noun", 2 * noun.target_gender + n) for n, f in enumerate(noun.target)}
    verbs = [v for pair in lexicon.verbs for choice in pair for v in choice.items]
    readings = [r for v in (*verbs, *lexicon.modals.items) for r in v.readings.items]
    for kind, entries in (
        ("determiner", lexicon.determiners.items),
        ("adjective", lexicon.adjectives.items),
        ("verb", readings),
    ):
        for entry in entries:
            kinds |= {f: (kind, i) for i, f in enumerate(entry.target)}
    return kinds


def test_source_words_agree() -> None:
    grammar = ToyGrammar(6, 2)
    lexicon = grammar.lexicon
    columns: dict[str, tuple[str, int]] = {}
    for entry in lexicon.determiners.items:
        for row in entry.source:
            columns |= {form: ("before", column) for column, form in enumerate(row)}
    for adjective in lexicon.adjectives.items:
        columns |= {form: ("before", column) for column, form in enumerate(adjective.source)}
    for gender, nouns in enumerate(lexicon.nouns):
        for noun in nouns.items:
            columns |= {noun.source[0]: ("noun", gender), noun.source[1]: ("noun", 3)}
    nouns_seen = 0
    for pair in grammar.sample(2000):
        pending: list[int] = []
        for word in pair.source_words:
            kind, column = columns.get(word.lower().rsplit(LINK)[-1], ("", 0))
            if kind == "before":
                pending.append(column)
            elif kind == "noun":
                assert pending and set(pending) == {column}, pair
                pending, nouns_seen = [], nouns_seen + 1
    assert nouns_seen > 1000


def test_finite_verbs_have_the_number_of_their_subject_on_both_sides() -> None:
    grammar = ToyGrammar(6, 2)
    kinds = target_kinds(grammar.lexicon)
    verbs = [v for pair in grammar.lexicon.verbs for choice in pair for v in choice.items]
    verbs += grammar.lexicon.modals.items
    numbers = {
        reading.prefix + form: number
        for v in verbs
        for reading in v.readings.items
        for number, form in enumerate(v.finite)
    }
    checked = 0
    for pair in grammar.sample(2000):
        source = [word.lower() for word in pair.source_words]
        first_links = dict(reversed(pair.links))
        for t, word in enumerate(pair.target_words):
            kind, agreement = kinds.get(word.lower(), ("", 0))
            if kind == "verb":
                assert numbers[source[first_links[t]]] == agreement % 2
                checked += 1
    assert checked > 2000


# -- settings and distribution


def share(pairs: list[ToyPair], holds: Callable[[ToyPair], bool]) -> float:
    return sum(map(holds, pairs)) / len(pairs)


def has_compound(pair: ToyPair) -> bool:
    return any(LINK in word for word in pair.source_words)


def is_split(pair: ToyPair) -> bool:
    """Whether one target word stands for two source words: a verb and its prefix."""
    count = Counter(t for t, _ in pair.links)
    return max(count.values()) == 2


def test_difficulty_1_has_all_phenomena_and_short_sentences() -> None:
    pairs = ToyGrammar(1, 1).sample(5000)
    mean = sum(p.source_length for p in pairs) / len(pairs)
    assert 8 <= mean <= 12
    assert max(p.source_length for p in pairs) <= 25
    assert share(pairs, lambda p: p.is_reordered) > 0.6
    assert share(pairs, has_compound) > 0.2
    assert share(pairs, is_split) > 0.1
    assert share(pairs, lambda p: "," in p.source) > 0.3
    assert share(pairs, lambda p: smallest_wait_k(p) > 3) > 0.3


def test_harder_is_longer_and_waits_longer() -> None:
    means = []
    for difficulty in (1, 2, 3):
        pairs = ToyGrammar(1, difficulty).sample(3000)
        lengths = sum(p.source_length for p in pairs) / len(pairs)
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


def test_thousands_of_compounds_are_possible() -> None:
    settings = ToySettings()
    assert settings.nouns * settings.modifiers > 3000
    words = {w for p in ToyGrammar(1).sample(12_000) for w in p.source_words if LINK in w}
    assert len(words) > 2000


def test_lexicon_is_zipfian() -> None:
    nouns = build_lexicon(ToySettings(), 1).nouns[0]
    counts = Counter(nouns.at(i / 10_000).source[0] for i in range(10_000))
    ranked = [counts[noun.source[0]] for noun in nouns.items]
    assert ranked == sorted(ranked, reverse=True)
    # Weights 1 / (rank + 5): the first of 24 nouns is 29 / 6 times as frequent as the last.
    assert ranked[0] / ranked[-1] == pytest.approx(29 / 6, rel=0.05)


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


def test_a_language_with_too_few_sentences_says_so() -> None:
    tiny = replace(BARE, nouns=6, modifiers=1, transitive=0, separable=0)
    with pytest.raises(ConfigError, match="no 200 different sentences"):
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


def all_words(lexicon: Lexicon) -> set[str]:
    return {form for side in ("source", "target") for form in all_forms(lexicon, side)}


def test_hash_seeds_change_nothing() -> None:
    code = (
        "from nmtgrid.data.toy import toy_splits\n"
        "import hashlib\n"
        "print(hashlib.sha256(repr(toy_splits(300, 2, 3)).encode()).hexdigest())"
    )
    made = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        made.add(result.stdout)
    assert len(made) == 1


def test_verbs_mean_something_else_with_each_prefix() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    lexicon = ToyGrammar(1).lexicon
    for _, separable in lexicon.verbs:
        for entry in separable.items:
            meanings[entry.infinitive] |= {r.infinitive for r in entry.readings.items}
            assert len(entry.readings.items) == len(meanings[entry.infinitive]) >= 2
    assert len(meanings) > 5
