"""The embedded toy corpus: parallel sentences with a known minimum delay, generated from a seed.

`nmtgrid preprocess --toy` writes these sentences as a dataset (`data/build.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.toy.language import (
    DITRANSITIVE,
    INTRANSITIVE,
    LINK,
    Choice,
    Item,
    Lexeme,
    Rules,
    ToySettings,
    Verb,
    build_lexicon,
    settings_for,
)

_WORD = re.compile(r"\w+|[^\w\s]")
_NOMINATIVE, _ACCUSATIVE, _DATIVE = range(3)
_IN_COMPOUND = 2

# Draws in a row without a new sentence after which the grammar counts as exhausted.
_PATIENCE = 2_000
# Draws to find a sentence whose words all occur in training.
_REPLACEMENTS = 50


@dataclasses.dataclass(frozen=True, slots=True)
class ToyPair:
    """A raw source sentence (language qa), its only translation (qb), and its known delays.

    Positions count the words of the Moses-tokenised text, in which each punctuation mark is a
    separate word (`source_words`, `target_words`). `reads[t]` is the least number of source words
    after which target word t is determined: every sentence of the grammar that starts with them has
    a translation that starts with the target words 0 to t. So `reads` never decreases, starts at 1
    or more and ends with the whole source. `links` are the word alignments (target word, source
    word), from 0, sorted by target word; only a source comma may be unlinked. A comma or the
    preposition "ad" may be certain, and so be written, before its aligned word is read; for every
    other word the aligned words have been read.
    """

    source: str
    target: str
    reads: tuple[int, ...]
    links: tuple[tuple[int, int], ...]

    @property
    def source_words(self) -> list[str]:
        """The source words, as Moses tokenises them."""
        return _WORD.findall(self.source)

    @property
    def target_words(self) -> list[str]:
        """The target words, as Moses tokenises them."""
        return _WORD.findall(self.target)


class Chooser:
    """Makes random choices between the rules of the grammar; tests enumerate all of them.

    Only `random()` is used: its stream is the same in every Python.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random

    def pick(self, choice: Choice[Item]) -> Item:
        """Return one item."""
        return choice.at(self._random())

    def chance(self, percent: int) -> bool:
        """Return True in `percent` of the cases."""
        return self._random() * 100 < percent


class Piece(NamedTuple):
    """A target word, the number of source words it requires, and the source words it is linked to.

    It waits for its aligned source words, for those that decide its agreement and, if something
    optional could still precede it, for the word that shows that nothing does.
    """

    word: str
    waits_for: int
    links: tuple[int, ...]


class Nominal(NamedTuple):
    """The target side of a phrase, and its agreement: 2 * target gender + number."""

    pieces: list[Piece]
    agreement: int


def write_pair(rules: Rules, chooser: Chooser) -> ToyPair:
    """Return the sentence pair that follows from the chooser's decisions."""
    writer = _SentenceWriter(rules, chooser)
    pieces = writer.sentence()
    reads, links, read = [], [], 1
    for position, piece in enumerate(pieces):
        # A word cannot be written before the preceding ones: the reads never decrease.
        read = max(read, piece.waits_for)
        reads.append(read)
        links += [(position, source - 1) for source in piece.links]
    target = _text([piece.word for piece in pieces])
    return ToyPair(_text(writer.words), target, tuple(reads), tuple(links))


def _text(words: Sequence[str]) -> str:
    """Return the words as raw text: first letter capitalised, punctuation joined to words."""
    text = " ".join(words[:-1]).replace(" ,", ",") + words[-1]
    return text[0].upper() + text[1:]


class _SentenceWriter:
    """Writes the source of a sentence into `words`; its rules return the target side.

    The rules write the source from left to right, so positions are known immediately.
    """

    def __init__(self, rules: Rules, chooser: Chooser) -> None:
        self.rules, self.lexicon, self.settings = rules, rules.lexicon, rules.settings
        self.pick, self.chance = chooser.pick, chooser.chance
        self.words: list[str] = []
        self.may_nest = False

    def put(self, word: str) -> int:
        """Write a source word; return its position, from 1."""
        self.words.append(word)
        return len(self.words)

    def piece(self, source: str, target: str) -> Piece:
        """Write a source word whose translation depends on no later word."""
        position = self.put(source)
        return Piece(target, position, (position,))

    def word(self, choice: Choice[Lexeme]) -> Piece:
        word = self.pick(choice)
        return self.piece(word.source[0], word.target[0])

    def has_room(self) -> bool:
        return len(self.words) <= self.settings.room

    def number(self) -> int:
        return int(self.chance(self.settings.plural))

    def verb(self, valency: int) -> Verb:
        is_separable = self.chance(self.settings.separable)
        return self.pick(self.lexicon.verbs[valency][is_separable])

    def sentence(self) -> list[Piece]:
        opening = self.pick(self.rules.openings)
        pieces = []
        if opening == "clause":
            pieces = self.subordinate_clauses()
            comma = self.put(",")
            # The target has only this comma. As long as another subordinate clause could follow,
            # the source comma does not decide: only the finite verb after it does.
            pieces.append(Piece(",", comma + 1 if self.may_nest else 0, (comma,)))
        pieces += self.clause(opening)
        may_follow = opening != "clause" and self.settings.depth and self.has_room()
        if may_follow and self.chance(self.settings.subordinate):
            self.put(",")
            pieces += self.subordinate_clauses()
        mark = self.pick(self.rules.marks[opening == "verb"])
        return [*pieces, self.piece(mark, mark)]

    def subordinate_clauses(self) -> list[Piece]:
        """Write a subordinate clause, and perhaps others, each subordinate to the one before."""
        pieces = self.clause("complementizer")
        for _ in range(self.settings.depth - 1):
            self.may_nest = self.settings.nested > 0 and self.has_room()
            if not (self.may_nest and self.chance(self.settings.nested)):
                return pieces
            self.put(",")
            pieces += self.clause("complementizer")
        self.may_nest = False
        return pieces

    def clause(self, opening: str) -> list[Piece]:
        """Write a clause that begins with the constituent `opening`.

        Its finite verb comes second, or last after a complementizer. Words are written, and random
        choices made, in the order of the source; the order of the target is subject, verbs,
        objects, place and adverb.
        """
        lexicon, settings = self.lexicon, self.settings
        front: list[Piece] = []
        fronted: list[Piece] = []
        subject = verb = modal = None
        if opening == "adverb":
            front = [self.word(lexicon.adverbs)]
        elif opening == "complementizer":
            front = [self.word(lexicon.complementizers)]
        elif opening == "subject":
            subject = self.subject(self.number())
        elif opening == "object":
            fronted = self.noun_phrase(_ACCUSATIVE, self.number()).pieces
        number = subject.agreement % 2 if subject else self.number()
        valencies = self.rules.valencies[bool(fronted)]
        valency, second = INTRANSITIVE, 0
        if opening != "complementizer":
            if self.chance(settings.modal):
                finite = modal = self.pick(lexicon.modals)
            else:
                valency = self.pick(valencies)
                finite = verb = self.verb(valency)
            second = self.put(finite.finite[number])
        if opening == "verb":
            front = [Piece(lexicon.question, second, (second,))]
        subject = subject or self.subject(number)
        adverb = []
        if opening != "adverb" and self.has_room() and self.chance(settings.adverb):
            adverb = [self.word(lexicon.adverbs)]
        if verb is None:
            valency = self.pick(valencies)
        objects = self.objects(valency, fronted)
        phrase: list[Piece] = []
        if settings.locative and self.has_room():
            # The adverb waits until no phrase of place can come before it.
            settled = len(self.words) + 1
            adverb = [Piece(word, max(wait, settled), links) for word, wait, links in adverb]
            if self.chance(settings.locative):
                phrase = [self.word(lexicon.prepositions)]
                phrase += self.noun_phrase(_DATIVE, self.number()).pieces
        verbs = self.verbs(verb or self.verb(valency), modal, second, subject.agreement)
        return [*front, *subject.pieces, *verbs, *objects, *phrase, *adverb]

    def verbs(self, verb: Verb, modal: Verb | None, second: int, agreement: int) -> list[Piece]:
        """Write the verbs that end a clause whose finite verb is at `second` (0: it is last)."""
        reading = self.pick(verb.readings)
        if modal:
            target = modal.readings.items[0].target[agreement]
            infinitive = self.piece(reading.prefix + verb.infinitive, reading.infinitive)
            return [Piece(target, second, (second,)), infinitive]
        word = reading.target[agreement]
        if not second:
            return [self.piece(reading.prefix + verb.finite[agreement % 2], word)]
        if reading.prefix:
            last = self.put(reading.prefix)
            return [Piece(word, last, (second, last))]
        # Only the end of the clause shows that a separable verb has no prefix.
        is_separable = len(verb.readings.items) > 1
        return [Piece(word, len(self.words) + 1 if is_separable else second, (second,))]

    def objects(self, valency: int, fronted: list[Piece]) -> list[Piece]:
        """Write recipient and object; in the target the object comes first."""
        recipient: list[Piece] = []
        if valency == DITRANSITIVE:
            # Linked to the determiner that follows, but certain before it is read.
            recipient = [Piece(self.lexicon.recipient, 0, (len(self.words) + 1,))]
            recipient += self.noun_phrase(_DATIVE, self.number()).pieces
        if valency != INTRANSITIVE and not fronted:
            fronted = self.noun_phrase(_ACCUSATIVE, self.number()).pieces
        return fronted + recipient

    def subject(self, number: int) -> Nominal:
        """Write a pronoun, a name or a noun phrase."""
        if self.chance(self.settings.pronoun):
            persons = self.lexicon.pronouns[number]
        elif not number and self.chance(self.settings.name):
            persons = self.lexicon.names
        else:
            return self.noun_phrase(_NOMINATIVE, number)
        person = self.pick(persons)
        piece = self.piece(person.source[0], person.target[0])
        return Nominal([piece], 2 * person.gender + number)

    def noun_phrase(self, case: int, number: int) -> Nominal:
        """Write determiner, adjectives and noun; all of the target waits for the noun's gender."""
        gender = self.pick(self.rules.genders)
        genders = len(self.lexicon.nouns)
        column = genders if number else gender
        determiner = self.pick(self.lexicon.determiners)
        first = self.put(determiner.source[case * (genders + 1) + column])
        adjectives, modifiers = [], []
        for percent in (self.settings.adjective, self.settings.second_adjective):
            if not (self.has_room() and self.chance(percent)):
                break
            adjective = self.pick(self.lexicon.adjectives)
            adjectives.append((adjective, self.put(adjective.source[column])))
        for percent in (self.settings.compound, self.settings.triple_compound):
            if not self.chance(percent):
                break
            modifiers.append(self.pick(self.lexicon.modifiers))
        noun = self.pick(self.lexicon.nouns[gender])
        last = self.put("".join(m.source[_IN_COMPOUND] for m in modifiers) + noun.source[number])
        agreement = 2 * noun.gender + number
        words = [(determiner.target[agreement], first), (noun.target[number], last)]
        words += [(modifier.target[_IN_COMPOUND], last) for modifier in reversed(modifiers)]
        words += [(a.target[agreement], position) for a, position in reversed(adjectives)]
        return Nominal([Piece(word, last, (position,)) for word, position in words], agreement)


class ToyGrammar:
    """Two invented languages generated from `seed`, and an endless stream of sentence pairs.

    `settings`, if not None, replaces those of `difficulty` (1, 2 or 3). Every `stream` (0 to 99)
    has different sentences of the same languages; `toy_splits` uses 0 to 2.
    """

    def __init__(
        self,
        seed: int = 1,
        difficulty: int = 1,
        settings: ToySettings | None = None,
        stream: int = 0,
    ) -> None:
        self.settings = settings_for(difficulty) if settings is None else settings
        self.lexicon = build_lexicon(self.settings, seed)
        self._rules = Rules(self.lexicon, self.settings)
        self._chooser = Chooser(100 * seed + stream)

    def sample(self, count: int) -> list[ToyPair]:
        """Return the next `count` sentence pairs; sentences may repeat."""
        return [write_pair(self._rules, self._chooser) for _ in range(count)]


def toy_splits(
    train: int,
    seed: int = 1,
    difficulty: int = 1,
    valid: int = 200,
    test: int = 200,
    settings: ToySettings | None = None,
) -> dict[str, list[ToyPair]]:
    """Return the splits "train", "valid" and "test", in this order.

    No source sentence occurs twice, and no target sentence of one split is in another. Each word of
    valid and test, and each part of their compounds, is in train too; whole compounds may be new.
    With fewer than about 3,000 pairs, train may lack some of these words; with more, valid and test
    do not depend on its size.

    Raises ConfigError if a size is negative or the grammar has too few sentences.
    """
    # Valid and test are drawn first, so that they do not depend on the size of train.
    sizes = {"valid": valid, "test": test, "train": train}
    faults = [f"`{name}` must not be negative, but is {n}." for name, n in sizes.items() if n < 0]
    if faults:
        raise ConfigError(faults, "Give the number of sentence pairs.")
    barred: set[str] = set()
    streams = {"train": 0, "valid": 1, "test": 2}
    grammars = {name: ToyGrammar(seed, difficulty, settings, streams[name]) for name in sizes}
    splits = {name: _draw(grammars[name], sizes[name], barred) for name in sizes}
    # A word that training lacks would have no learnable translation.
    known = {part for pair in splits["train"] for part in word_parts(pair)}
    for name in ("valid", "test"):
        splits[name] = [_known_pair(p, grammars[name], barred, known) for p in splits[name]]
    return {name: splits[name] for name in streams}


def word_parts(pair: ToyPair) -> set[str]:
    """Return the pair's words in lower case, with source compounds split into parts."""
    sources = (part for word in pair.source_words for part in word.lower().split(LINK))
    return {*sources, *(word.lower() for word in pair.target_words)}


def _draw(grammar: ToyGrammar, count: int, barred: set[str]) -> list[ToyPair]:
    """Return new pairs without barred sentences, and bar their sentences for other splits."""
    pairs: dict[str, ToyPair] = {}
    misses = 0
    while len(pairs) < count and misses < _PATIENCE:
        pair = grammar.sample(1)[0]
        if pair.source in pairs or not barred.isdisjoint((pair.source, pair.target)):
            misses += 1
        else:
            pairs[pair.source], misses = pair, 0
    if len(pairs) < count:
        raise ConfigError(
            f"The toy grammar cannot produce {count} different sentences.",
            "Ask for fewer sentences.",
        )
    barred.update(side for pair in pairs.values() for side in (pair.source, pair.target))
    return list(pairs.values())


def _known_pair(pair: ToyPair, grammar: ToyGrammar, barred: set[str], known: set[str]) -> ToyPair:
    """Return the pair if all its words are known, else a replacement, if one is drawn."""
    if word_parts(pair) <= known:
        return pair
    for _ in range(_REPLACEMENTS):
        other = grammar.sample(1)[0]
        if word_parts(other) <= known and barred.isdisjoint((other.source, other.target)):
            barred.update((other.source, other.target))
            return other
    return pair
