"""What the toy grammar may do and how often: three difficulties and every number behind them."""

from __future__ import annotations

import dataclasses

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
