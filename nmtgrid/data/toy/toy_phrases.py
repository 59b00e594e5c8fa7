"""Phrases of the toy grammar: determiner, adjectives and noun, with agreement on both sides.

Source (qa): adjectives before the noun, compounds one word, case on the determiner.
Target (qb): the noun, its compound's modifiers, adjectives; the last written comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nmtgrid.data.toy.toy_settings import OPENINGS, ToySettings
from nmtgrid.data.toy.toy_words import Adjective, Choice, Chooser, Item, Lexicon, Noun, Word

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
