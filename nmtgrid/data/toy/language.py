"""The lexicon of the toy languages qa (source) and qb (target), generated from a seed.

In the source, adjectives precede the noun, compounds are one word and the determiner marks the
case; in the target the noun comes first, then a compound's modifiers, then its adjectives.
`corpus.py` writes sentences with these words.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, compress
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from nmtgrid.base.errors import ConfigError

OPENINGS = ("subject", "object", "adverb", "verb", "clause")

# With fewer, a word could be guessed before it is read, and `reads` would not be minimal.
_MINIMA = {"nouns": 6, "modifiers": 1, "verbs": 24, "depth": 0, "room": 0} | dict.fromkeys(
    ("adjectives", "names", "adverbs", "prepositions", "complementizers", "modals"), 2
)


@dataclasses.dataclass(frozen=True)
class ToySettings:
    """The size of the toy lexicon (in lexemes) and the frequency of each rule (in per cent).

    `modifiers` of the nouns also form compounds, so there are `nouns * modifiers` compounds, and
    `triple_compound` of the compounds have a second modifier. `open_*` are the relative frequencies
    of the constituents before the finite verb of the main clause: its subject, its object, an
    adverb, nothing (a question) or a subordinate clause. `depth` is the maximum number of
    subordinate clauses in a sentence. `room` is a soft limit on length: nothing optional begins
    after the `room`-th source word.

    Raises ConfigError naming all numbers that are out of range.
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
    locative: int = 20
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
        faults = []
        for name, value in dataclasses.asdict(self).items():
            if name in _MINIMA:
                if value < _MINIMA[name]:
                    faults.append(f"`{name}` must be at least {_MINIMA[name]}, but is {value}.")
            elif not 0 <= value <= 100:
                faults.append(f"`{name}` must be a percentage, but is {value}.")
        if self.modifiers > self.nouns:
            faults.append(
                f"`modifiers` is {self.modifiers}, but must be at most the number of nouns, "
                f"{self.nouns}."
            )
        if self.transitive + self.ditransitive > 100:
            faults.append("`transitive` and `ditransitive` add up to more than 100 per cent.")
        if self.open_object and not self.transitive + self.ditransitive:
            faults.append("`open_object` needs `transitive` or `ditransitive` verbs.")
        if not any(getattr(self, f"open_{name}") for name in OPENINGS):
            faults.append("At least one of the `open_*` frequencies must be above 0.")
        if faults:
            raise ConfigError(faults, "Correct these settings of the toy corpus.")


# The settings of difficulty 2 and 3 that differ from the defaults.
_HARDER = {
    "nouns": (100, 160), "modifiers": (64, 100), "names": (12, 20), "prepositions": (5, 7),
    "compound": (25, 30), "triple_compound": (0, 15), "adverbs": (10, 16),
    "adjectives": (28, 48), "adjective": (25, 35), "second_adjective": (0, 20),
    "verbs": (36, 60), "separable": (50, 50), "modals": (3, 4), "modal": (18, 18),
    "transitive": (53, 53), "ditransitive": (12, 12),
    "complementizers": (4, 4), "open_clause": (15, 20), "subordinate": (40, 50),
    "nested": (25, 40), "depth": (2, 3), "room": (13, 15),
}  # fmt: skip


def settings_for(difficulty: int) -> ToySettings:
    """Return the settings of `difficulty` 1, 2 or 3. Raises ConfigError for other values."""
    if difficulty not in (1, 2, 3):
        raise ConfigError(f"The toy corpus has no difficulty {difficulty}.", "Choose 1, 2 or 3.")
    if difficulty == 1:
        return ToySettings()
    return ToySettings(**{name: values[difficulty - 2] for name, values in _HARDER.items()})


Item = TypeVar("Item")


class Choice(Generic[Item]):
    """Items with integer weights: sums are exact, so every Python draws the same items."""

    __slots__ = ("cumulative", "items")

    def __init__(self, items: Iterable[Item], weights: Iterable[int] | None = None) -> None:
        self.items = tuple(items)
        self.cumulative = list(accumulate(weights or [1] * len(self.items)))

    @classmethod
    def zipfian(cls, items: Iterable[Item]) -> Choice[Item]:
        """Return a choice in which an item's weight decreases with its rank: 1 / (rank + 5)."""
        ranked = tuple(items)
        return cls(ranked, [100_000 // (rank + 6) for rank in range(len(ranked))])

    def at(self, fraction: float) -> Item:
        """Return the item at the cumulative weight `fraction`, in [0, 1)."""
        return self.items[bisect(self.cumulative, int(fraction * self.cumulative[-1]))]


class Lexeme(NamedTuple):
    """Forms of a word in both languages, and the target gender of a noun or person.

    An adjective has `source[column]` (its gender, or 3 for the plural) and `target[agreement]`, a
    determiner the same for each case. A noun has two forms by number and a third one in compounds
    (at the front in the source, after the noun in the target). Names, pronouns and particles have
    one form.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    gender: int = 0


class Reading(NamedTuple):
    """The meaning of a verb with one prefix ("" for the bare verb): an unrelated target verb."""

    prefix: str
    target: tuple[str, ...]
    infinitive: str


class Verb(NamedTuple):
    """A source stem: `finite` forms by number and its readings, several if it is separable."""

    finite: tuple[str, ...]
    infinitive: str
    readings: Choice[Reading]


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """All words. `agreement` is 2 * target gender + number, `column` the source gender or plural.

    nouns[source gender], pronouns[number], verbs[valency][is separable].
    """

    determiners: Choice[Lexeme]
    adjectives: Choice[Lexeme]
    nouns: tuple[Choice[Lexeme], ...]
    modifiers: Choice[Lexeme]
    names: Choice[Lexeme]
    pronouns: tuple[Choice[Lexeme], ...]
    verbs: tuple[tuple[Choice[Verb], Choice[Verb]], ...]
    modals: Choice[Verb]
    adverbs: Choice[Lexeme]
    prepositions: Choice[Lexeme]
    complementizers: Choice[Lexeme]
    question: str
    recipient: str


# The letter s joins compounds and occurs nowhere else in qa, so every compound is unambiguous.
LINK = "s"

# Onsets, vowels and codas of syllables, in the source and in the target.
_SOUNDS = (
    ("b d f g h k l m n p r t v w br gr kl tr", "a e i o u au ei", "l m n r k t nd rk lt"),
    ("b d f g l m n p r s t v z kr pr st", "a e i o u ia", "l m n r s t v nt rd"),
)
_CASE_ENDINGS = (("er", "ea", "ot", "i"), ("en", "ean", "on", "in"), ("em", "eam", "om", "im"))
_SOURCE_PLURALS = ("en", "ar", "u")
_AGREEMENT_ENDINGS = ("o", "i", "a", "e")
_VERB_ENDINGS = ("av", "avi", "ev", "evi")
_PREFIXES = ("ab", "uf", "vor", "mit", "zu", "hin")
_PRONOUNS = (
    (("ik", "mi", 0), ("du", "tu", 0), ("er", "il", 0), ("fi", "ela", 1)),
    (("wir", "nos", 0), ("ei", "lur", 0), ("ihr", "vos", 1)),
)
_QUESTION, _RECIPIENT = "ka", "ad"
_DETERMINERS = [
    Lexeme(
        tuple(source + ending for ending in chain(*_CASE_ENDINGS)),
        tuple(target + ending for ending in _AGREEMENT_ENDINGS),
    )
    for source, target in (("d", "l"), ("un", "ek"), ("jen", "kest"))
]


class _Stems:
    """Draws new stems; all forms of a language are distinct."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random
        used = [*_DETERMINERS, *map(_person, chain(*_PRONOUNS))]
        self._used = (
            {*_PREFIXES, *chain(*(lexeme.source for lexeme in used))},
            {_QUESTION, _RECIPIENT, *chain(*(lexeme.target for lexeme in used))},
        )

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    def draw(
        self, side: int, endings: Sequence[str], syllables: int = 2, prefixes: Sequence[str] = ("",)
    ) -> tuple[str, ...]:
        """Return the forms of a new stem of side 0 or 1: each prefix with each ending."""
        used = self._used[side]
        onsets, vowels, codas = (sounds.split() for sounds in _SOUNDS[side])
        while True:
            # Only the last syllable may begin with a cluster, have a diphthong and end in a coda.
            sounds = (onsets[:14], vowels[:5]) * (syllables - 1) + (onsets, vowels, codas)
            stem = "".join(map(self.one_of, sounds))
            forms = tuple(prefix + stem + ending for prefix in prefixes for ending in endings)
            if len(set(forms)) == len(forms) and used.isdisjoint(forms):
                used.update(forms)
                return forms

    def lexeme(
        self,
        source: Sequence[str] = ("",),
        target: Sequence[str] = ("",),
        syllables: int = 2,
        gender: int = 0,
    ) -> Lexeme:
        """Return a new word with these endings."""
        return Lexeme(self.draw(0, source, syllables), self.draw(1, target, syllables), gender)

    def verb(self, prefixes: Sequence[str] = ()) -> Verb:
        """Return a verb; its forms with prefixes, used at the end of clauses, are unique too."""
        source = self.draw(0, ("et", "ont", "ir"), 1, ("", *prefixes))
        readings = []
        for prefix in ("", *prefixes):
            target = self.draw(1, (*_VERB_ENDINGS, "ar"))
            readings.append(Reading(prefix, target[:4], target[4]))
        return Verb(source[:2], source[2], Choice(readings))

    def separable(self) -> Verb:
        """Return a verb with one or two prefixes, and thus two or three readings."""
        drawn = {self.one_of(range(len(_PREFIXES))) for _ in range(2)}
        return self.verb([_PREFIXES[index] for index in sorted(drawn)])

    def name(self, gender: int) -> Lexeme:
        """Return a capitalised name, the same in both languages."""
        (name,) = self.draw(0, ("oa"[gender],))
        return _person((name.capitalize(), name.capitalize(), gender))


def _person(forms: tuple[str, str, int]) -> Lexeme:
    source, target, gender = forms
    return Lexeme((source,), (target,), gender)


def build_lexicon(settings: ToySettings, seed: int) -> Lexicon:
    """Return the lexicon of the toy languages for `seed`."""
    stems = _Stems(seed)

    def words(count: int, *forms: Any) -> Choice[Lexeme]:
        return Choice.zipfian(stems.lexeme(*forms) for _ in range(count))

    nouns = [
        # All pairs of genders occur: the source gender never determines the target gender.
        stems.lexeme(("", _SOURCE_PLURALS[n % 3], LINK), ("", "im", "ur"), gender=n // 3 % 2)
        for n in range(settings.nouns)
    ]
    ditransitive, intransitive = settings.verbs // 6, 3 * settings.verbs // 8
    sizes = (intransitive, settings.verbs - intransitive - ditransitive, ditransitive)
    # The order of these lines is the order of the draws, and so determines the words of a seed.
    return Lexicon(
        determiners=Choice(_DETERMINERS, (5, 3, 2)),
        adjectives=words(settings.adjectives, _CASE_ENDINGS[0], _AGREEMENT_ENDINGS, 1),
        nouns=tuple(Choice.zipfian(nouns[gender::3]) for gender in range(3)),
        modifiers=Choice.zipfian(nouns[: settings.modifiers]),
        names=Choice.zipfian(stems.name(1 - index % 2) for index in range(settings.names)),
        pronouns=tuple(Choice(map(_person, persons)) for persons in _PRONOUNS),
        # Half of each kind are separable.
        verbs=tuple(
            (
                Choice.zipfian(stems.verb() for _ in range(size - size // 2)),
                Choice.zipfian(stems.separable() for _ in range(size // 2)),
            )
            for size in sizes
        ),
        modals=Choice.zipfian(stems.verb() for _ in range(settings.modals)),
        adverbs=words(settings.adverbs),
        prepositions=words(settings.prepositions, ("",), ("",), 1),
        complementizers=words(settings.complementizers, ("",), ("",), 1),
        question=_QUESTION,
        recipient=_RECIPIENT,
    )


INTRANSITIVE, TRANSITIVE, DITRANSITIVE = range(3)


class Rules:
    """The lexicon, the settings, and the choices between rules, weighted by the settings."""

    def __init__(self, lexicon: Lexicon, settings: ToySettings) -> None:
        self.lexicon, self.settings = lexicon, settings
        weights = [getattr(settings, f"open_{name}") for name in OPENINGS]
        if not settings.depth:
            weights[OPENINGS.index("clause")] = 0
        self.openings = _possible(OPENINGS, weights)
        objects = (settings.transitive, settings.ditransitive)
        self.valencies = (
            _possible(range(3), (100 - sum(objects), *objects)),
            _possible((TRANSITIVE, DITRANSITIVE), objects),
        )
        """For any clause, and for clauses with the object in front."""
        self.genders = Choice(range(len(lexicon.nouns)))
        self.marks = Choice((".", "!"), (9, 1)), Choice(("?", "!"), (9, 1))
        """For a statement and for a question."""


def _possible(items: Sequence[Item], weights: Sequence[int]) -> Choice[Item]:
    """Return the choice between items of positive weight, which tests may enumerate."""
    return Choice(compress(items, weights), filter(None, weights))
