"""The toy languages themselves: well-formed, unambiguous, and in agreement."""

from collections import Counter

import pytest

from nmtgrid.data.toy.corpus import ToyGrammar
from nmtgrid.data.toy.language import LINK, Rules
from nmtgrid.text.moses import Moses
from tests.unit.data.toy_languages import (
    LANGUAGES,
    all_forms,
    all_verbs,
    target_kinds,
    tiny_lexicon,
    whole_language,
)

# -- the languages


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_pairs_are_well_formed(difficulty: int) -> None:
    for pair in ToyGrammar(2, difficulty).sample(3000):
        source, target = pair.source_words, pair.target_words
        assert len(pair.reads) == len(target)
        assert list(pair.reads) == sorted(pair.reads)
        assert pair.reads[0] >= 1
        assert pair.reads[-1] == len(source)
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


def test_source_words_agree() -> None:
    grammar = ToyGrammar(6, 2)
    lexicon = grammar.lexicon
    columns: dict[str, tuple[str, int]] = {}
    for entry in lexicon.determiners.items:
        columns |= {form: ("before", index % 4) for index, form in enumerate(entry.source)}
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
    numbers = {
        reading.prefix + form: number
        for verb in all_verbs(grammar.lexicon)
        for reading in verb.readings.items
        for number, form in enumerate(verb.finite)
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
