"""The synchronous grammar of the toy languages: each rule writes source words and their target.

Source (qa): the finite verb of a main clause comes second and its prefix last; the verb of a
subordinate clause comes last, in one word; so does the infinitive below a modal verb. Case allows
the object to come first.
Target (qb): subject, verb, object, recipient, place, adverb in every clause; only an adverb that
opens the source sentence opens the target's too.
Decisions are taken in the order of the source words: what is not yet written is not yet decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nmtgrid.data.toy.toy_pair import ToyPair
from nmtgrid.data.toy.toy_phrases import (
    ACCUSATIVE,
    INTRANSITIVE,
    Nominal,
    PhraseWriter,
    Piece,
    Rules,
)
from nmtgrid.data.toy.toy_words import Chooser, Verb


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
