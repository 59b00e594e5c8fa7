"""Phrases of the toy grammar: determiner, adjectives and noun, with agreement on both sides.

Source (qa): adjectives before the noun, compounds one word, case on the determiner.
Target (qb): the noun, its compound's modifiers, adjectives; the last written comes first.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

from nmtgrid.base.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class ToySettings:
    """The size of the toy lexicon (in lexemes) and the frequency of each rule (in per cent).

    `modifiers` of the nouns also form compounds, so `nouns * modifiers` compounds exist, and
    `triple_compound` of the compounds have a second modifier. `open_*` are the relative
    frequencies of what stands before the finite verb of the main clause: its subject, its object,
    an adverb, nothing (a question) or a subordinate clause. `depth` is the number of subordinate
    clauses that one sentence may hold. `room` bounds sentences softly: nothing optional begins
    behind the `room`-th source word.

    Raises: ConfigError if a number is out of its range, naming all that are.
    """

    nouns: int = 72
    modifiers: int = 48
    adjectives: int = 18
    verbs: int = 24
    names: int = 8
    adverbs: int = 8
    prepositions: int = 4
    complementizers: int = 3
    modals: int = 3

    plural: int = 30
    pronoun: int = 30
    name: int = 15
    adjective: int = 25
    second_adjective: int = 0
    compound: int = 20
    triple_compound: int = 0
    adverb: int = 25
    place: int = 20
    transitive: int = 60
    ditransitive: int = 0
    separable: int = 40
    modal: int = 0

    open_subject: int = 55
    open_object: int = 10
    open_adverb: int = 12
    open_verb: int = 8
    open_clause: int = 15
    subordinate: int = 30
    nested: int = 0
    depth: int = 1
    room: int = 11

    def __post_init__(self) -> None:
        faults = [*_too_small(self), *_no_percentage(self)]
        if self.modifiers > self.nouns:
            faults.append(f"`modifiers` is {self.modifiers}, more than the {self.nouns} nouns.")
        if self.transitive + self.ditransitive > 100:
            faults.append("`transitive` and `ditransitive` add up to more than 100 per cent.")
        if self.open_object and not self.transitive + self.ditransitive:
            faults.append("`open_object` needs `transitive` or `ditransitive` verbs.")
        if not any(getattr(self, f"open_{name}") for name in OPENINGS):
            faults.append("At least one of the `open_*` frequencies must be above 0.")
        if faults:
            raise ConfigError(faults, "Mend these settings of the toy corpus.")


OPENINGS = ("subject", "object", "adverb", "verb", "clause")

# With fewer, a word could be guessed before it is read, and the reads would not be least.
_MINIMA = {
    "nouns": 6,
    "modifiers": 1,
    "adjectives": 2,
    "verbs": 24,
    "names": 2,
    "adverbs": 2,
    "prepositions": 2,
    "complementizers": 2,
    "modals": 2,
    "depth": 0,
    "room": 0,
}


def _too_small(settings: ToySettings) -> list[str]:
    values = {name: getattr(settings, name) for name in _MINIMA}
    return [
        f"`{name}` must be at least {_MINIMA[name]}, but is {value}."
        for name, value in values.items()
        if value < _MINIMA[name]
    ]


def _no_percentage(settings: ToySettings) -> list[str]:
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return [
        f"`{name}` is a percentage, but is {value}."
        for name, value in values.items()
        if name not in _MINIMA and not 0 <= value <= 100
    ]


_HARDER = ToySettings(
    nouns=100,
    modifiers=64,
    adjectives=28,
    verbs=36,
    names=12,
    adverbs=10,
    prepositions=5,
    complementizers=4,
    compound=25,
    ditransitive=12,
    transitive=53,
    separable=50,
    modal=18,
    subordinate=40,
    nested=25,
    depth=2,
    room=13,
)

DIFFICULTIES: dict[int, ToySettings] = {
    1: ToySettings(),
    2: _HARDER,
    3: dataclasses.replace(
        _HARDER,
        nouns=160,
        modifiers=100,
        adjectives=48,
        verbs=60,
        names=20,
        adverbs=16,
        prepositions=7,
        modals=4,
        adjective=35,
        second_adjective=20,
        compound=30,
        triple_compound=15,
        open_clause=20,
        subordinate=50,
        nested=40,
        depth=3,
        room=15,
    ),
}


def settings_for(difficulty: int) -> ToySettings:
    """Return the settings of `difficulty` 1, 2 or 3.

    Raises: ConfigError for any other difficulty.
    """
    if difficulty not in DIFFICULTIES:
        raise ConfigError(f"The toy corpus has no difficulty {difficulty}.", "Choose 1, 2 or 3.")
    return DIFFICULTIES[difficulty]


Item = TypeVar("Item")


class Choice(Generic[Item]):
    """Items with integer weights: sums are exact, so every Python draws the same items."""

    __slots__ = ("cumulative", "items", "total")

    def __init__(self, items: Iterable[Item], weights: Iterable[int] | None = None) -> None:
        self.items = tuple(items)
        chosen = [1] * len(self.items) if weights is None else list(weights)
        self.cumulative = list(accumulate(chosen))
        self.total = self.cumulative[-1] if chosen else 0

    @classmethod
    def zipfian(cls, items: Iterable[Item]) -> Choice[Item]:
        """Return the choice in which an item's weight falls with its rank, as 1 / (rank + 5)."""
        ranked = tuple(items)
        return cls(ranked, [100_000 // (rank + 6) for rank in range(len(ranked))])

    def at(self, fraction: float) -> Item:
        """Return the item that holds the place `fraction`, in [0, 1), of the weights."""
        return self.items[bisect(self.cumulative, int(fraction * self.total))]


class Chooser(Protocol):
    """What decides between the rules of the grammar: chance, or a test that tries them all."""

    def pick(self, choice: Choice[Item], /) -> Item:
        """Return one item."""
        ...

    def chance(self, percent: int, /) -> bool:
        """Return True in `percent` of the cases."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """A word without forms, or a person (name or pronoun), who has a target gender."""

    source: str
    target: str
    gender: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Determiner:
    """Forms: `source[case][column]` and `target[agreement]`."""

    source: tuple[tuple[str, ...], ...]
    target: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Adjective:
    """Forms: `source[column]` (gender, or 3 for the plural) and `target[agreement]`."""

    source: tuple[str, ...]
    target: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Noun:
    """Forms by number; `joint` opens a source compound, `genitive` follows a target noun."""

    source: tuple[str, str]
    joint: str
    target: tuple[str, str]
    genitive: str
    target_gender: int


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a verb means with one prefix ("" for the bare verb): an unrelated target verb."""

    prefix: str
    target: tuple[str, ...]
    infinitive: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verb:
    """A source stem: `finite` forms by number and its readings, several if it is separable."""

    finite: tuple[str, str]
    infinitive: str
    readings: Choice[Reading]


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """All words. `agreement` is 2 * target gender + number; `column` source gender, or plural.

    nouns[source gender], people[number] (pronouns), verbs[valency][is separable].
    """

    determiners: Choice[Determiner]
    adjectives: Choice[Adjective]
    nouns: tuple[Choice[Noun], ...]
    modifiers: Choice[Noun]
    names: Choice[Word]
    pronouns: tuple[Choice[Word], Choice[Word]]
    verbs: tuple[tuple[Choice[Verb], Choice[Verb]], ...]
    modals: Choice[Verb]
    adverbs: Choice[Word]
    prepositions: Choice[Word]
    complementizers: Choice[Word]
    question: str
    recipient: str


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


NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
INTRANSITIVE, TRANSITIVE, DITRANSITIVE = range(3)


class Piece(NamedTuple):
    """A target word, the number of source words it waits for, and the ones it is linked to.

    It waits for its own source words, for those that decide its agreement and, where something
    optional could still stand before it, for the word that shows that nothing does.
    """

    word: str
    waits_for: int
    links: tuple[int, ...]


class Nominal(NamedTuple):
    """A phrase's target side and what agrees with it: 2 * target gender + number."""

    pieces: list[Piece]
    agreement: int


class Rules:
    """The lexicon, the settings and the choices between rules that the settings weigh."""

    def __init__(self, lexicon: Lexicon, settings: ToySettings) -> None:
        self.lexicon, self.settings = lexicon, settings
        weights = [getattr(settings, f"open_{name}") for name in OPENINGS]
        if not settings.depth:
            weights[OPENINGS.index("clause")] = 0
        self.openings = _possible(OPENINGS, weights)
        objects = (settings.transitive, settings.ditransitive)
        self.valencies = _possible(range(3), (100 - sum(objects), *objects))
        self.object_valencies = _possible((TRANSITIVE, DITRANSITIVE), objects)
        self.genders = Choice(range(len(lexicon.nouns)))
        self.statement_marks = Choice((".", "!"), (9, 1))
        self.question_marks = Choice(("?", "!"), (9, 1))


def _possible(items: Sequence[Item], weights: Sequence[int]) -> Choice[Item]:
    kept = [(item, weight) for item, weight in zip(items, weights, strict=True) if weight]
    return Choice([item for item, _ in kept], [weight for _, weight in kept])


class PhraseWriter:
    """Writes the source of one sentence into `words`; its rules return their target side."""

    def __init__(self, rules: Rules, chooser: Chooser) -> None:
        self.rules, self.lexicon, self.settings = rules, rules.lexicon, rules.settings
        self.pick, self.chance = chooser.pick, chooser.chance
        self.words: list[str] = []

    def put(self, word: str) -> int:
        """Write a source word; return its position, from 1."""
        self.words.append(word)
        return len(self.words)

    def has_room(self) -> bool:
        return len(self.words) <= self.settings.room

    def number(self) -> int:
        return int(self.chance(self.settings.plural))

    def word(self, choice: Choice[Word]) -> Piece:
        word = self.pick(choice)
        place = self.put(word.source)
        return Piece(word.target, place, (place,))

    def adverb(self) -> list[Piece]:
        if self.has_room() and self.chance(self.settings.adverb):
            return [self.word(self.lexicon.adverbs)]
        return []

    def place(self) -> tuple[list[Piece], int]:
        """Write a phrase of place or nothing; return also the position that settles which."""
        if not (self.settings.place and self.has_room()):
            return [], 0
        settled = len(self.words) + 1
        if not self.chance(self.settings.place):
            return [], settled
        preposition = self.word(self.lexicon.prepositions)
        return [preposition, *self.noun_phrase(DATIVE, self.number()).pieces], settled

    def objects(self, valency: int, fronted: list[Piece]) -> list[Piece]:
        """Write recipient and object; the target has the object first."""
        recipient: list[Piece] = []
        if valency == DITRANSITIVE:
            place = len(self.words) + 1
            recipient = [Piece(self.lexicon.recipient, 0, (place,))]
            recipient += self.noun_phrase(DATIVE, self.number()).pieces
        if valency != INTRANSITIVE and not fronted:
            fronted = self.noun_phrase(ACCUSATIVE, self.number()).pieces
        return fronted + recipient

    def subject(self, number: int) -> Nominal:
        """Write a pronoun, a name or a noun phrase."""
        if self.chance(self.settings.pronoun):
            choice = self.lexicon.pronouns[number]
        elif not number and self.chance(self.settings.name):
            choice = self.lexicon.names
        else:
            return self.noun_phrase(NOMINATIVE, number)
        person = self.pick(choice)
        place = self.put(person.source)
        return Nominal([Piece(person.target, place, (place,))], 2 * person.gender + number)

    def noun_phrase(self, case: int, number: int) -> Nominal:
        """Write determiner, adjectives and noun; all of the target waits for the noun's gender."""
        gender = self.pick(self.rules.genders)
        column = len(self.lexicon.nouns) if number else gender
        determiner = self.pick(self.lexicon.determiners)
        first = self.put(determiner.source[case][column])
        adjectives = self.adjectives(column)
        modifiers = self.modifiers()
        noun = self.pick(self.lexicon.nouns[gender])
        last = self.put("".join(m.joint for m in modifiers) + noun.source[number])
        agreement = 2 * noun.target_gender + number
        words = [(determiner.target[agreement], first), (noun.target[number], last)]
        words += [(modifier.genitive, last) for modifier in reversed(modifiers)]
        words += [(a.target[agreement], place) for a, place in reversed(adjectives)]
        return Nominal([Piece(word, last, (place,)) for word, place in words], agreement)

    def adjectives(self, column: int) -> list[tuple[Adjective, int]]:
        written: list[tuple[Adjective, int]] = []
        for percent in (self.settings.adjective, self.settings.second_adjective):
            if not (self.has_room() and self.chance(percent)):
                break
            adjective = self.pick(self.lexicon.adjectives)
            written.append((adjective, self.put(adjective.source[column])))
        return written

    def modifiers(self) -> list[Noun]:
        written: list[Noun] = []
        for percent in (self.settings.compound, self.settings.triple_compound):
            if not self.chance(percent):
                break
            written.append(self.pick(self.lexicon.modifiers))
        return written
