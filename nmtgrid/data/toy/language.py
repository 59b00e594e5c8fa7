"""Invents the words of the toy languages from a seed: stems, inflections and who agrees how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from nmtgrid.data.toy.toy_settings import ToySettings
from nmtgrid.data.toy.toy_words import (
    Adjective,
    Choice,
    Determiner,
    Lexicon,
    Noun,
    Reading,
    Verb,
    Word,
)

# The letter s joins compounds and occurs nowhere else in qa, so every compound has one reading.
LINK = "s"

_SOURCE_SOUNDS = (
    ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "t", "v", "w", "br", "gr", "kl", "tr"),
    ("a", "e", "i", "o", "u", "au", "ei"),
    ("l", "m", "n", "r", "k", "t", "nd", "rk", "lt"),
)
_TARGET_SOUNDS = (
    ("b", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v", "z", "kr", "pr", "st"),
    ("a", "e", "i", "o", "u", "ia"),
    ("l", "m", "n", "r", "s", "t", "v", "nt", "rd"),
)

_CASE_ENDINGS = (("er", "ea", "ot", "i"), ("en", "ean", "on", "in"), ("em", "eam", "om", "im"))
_SOURCE_PLURALS = ("en", "ar", "u")
_AGREEMENT_ENDINGS = ("o", "i", "a", "e")
_VERB_ENDINGS = ("av", "avi", "ev", "evi")
_DETERMINERS = (("d", "l"), ("un", "ek"), ("jen", "kest"))
_PREFIXES = ("ab", "uf", "vor", "mit", "zu", "hin")
_SINGULAR_PRONOUNS = (
    Word("ik", "mi", 0),
    Word("du", "tu", 0),
    Word("er", "il", 0),
    Word("fi", "ela", 1),
)
_PLURAL_PRONOUNS = (Word("wir", "nos", 0), Word("ei", "lur", 0), Word("ihr", "vos", 1))
QUESTION, RECIPIENT = "ka", "ad"


class _Words:
    """Draws new stems: no form of a language may ever equal another form of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random
        pronouns = (*_SINGULAR_PRONOUNS, *_PLURAL_PRONOUNS)
        self.taken: tuple[set[str], set[str]] = (
            {word.source for word in pronouns} | set(_PREFIXES),
            {word.target for word in pronouns} | {QUESTION, RECIPIENT},
        )
        for source, target in _DETERMINERS:
            self.taken[0].update(source + ending for row in _CASE_ENDINGS for ending in row)
            self.taken[1].update(target + ending for ending in _AGREEMENT_ENDINGS)

    def source(self, forms: Callable[[str], Sequence[str]], syllables: int = 2) -> tuple[str, ...]:
        return self._new(0, forms, syllables)

    def target(self, forms: Callable[[str], Sequence[str]], syllables: int = 2) -> tuple[str, ...]:
        return self._new(1, forms, syllables)

    def _new(
        self, side: int, forms: Callable[[str], Sequence[str]], syllables: int
    ) -> tuple[str, ...]:
        taken = self.taken[side]
        while True:
            made = tuple(forms(self._stem(_TARGET_SOUNDS if side else _SOURCE_SOUNDS, syllables)))
            if len(set(made)) == len(made) and taken.isdisjoint(made):
                taken.update(made)
                return made

    def _stem(self, sounds: tuple[tuple[str, ...], ...], syllables: int) -> str:
        onsets, vowels, codas = sounds
        inner = "".join(self._of(onsets[:14]) + self._of(vowels[:5]) for _ in range(syllables - 1))
        return inner + self._of(onsets) + self._of(vowels) + self._of(codas)

    def _of(self, items: Sequence[str]) -> str:
        return items[int(self.random() * len(items))]


def _endings(*endings: str) -> Callable[[str], tuple[str, ...]]:
    return lambda stem: tuple(stem + ending for ending in endings)


def _determiners() -> Choice[Determiner]:
    made = [
        Determiner(
            tuple(tuple(source + ending for ending in row) for row in _CASE_ENDINGS),
            tuple(target + ending for ending in _AGREEMENT_ENDINGS),
        )
        for source, target in _DETERMINERS
    ]
    return Choice(made, (5, 3, 2))


def _noun(words: _Words, gender: int, target_gender: int) -> Noun:
    singular, plural, joint = words.source(_endings("", _SOURCE_PLURALS[gender], LINK))
    target, targets, genitive = words.target(_endings("", "im", "ur"))
    return Noun((singular, plural), joint, (target, targets), genitive, target_gender)


def _adjective(words: _Words) -> Adjective:
    return Adjective(
        words.source(_endings(*_CASE_ENDINGS[0]), 1), words.target(_endings(*_AGREEMENT_ENDINGS), 1)
    )


def _reading(words: _Words, prefix: str) -> Reading:
    *target, infinitive = words.target(_endings(*_VERB_ENDINGS, "ar"))
    return Reading(prefix, tuple(target), infinitive)


def _verb(words: _Words, prefixes: Sequence[str]) -> Verb:
    """Return a verb; the forms with its prefixes (as at the end of a clause) are its own too."""

    def forms(stem: str) -> list[str]:
        return [p + stem + ending for p in ("", *prefixes) for ending in ("et", "ont", "ir")]

    singular, plural, infinitive, *_ = words.source(forms, 1)
    readings = [_reading(words, prefix) for prefix in ("", *prefixes)]
    return Verb((singular, plural), infinitive, Choice(readings))


def _verbs(words: _Words, count: int) -> tuple[tuple[Choice[Verb], Choice[Verb]], ...]:
    """Return `count` stems: intransitive, transitive, ditransitive; half of each separable."""
    sizes = (3 * count // 8, count - 3 * count // 8 - count // 6, count // 6)
    return tuple(
        (
            Choice.zipfian(_verb(words, ()) for _ in range(size - size // 2)),
            Choice.zipfian(_verb(words, _some_prefixes(words)) for _ in range(size // 2)),
        )
        for size in sizes
    )


def _some_prefixes(words: _Words) -> list[str]:
    """Return one or two prefixes, so that a separable stem has two or three readings."""
    first, further = (int(words.random() * n) for n in (len(_PREFIXES), len(_PREFIXES)))
    return [_PREFIXES[index] for index in sorted({first, further})]


def _plain(words: _Words, count: int, syllables: int) -> Choice[Word]:
    pairs = (
        (words.source(_endings(""), syllables)[0], words.target(_endings(""), syllables)[0])
        for _ in range(count)
    )
    return Choice.zipfian(Word(source, target) for source, target in pairs)


def _names(words: _Words, count: int) -> Choice[Word]:
    """Return names, which both languages write alike and with a capital."""
    made = []
    for index in range(count):
        ending = "ao"[index % 2]
        name = words.source(_endings(ending))[0].capitalize()
        made.append(Word(name, name, 1 - index % 2))
    return Choice.zipfian(made)


def build_lexicon(settings: ToySettings, seed: int) -> Lexicon:
    """Return the lexicon of the toy languages that belongs to `seed`."""
    words = _Words(seed)
    # All pairs of genders occur: a source gender never tells the target gender.
    nouns = [_noun(words, index % 3, index // 3 % 2) for index in range(settings.nouns)]
    return Lexicon(
        _determiners(),
        Choice.zipfian(_adjective(words) for _ in range(settings.adjectives)),
        tuple(Choice.zipfian(nouns[gender::3]) for gender in range(3)),
        Choice.zipfian(nouns[: settings.modifiers]),
        _names(words, settings.names),
        (Choice(_SINGULAR_PRONOUNS), Choice(_PLURAL_PRONOUNS)),
        _verbs(words, settings.verbs),
        Choice.zipfian(_verb(words, ()) for _ in range(settings.modals)),
        _plain(words, settings.adverbs, 2),
        _plain(words, settings.prepositions, 1),
        _plain(words, settings.complementizers, 1),
        QUESTION,
        RECIPIENT,
    )
