"""The toy corpus against brute force: whole small languages are written out and compared."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from nmtgrid.data.toy.corpus import Chooser, ToyGrammar, ToyPair, write_pair
from nmtgrid.data.toy.language import Choice, Item, Rules
from tests.unit.data.toy_languages import (
    BARE,
    LANGUAGES,
    is_reordered,
    least_reads,
    shared,
    smallest_wait_k,
    tiny_lexicon,
    whole_language,
)


@pytest.mark.parametrize("name", LANGUAGES)
def test_reads_are_sound_and_least_in_whole_languages(name: str) -> None:
    settings = LANGUAGES[name]
    lexicon = tiny_lexicon(plain_verbs=1 if settings.separable else 2)
    pairs = list(whole_language(Rules(lexicon, settings)))
    assert len(pairs) > 100
    for pair, expected in zip(pairs, least_reads(pairs), strict=True):
        assert pair.reads == expected, pair


def test_brute_force_and_reads_of_one_sentence_by_hand() -> None:
    settings = replace(BARE, separable=100)
    pairs = list(whole_language(Rules(tiny_lexicon(), settings)))
    index = [p.source for p in pairs].index("Noa n0 tze aca n1 ab.")
    # The determiner waits for its noun; verb, and so all behind it, for the prefix, word 6 of 7.
    expected = (2, 2, 6, 6, 6, 7)
    assert least_reads(pairs)[index] == pairs[index].reads == expected
    assert pairs[index].target == "Da N0 abtzxa Dc N1."


# -- the real grammar: sentences that share a beginning


class Replay(Chooser):
    """Repeats the first decisions of a sentence and takes the others by chance."""

    def __init__(self, dice: Random, kept: list[object]) -> None:
        self.dice, self.kept, self.decisions = dice, kept, list[object]()

    def _decide(self, decision: Callable[[], object]) -> object:
        index = len(self.decisions)
        self.decisions.append(self.kept[index] if index < len(self.kept) else decision())
        return self.decisions[-1]

    def pick(self, choice: Choice[Item]) -> Item:
        return self._decide(lambda: choice.at(self.dice.random()))  # type: ignore[return-value]

    def chance(self, percent: int) -> bool:
        # Even odds for all that may happen, so that rare continuations are found too.
        rule = percent if percent in (0, 100) else 50
        return bool(self._decide(lambda: self.dice.random() * 100 < rule))


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_reads_are_sound_and_least_for_other_endings_of_real_sentences(difficulty: int) -> None:
    grammar = ToyGrammar(4, difficulty)
    rules, dice = Rules(grammar.lexicon, grammar.settings), Random(difficulty)
    places = least = 0
    for _ in range(40):
        chooser = Replay(dice, [])
        pair = write_pair(rules, chooser)
        source, target = pair.source_words, pair.target_words
        unsettled = [0] * len(target)  # the longest shared beginning that misleads
        for cut in range(len(chooser.decisions)):
            for _ in range(16):
                other = write_pair(rules, Replay(dice, chooser.decisions[:cut]))
                j = shared(source, other.source_words)
                sure = shared(target, other.target_words)
                for t in range(sure, len(target)):
                    unsettled[t] = max(unsettled[t], j)
        assert all(j < read for j, read in zip(unsettled, pair.reads, strict=True)), pair
        places += len(target)
        least += sum(j == read - 1 for j, read in zip(unsettled, pair.reads, strict=True))
    assert least >= 0.99 * places


# -- records


def pair_with(reads: tuple[int, ...], links: tuple[tuple[int, int], ...] = ()) -> ToyPair:
    return ToyPair("a b c.", "A b c.", reads, links)


def test_smallest_wait_k_covers_the_reads_and_no_smaller_one_does() -> None:
    assert smallest_wait_k(pair_with((1, 2, 3, 4))) == 1
    assert smallest_wait_k(pair_with((1, 4, 4, 4))) == 3
    assert smallest_wait_k(pair_with((1, 1, 1, 4))) == 1
    for pair in ToyGrammar(3, 3).sample(300):
        k, length = smallest_wait_k(pair), pair.reads[-1]

        def covers(k: int, pair: ToyPair = pair, length: int = length) -> bool:
            return all(min(k + t, length) >= read for t, read in enumerate(pair.reads))

        assert covers(k)
        assert k == 1 or not covers(k - 1)


def test_is_reordered_is_a_crossing_of_links() -> None:
    assert not is_reordered(pair_with((1, 2), ((0, 0), (1, 1))))
    assert not is_reordered(pair_with((1, 1), ((0, 0), (1, 0))))
    assert not is_reordered(pair_with((2, 2), ((0, 0), (0, 1), (1, 1))))
    assert is_reordered(pair_with((2, 2), ((0, 1), (1, 0))))
    assert is_reordered(pair_with((3, 3), ((0, 0), (0, 2), (1, 1))))
