"""The embedded toy corpus: parallel sentences whose needed delay is known, from a seed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import NamedTuple

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.toy.language import (
    ACCUSATIVE,
    INTRANSITIVE,
    LINK,
    Choice,
    Chooser,
    Item,
    Nominal,
    PhraseWriter,
    Piece,
    Rules,
    ToySettings,
    Verb,
    build_lexicon,
    settings_for,
)

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True, slots=True)
class ToyPair:
    """A raw source sentence (language qa), its one translation (qb), and its known delays.

    Positions count the words of the Moses-tokenised text, in which each punctuation mark is a
    word of its own (`source_words`, `target_words`). `reads[t]` is the least number of source
    words after which target word t is settled: every sentence of the grammar that starts with
    them has a translation that starts with the target words 0 to t. So `reads` never falls,
    starts at 1 or more and ends with the whole source. `links` are the word alignments
    (target word, source word), from 0, by target word; only a source comma may stay unlinked. A
    comma or the preposition "ad" may be certain, and so be written, before the word it is linked
    to is read; every other word is read before.
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

    @property
    def source_length(self) -> int:
        """The number of source words, punctuation included."""
        return self.reads[-1]

    @property
    def is_reordered(self) -> bool:
        """Whether two of its links cross."""
        highest = -1
        for _, links in groupby(self.links, key=itemgetter(0)):
            sources = [source for _, source in links]
            if min(sources) < highest:
                return True
            highest = max(highest, *sources)
        return False


def average_lagging(path: Sequence[int], source_length: int) -> float:
    """Return the average lagging, in source words, of a path z [|y|] of words read. Eq. (4.48)."""
    rate = source_length / len(path)
    full = (t for t, read in enumerate(path, 1) if read >= source_length)
    last = next(full, len(path))
    return sum(path[t] - rate * t for t in range(last)) / last


def least_average_lagging(pair: ToyPair) -> float:
    """Return the least average lagging, in source words, that never writes a word too early.

    The path `reads` need not be the best one: the measure ends where the source is read, so it
    may pay to read all of it early. Hence the least over every place to do so. Eq. (4.48).
    """
    length, reads = pair.source_length, pair.reads
    paths = (
        (*reads[:place], *[length] * (len(reads) - place))
        for place in range(reads.index(length) + 1)
    )
    return min(average_lagging(path, length) for path in paths)


def smallest_wait_k(pair: ToyPair) -> int:
    """Return the least k for which wait-k, min(k + t - 1, |x|), has read enough for each word."""
    return max(needed - t for t, needed in enumerate(pair.reads))


def write_pair(rules: Rules, chooser: Chooser) -> ToyPair:
    """Return the sentence pair that the chooser's decisions make."""
    writer = _SentenceWriter(rules, chooser)
    pieces = writer.sentence()
    reads, links, done = [], [], 1
    for place, piece in enumerate(pieces):
        done = max(done, piece.waits_for)
        reads.append(done)
        links += [(place, source - 1) for source in piece.links]
    target = [piece.word for piece in pieces]
    return ToyPair(_text(writer.words), _text(target), tuple(reads), tuple(links))


def _text(words: Sequence[str]) -> str:
    """Return the words as raw text: a capital first, punctuation joined to the word before."""
    text = " ".join(words[:-1]).replace(" ,", ",") + words[-1]
    return text[0].upper() + text[1:]


class Finite(NamedTuple):
    """The word in second place, its position, and its valency unless it is a modal verb."""

    verb: Verb
    place: int
    valency: int
    is_modal: bool


class _SentenceWriter(PhraseWriter):
    """Writes sentences and clauses."""

    may_nest = False

    def sentence(self) -> list[Piece]:
        opening = self.pick(self.rules.openings)
        if opening == "clause":
            pieces = self.fronted_clause() + self.main_clause(opening)
        else:
            pieces = self.main_clause(opening)
            if self.settings.depth and self.has_room() and self.chance(self.settings.subordinate):
                self.put(",")
                pieces += self.subordinate_clause(self.settings.depth)
        asks = opening == "verb"
        mark = self.pick(self.rules.question_marks if asks else self.rules.statement_marks)
        place = self.put(mark)
        return [*pieces, Piece(mark, place, (place,))]

    def fronted_clause(self) -> list[Piece]:
        """Write a subordinate clause and its comma, before the main clause."""
        pieces = self.subordinate_clause(self.settings.depth)
        place = self.put(",")
        # The target marks only this comma. While a further subordinate clause could follow, the
        # source comma does not tell: only the finite verb behind it does.
        return [*pieces, Piece(",", place + 1 if self.may_nest else 0, (place,))]

    def main_clause(self, opening: str) -> list[Piece]:
        """Write a clause with the finite verb in second place, after what `opening` names."""
        front, subject, fronted = self.before_verb(opening)
        number = subject.agreement % 2 if subject else self.number()
        finite = self.finite_verb(number, bool(fronted))
        if opening == "verb":
            front = [Piece(self.lexicon.question, finite.place, (finite.place,))]
        subject = subject or self.subject(number)
        adverb = self.adverb() if opening != "adverb" else []
        valency = self.valency(bool(fronted)) if finite.is_modal else finite.valency
        objects = self.objects(valency, fronted)
        phrase, settled = self.place()
        verbs = self.close_main_clause(finite, valency, subject.agreement)
        return [*front, *subject.pieces, *verbs, *objects, *phrase, *_late(adverb, settled)]

    def before_verb(self, opening: str) -> tuple[list[Piece], Nominal | None, list[Piece]]:
        """Write what stands before the finite verb: an adverb, the subject or the object."""
        if opening == "subject":
            return [], self.subject(self.number()), []
        if opening == "object":
            return [], None, self.noun_phrase(ACCUSATIVE, self.number()).pieces
        return [self.word(self.lexicon.adverbs)] if opening == "adverb" else [], None, []

    def subordinate_clause(self, depth: int) -> list[Piece]:
        """Write a clause with its verb last, and perhaps the next one that hangs on it."""
        opening = self.word(self.lexicon.complementizers)
        number = self.number()
        subject, adverb = self.subject(number), self.adverb()
        valency = self.valency(False)
        objects = self.objects(valency, [])
        phrase, _ = self.place()
        verb = self.verb(valency)
        reading = self.pick(verb.readings)
        place = self.put(reading.prefix + verb.finite[number])
        word = Piece(reading.target[subject.agreement], place, (place,))
        pieces = [opening, *subject.pieces, word, *objects, *phrase, *adverb]
        self.may_nest = depth > 1 and self.settings.nested > 0 and self.has_room()
        if self.may_nest and self.chance(self.settings.nested):
            self.put(",")
            pieces += self.subordinate_clause(depth - 1)
        return pieces

    # -- verbs

    def valency(self, has_object: bool) -> int:
        return self.pick(self.rules.object_valencies if has_object else self.rules.valencies)

    def verb(self, valency: int) -> Verb:
        is_separable = self.chance(self.settings.separable)
        return self.pick(self.lexicon.verbs[valency][is_separable])

    def finite_verb(self, number: int, has_object: bool) -> Finite:
        """Write the second place: a modal verb, whose infinitive comes last, or the verb."""
        if self.chance(self.settings.modal):
            verb, valency, is_modal = self.pick(self.lexicon.modals), INTRANSITIVE, True
        else:
            valency, is_modal = self.valency(has_object), False
            verb = self.verb(valency)
        return Finite(verb, self.put(verb.finite[number]), valency, is_modal)

    def close_main_clause(self, finite: Finite, valency: int, agreement: int) -> list[Piece]:
        """Write the clause's last word, an infinitive or a prefix; return the target's verbs."""
        verb, place = finite.verb, finite.place
        if finite.is_modal:
            modal = verb.readings.items[0].target[agreement]
            verb = self.verb(valency)
            reading = self.pick(verb.readings)
            last = self.put(reading.prefix + verb.infinitive)
            return [Piece(modal, place, (place,)), Piece(reading.infinitive, last, (last,))]
        reading = self.pick(verb.readings)
        word = reading.target[agreement]
        if reading.prefix:
            last = self.put(reading.prefix)
            return [Piece(word, last, (place, last))]
        # A separable verb is known to have no prefix when the clause ends without one.
        is_separable = len(verb.readings.items) > 1
        return [Piece(word, len(self.words) + 1 if is_separable else place, (place,))]


def _late(adverb: list[Piece], settled: int) -> list[Piece]:
    """Let the adverb wait until no phrase of place can come before it."""
    return [Piece(piece.word, max(piece.waits_for, settled), piece.links) for piece in adverb]


__all__ = [
    "SOURCE_LANG",
    "TARGET_LANG",
    "ToyGrammar",
    "ToyPair",
    "ToySettings",
    "average_lagging",
    "least_average_lagging",
    "smallest_wait_k",
    "toy_splits",
]

SOURCE_LANG, TARGET_LANG = "qa", "qb"

# So many draws in a row without a new sentence mean that the grammar has no more of them.
_PATIENCE = 2_000
# So many draws look for a sentence whose every word training holds.
_REPLACEMENTS = 50


class _Dice:
    """Decides by chance. Only `random()` is used: its stream is the same in every Python."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random

    def pick(self, choice: Choice[Item]) -> Item:
        return choice.at(self.random())

    def chance(self, percent: int) -> bool:
        return self.random() * 100 < percent


class ToyGrammar:
    """Two invented languages made from `seed`, and an endless stream of their sentence pairs.

    `settings`, if given, replaces those of `difficulty` (1, 2 or 3). Every `stream` (0 to 99)
    has other sentences of the same languages; `toy_splits` uses 0 to 2.
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
        self._dice = _Dice(100 * seed + stream)

    def sample(self, count: int) -> list[ToyPair]:
        """Return the next `count` sentence pairs; a sentence may come twice."""
        return [write_pair(self._rules, self._dice) for _ in range(count)]


def toy_splits(
    train: int,
    seed: int = 1,
    difficulty: int = 1,
    valid: int = 200,
    test: int = 200,
    settings: ToySettings | None = None,
) -> dict[str, list[ToyPair]]:
    """Return the splits "train", "valid" and "test", in this order.

    No source sentence comes twice, and no target sentence of one split stands in another. Each
    word of valid and test, and each part of their compounds, is in train too; whole compounds may
    be new. A train split of less than some 3,000 pairs cannot always show every word; a larger
    one leaves valid and test as they are.

    Raises: ConfigError if a size is negative or the grammar has too few sentences.
    """
    sizes = {"valid": valid, "test": test, "train": train}
    faults = [f"`{name}` must not be negative, but is {n}." for name, n in sizes.items() if n < 0]
    if faults:
        raise ConfigError(faults, "Give the number of sentence pairs.")
    barred: set[str] = set()
    streams = {"train": 0, "valid": 1, "test": 2}
    grammars = {name: ToyGrammar(seed, difficulty, settings, streams[name]) for name in sizes}
    splits = {name: _draw(grammars[name], sizes[name], barred) for name in sizes}
    known = {part for pair in splits["train"] for part in word_parts(pair)}
    for name in ("valid", "test"):
        splits[name] = [_known_pair(p, grammars[name], barred, known) for p in splits[name]]
    return {name: splits[name] for name in streams}


def word_parts(pair: ToyPair) -> set[str]:
    """Return the pair's words in lower case, source compounds as their parts."""
    sources = (part for word in pair.source_words for part in word.lower().split(LINK))
    return {*sources, *(word.lower() for word in pair.target_words)}


def _draw(grammar: ToyGrammar, count: int, barred: set[str]) -> list[ToyPair]:
    """Return new pairs of which no side is barred, and bar both sides for other splits."""
    kept: dict[str, ToyPair] = {}
    misses = 0
    while len(kept) < count and misses < _PATIENCE:
        pair = grammar.sample(1)[0]
        is_new = pair.source not in kept and barred.isdisjoint((pair.source, pair.target))
        misses = 0 if is_new else misses + 1
        if is_new:
            kept[pair.source] = pair
    if len(kept) < count:
        raise ConfigError(
            f"The toy grammar has no {count} different sentences.", "Ask for fewer sentences."
        )
    for pair in kept.values():
        barred.update((pair.source, pair.target))
    return list(kept.values())


def _known_pair(pair: ToyPair, grammar: ToyGrammar, barred: set[str], known: set[str]) -> ToyPair:
    """Return the pair if every word of it is known, else another one, if one is found."""
    if word_parts(pair) <= known:
        return pair
    for _ in range(_REPLACEMENTS):
        other = grammar.sample(1)[0]
        if word_parts(other) <= known and barred.isdisjoint((other.source, other.target)):
            barred.update((other.source, other.target))
            return other
    return pair
