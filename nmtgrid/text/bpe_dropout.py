"""BPE-dropout (Provilkov et al. 2020): sentences are re-segmented with merges skipped at random.

Each step of BPE applies the first merge in the codes that is possible in a word; with dropout every
possible merge is skipped with probability p, independently at each step. The possible outcomes for
a word form a tree of yes-no decisions: it is built as far as draws reach and cached, so that all
words of a text descend together, without a loop over words. Called by data/dropout.py.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from nmtgrid.base.subword_marks import JOINER
from nmtgrid.text.bpe import LONGEST_WORD, WORD_END, Codes
from nmtgrid.text.vocabulary import UNKNOWN, Vocabulary

_GOLDEN = 0x9E3779B97F4A7C15
_LARGEST_SIZE = 1 << 24
"""Maximum number of symbols in all trees, some hundred MB; beyond it all are rebuilt."""
_NEW = -1
_POSITIONS = 1 << 16


def mixed(keys: NDArray[numpy.uint64], counters: Any) -> NDArray[numpy.uint64]:
    """Return a random number of 64 bits for each key and counter: SplitMix64 (Steele et al. 2014).

    `keys` seed the generators, `counters` (from 0) number the draws from each of them.
    """
    # Draws are numbered, not sequential, so that those of a word do not depend on other words.
    # Arrays, because numpy's scalars warn of overflow, which is intended here.
    steps = numpy.atleast_1d(numpy.asarray(counters, numpy.uint64)) + numpy.uint64(1)
    x = keys + steps * numpy.uint64(_GOLDEN)
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    mixed_keys: NDArray[numpy.uint64] = x ^ (x >> numpy.uint64(31))
    return mixed_keys


def happens(numbers: NDArray[numpy.uint64], probability: float) -> NDArray[numpy.bool_]:
    """Return for each random number whether an event with `probability` happens (0: never)."""
    return numpy.asarray((numbers >> numpy.uint64(11)) * 2.0**-53 < probability)


class _Decision(NamedTuple):
    """The decision whether to apply merge `number` of `merges`, those possible in `symbols`.

    `kept` are the positions of the merges accepted so far. A merge is stored as its rank times
    `_POSITIONS` plus its position: such numbers sort in the order in which BPE applies merges, and
    take less memory and time than pairs.
    """

    symbols: tuple[str, ...]
    merges: tuple[int, ...]
    number: int
    kept: tuple[int, ...]


class BpeDropout:
    """Re-segments sentences of one language, skipping each merge with a `probability`.

    The merges are those of `codes`, drawn as by subword-nmt's `encode`. A unit that is not in the
    vocabulary is split again as with subword-nmt's `--vocabulary`; if that does not help, the word
    keeps its plain segmentation, as do words with `<unk>` and words of over 1,000 characters.
    """

    def __init__(self, codes: Codes, vocabulary: Vocabulary, probability: float) -> None:
        self._codes, self._vocabulary, self._probability = codes, vocabulary, probability
        self._is_final = numpy.array([not token.endswith(JOINER) for token in vocabulary.types])
        # Whether `<unk>` ends its word is unknown: the next unit counts as part of the same word.
        self._is_final[UNKNOWN] = False
        self._clear()

    def _clear(self) -> None:
        self._size = 0
        # For each state: its decision, the next states (merge skipped, merge applied), and its
        # leaf, if it is one.
        self._decisions: list[_Decision | None] = []
        self._next, self._leaf_of = array("i"), array("i")
        self._state_of_symbols: dict[tuple[str, ...], int] = {}
        # For each leaf: where its ids begin and end.
        self._ids, self._bounds = array("i"), array("q", [0])
        self._state_of_units: dict[bytes, int] = {}
        # Most words are a single unit: their states are looked up without Python.
        self._state_of_unit = numpy.full(len(self._vocabulary), _NEW)

    def segment(
        self, tokens: NDArray[Any], lengths: NDArray[Any], keys: NDArray[numpy.uint64]
    ) -> tuple[NDArray[numpy.int32], NDArray[numpy.int64]]:
        """Return the new ids of the sentences, concatenated, and the length of each.

        tokens [N] are the ids of B sentences in plain segmentation, lengths [B] sum to N. The
        result for a sentence depends only on its ids and its key [B].
        """
        if not len(tokens):
            return numpy.empty(0, numpy.int32), numpy.asarray(lengths, numpy.int64)
        if self._size > _LARGEST_SIZE:
            self._clear()
        sentence = numpy.repeat(numpy.arange(len(lengths)), lengths)
        starts = numpy.cumsum(lengths) - lengths
        is_last = self._is_final[tokens]
        is_last[(starts + lengths - 1)[lengths > 0]] = True
        ends = numpy.flatnonzero(is_last) + 1
        firsts = numpy.concatenate([[0], ends[:-1]])
        sentence = sentence[firsts]
        word_keys = mixed(keys[sentence], firsts - starts[sentence])
        leaves = self._walk(self._states(tokens, firsts, ends), word_keys)
        begins, counts = _gather(self._bounds, leaves), _gather(self._bounds, leaves + 1)
        counts -= begins
        # The ids of the leaves are concatenated by gathering them with an index.
        shifts = begins - (numpy.cumsum(counts) - counts)
        ids = _gather(self._ids, numpy.arange(counts.sum()) + numpy.repeat(shifts, counts))
        return ids, numpy.bincount(sentence, counts, len(lengths)).astype(numpy.int64)

    def _states(
        self, tokens: NDArray[Any], firsts: NDArray[Any], ends: NDArray[Any]
    ) -> NDArray[Any]:
        """Return the initial state of each word."""
        states = self._state_of_unit[tokens[firsts]]
        for unit in numpy.unique(tokens[firsts][(states == _NEW) & (ends - firsts == 1)]):
            self._state_of_unit[unit] = self._begin((int(unit),))
        states = numpy.asarray(self._state_of_unit[tokens[firsts]])
        several = numpy.flatnonzero(ends - firsts > 1)
        packed = numpy.ascontiguousarray(tokens, numpy.int32).tobytes()
        known = self._state_of_units
        for word, first, end in zip(
            several.tolist(), firsts[several].tolist(), ends[several].tolist(), strict=True
        ):
            units = packed[4 * first : 4 * end]
            state = known.get(units)
            if state is None:
                state = known[units] = self._begin(tokens[first:end].tolist())
            states[word] = state
        return states

    def _begin(self, ids: Sequence[int]) -> int:
        """Return the state of the word with these units before any merge."""
        units = self._vocabulary.decode(ids)
        word = "".join(unit.removesuffix(JOINER) for unit in units[:-1]) + units[-1]
        # Words that the codes segment otherwise, such as words with a literal joiner, are kept.
        if UNKNOWN in ids or len(word) > LONGEST_WORD or self._codes.segment((word,)) != units:
            return self._add_leaf(ids)
        return self._segmentation(self._codes.symbols(word))

    def _walk(self, states: NDArray[Any], keys: NDArray[numpy.uint64]) -> NDArray[Any]:
        """Return the leaf reached from each state with the draws of `keys`."""
        leaves = _gather(self._leaf_of, states)
        active = numpy.flatnonzero(leaves == _NEW)
        states, keys, step = states[active], keys[active], 0
        while len(active):
            is_made = ~happens(mixed(keys, step), self._probability)
            branches = 2 * states.astype(numpy.int64) + is_made
            states = _gather(self._next, branches)
            new = numpy.unique(branches[states == _NEW])
            if len(new):
                for branch in new.tolist():
                    self._next[branch] = self._grow(branch)
                states = _gather(self._next, branches)
            leaves[active] = reached = _gather(self._leaf_of, states)
            goes_on = reached == _NEW
            active, states, keys = active[goes_on], states[goes_on], keys[goes_on]
            step += 1
        return leaves

    def _grow(self, branch: int) -> int:
        """Return the state after state `branch // 2` skips (even) or applies (odd) its merge."""
        state, is_made = divmod(branch, 2)
        decision = self._decisions[state]
        assert decision is not None
        if self._next[branch ^ 1] != _NEW:
            self._decisions[state] = None  # no longer needed
        symbols, merges, number, kept = decision
        rank, position = divmod(merges[number], _POSITIONS)
        if is_made:
            kept = (*kept, position)
        number += 1
        has_more = number < len(merges)
        # All positions of the first accepted merge are decided before any later merge.
        if kept and not (has_more and merges[number] // _POSITIONS == rank):
            return self._segmentation(_merged(symbols, kept))
        if has_more:
            return self._add(_Decision(symbols, merges, number, kept))
        # Every merge was skipped, which ends the segmentation of the word.
        return self._leaf(symbols)

    def _segmentation(self, symbols: tuple[str, ...]) -> int:
        """Return the state of a word that is currently segmented into `symbols`."""
        state = self._state_of_symbols.get(symbols)
        if state is None:
            ranks = map(self._codes.rank, itertools.pairwise(symbols))
            merges = [
                rank * _POSITIONS + position
                for position, rank in enumerate(ranks)
                if rank is not None
            ]
            if merges:
                state = self._add(_Decision(symbols, tuple(sorted(merges)), 0, ()))
            else:
                state = self._leaf(symbols)
            self._state_of_symbols[symbols] = state
        return state

    def _add(self, decision: _Decision | None, leaf: int = _NEW) -> int:
        self._decisions.append(decision)
        self._next.extend((_NEW, _NEW))
        self._leaf_of.append(leaf)
        self._size += 16 + (0 if decision is None else len(decision.symbols))
        return len(self._decisions) - 1

    def _leaf(self, symbols: tuple[str, ...]) -> int:
        """Return the state of a word whose final segmentation is `symbols`."""
        ids = self._vocabulary.encode(self._codes.units(symbols, self._vocabulary))
        if UNKNOWN in ids:
            word = "".join(symbols).removesuffix(WORD_END)
            ids = self._vocabulary.encode(self._codes.segment((word,)))
        return self._add_leaf(ids)

    def _add_leaf(self, ids: Sequence[int]) -> int:
        self._ids.extend(ids)
        self._bounds.append(len(self._ids))
        return self._add(None, len(self._bounds) - 2)


def _gather(values: array[int], index: NDArray[Any]) -> NDArray[Any]:
    """Return the `values` at these indices."""
    # The view must not outlive this call: an array with views cannot grow.
    return numpy.asarray(numpy.frombuffer(values, values.typecode)[index])


def _merged(symbols: tuple[str, ...], positions: tuple[int, ...]) -> tuple[str, ...]:
    """Return `symbols` with those at `positions` joined to the next, overlaps left to right."""
    merged: list[str] = []
    begin = 0
    for position in positions:
        # This symbol has just become the right part of a merge (x x x: xx x).
        if position < begin:
            continue
        merged += [*symbols[begin:position], symbols[position] + symbols[position + 1]]
        begin = position + 2
    return (*merged, *symbols[begin:])
