"""Small languages written out whole, and what the tests of the toy corpus ask of lexicons."""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from nmtgrid.data.toy.corpus import Chooser, ToyPair, write_pair
from nmtgrid.data.toy.language import (
    Choice,
    Item,
    Lexeme,
    Lexicon,
    Reading,
    Rules,
    ToySettings,
    Verb,
)

# -- a language small enough to be written out whole


class EveryWay(Chooser):
    """Takes every decision every way, one after the other."""

    def __init__(self) -> None:
        self.plan: list[int] = []
        self.widths: list[int] = []

    def _decide(self, width: int) -> int:
        index = len(self.widths)
        self.widths.append(width)
        if index == len(self.plan):
            self.plan.append(0)
        return self.plan[index]

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


def plain(*words: str) -> Choice[Lexeme]:
    return Choice([Lexeme((word,), (word.upper().lower() + "q",)) for word in words])


def verb(name: str, *prefixes: str) -> Verb:
    readings = [Reading(p, forms(f"{p}{name}x", 4), f"{p}{name}y") for p in ("", *prefixes)]
    return Verb((f"{name}e", f"{name}u"), f"{name}ir", Choice(readings))


def tiny_lexicon(plain_verbs: int = 1) -> Lexicon:
    """One source gender with a noun of each target gender, and two of whatever must differ."""
    nouns = [
        Lexeme((f"n{i}", f"n{i}en", f"n{i}s"), (f"N{i}", f"N{i}im", f"N{i}ur"), i) for i in range(2)
    ]
    kinds = ("i", "t", "d")
    return Lexicon(
        determiners=Choice(
            [Lexeme((*forms("no", 2), *forms("ac", 2), *forms("da", 2)), forms("D", 4))]
        ),
        adjectives=Choice([Lexeme(forms("adj", 2), forms("ADJ", 4))]),
        nouns=(Choice(nouns),),
        modifiers=Choice(nouns),
        names=Choice([Lexeme(("Tano",), ("Tano",), 0)]),
        pronouns=(
            Choice([Lexeme(("ik",), ("mi",), 0)]),
            Choice([Lexeme(("wir",), ("nos",), 1)]),
        ),
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
    plural=0, pronoun=0, name=0, adjective=0, compound=0, adverb=0, locative=0, transitive=50,
    separable=50, open_subject=1, open_object=0, open_adverb=0, open_verb=0, open_clause=0,
    subordinate=0, depth=0, room=99,
)  # fmt: skip
EVERY_OPENING = {"open_object": 1, "open_adverb": 1, "open_verb": 1}
CLAUSES = {"subordinate": 50, "open_clause": 1, "depth": 1}

LANGUAGES = {
    "subjects": replace(BARE, plural=50, pronoun=50, name=50, adjective=50, **EVERY_OPENING),
    "compounds": replace(BARE, plural=50, adjective=50, compound=50, second_adjective=50),
    "triple": replace(BARE, plural=50, compound=50, triple_compound=50, open_object=1),
    "places": replace(BARE, plural=50, adverb=50, locative=50, **EVERY_OPENING),
    "recipients": replace(BARE, ditransitive=25, plural=50, adverb=50, **EVERY_OPENING),
    "modals": replace(BARE, ditransitive=25, modal=50, adverb=50, locative=50, **EVERY_OPENING),
    "no prefixes": replace(BARE, separable=0, modal=50, adverb=50, locative=50, **EVERY_OPENING),
    "prefixes": replace(BARE, separable=100, adverb=50, open_object=1, **CLAUSES),
    "clauses": replace(BARE, adverb=50, **CLAUSES),
    "clauses and places": replace(
        BARE, transitive=100, locative=50, open_object=1, **{**CLAUSES, "subordinate": 0}
    ),
    "nested": replace(
        BARE, transitive=0, locative=50, nested=50, room=7, **{**CLAUSES, "depth": 2}
    ),
    "nested thrice": replace(
        BARE, separable=0, nested=50, transitive=0, open_subject=0, **{**CLAUSES, "depth": 3}
    ),
    "always nested": replace(BARE, transitive=0, pronoun=50, nested=100, **{**CLAUSES, "depth": 2}),
    "little room": replace(
        BARE,
        transitive=0,
        adverb=50,
        locative=50,
        nested=50,
        open_adverb=1,
        room=4,
        **{**CLAUSES, "depth": 2},
    ),
    "always an adverb": replace(
        BARE, transitive=0, adverb=100, locative=50, **{**CLAUSES, "subordinate": 0}
    ),
    "always a place": replace(BARE, adverb=50, locative=100, open_object=1),
}


def shared(first: list[str], second: list[str]) -> int:
    """Return how many words two sentences start with in common."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))


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
    reads = []
    for source, target in sides:
        sure = [len(settled[source[:j]]) for j in range(1, len(source) + 1)]
        # Reading on never unsettles a word: bisection finds the first j that settles word t.
        reads.append(tuple(bisect(sure, t) + 1 for t in range(len(target))))
    return reads


# -- measures of a pair


def smallest_wait_k(pair: ToyPair) -> int:
    """Return the least k for which wait-k, min(k + t - 1, |x|), has read enough for each word."""
    return max(needed - t for t, needed in enumerate(pair.reads))


def is_reordered(pair: ToyPair) -> bool:
    """Whether two of its links cross."""
    pairs = product(pair.links, repeat=2)
    return any(t < u and s > r for (t, s), (u, r) in pairs)


# -- forms of a lexicon


def all_verbs(lexicon: Lexicon) -> list[Verb]:
    verbs = [v for pair in lexicon.verbs for choice in pair for v in choice.items]
    return [*verbs, *lexicon.modals.items]


def all_forms(lexicon: Lexicon, side: str) -> Iterator[str]:
    words = (*lexicon.adverbs.items, *lexicon.prepositions.items, *lexicon.complementizers.items)
    people = (*lexicon.names.items, *lexicon.pronouns[0].items, *lexicon.pronouns[1].items)
    yield from (getattr(word, side)[0].lower() for word in (*words, *people))
    nouns = [noun for choice in lexicon.nouns for noun in choice.items]
    yield from (form for noun in nouns for form in getattr(noun, side)[:2])
    yield from (form for a in lexicon.adjectives.items for form in getattr(a, side))
    verbs = all_verbs(lexicon)
    if side == "source":
        yield from (form for d in lexicon.determiners.items for form in d.source)
        yield from (
            reading.prefix + form
            for v in verbs
            for reading in v.readings.items
            for form in (*v.finite, v.infinitive)
        )
        yield from {r.prefix for v in verbs for r in v.readings.items if r.prefix}
    else:
        yield from (form for d in lexicon.determiners.items for form in d.target)
        yield from (noun.target[2] for noun in nouns)
        yield from (f for v in verbs for r in v.readings.items for f in (*r.target, r.infinitive))
        yield from (lexicon.question, lexicon.recipient)


def target_kinds(lexicon: Lexicon) -> dict[str, tuple[str, int]]:
    kinds: dict[str, tuple[str, int]] = {}
    for number, people in enumerate(lexicon.pronouns):
        kinds |= {p.target[0]: ("person", 2 * p.gender + number) for p in people.items}
    kinds |= {p.target[0].lower(): ("person", 2 * p.gender) for p in lexicon.names.items}
    for noun in (noun for choice in lexicon.nouns for noun in choice.items):
        kinds |= {f: ("noun", 2 * noun.gender + n) for n, f in enumerate(noun.target[:2])}
    readings = [reading for verb in all_verbs(lexicon) for reading in verb.readings.items]
    for kind, entries in (
        ("determiner", lexicon.determiners.items),
        ("adjective", lexicon.adjectives.items),
        ("verb", readings),
    ):
        for entry in entries:
            kinds |= {f: (kind, i) for i, f in enumerate(entry.target)}
    return kinds
