"""Learning of the merge operations of byte-pair encoding, many at a time, on arrays.

The most frequent pairs of symbols are merged at once as long as the result is the same as merging
them one by one: none of their occurrences touch, and no new pair is more frequent than the last of
them.

Each symbol is created by only one merge, since equal stretches of text are merged equally unless a
merge crosses their ends. So no pair gains occurrences after its creation: counts never increase.

The merges are those of subword-nmt's `learn_bpe`.

Departs: `</w>` inside a word (`a</w>b`) is the end of a word to subword-nmt. Here it is ordinary
text.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.text.bpe import WORD_END, Codes

_LEAST_COUNT = 2
# Word-final characters have numbers above all code points.
_FINAL = 0x110000
_NONE = np.iinfo(np.int64).max
_Integers = NDArray[np.int64]


class _Pair(NamedTuple):
    """Two adjacent symbols; the greatest pair is merged first."""

    frequency: int
    first: str
    second: str
    number: int


class _NewPairs(NamedTuple):
    """The pairs that merges create, grouped by merge."""

    merge: _Integers
    """Index of the merge [pairs], ascending."""
    first: _Integers
    second: _Integers
    counts: _Integers
    ends: _Integers
    """End of the occurrences of each pair in the next two arrays [pairs]."""
    gone: _Integers
    """Positions of the pairs replaced by each occurrence [occurrences]."""
    positions: _Integers


def learn(
    word_counts: Mapping[str, int], merges: int, report: Callable[[int], None] = lambda done: None
) -> Codes:
    """Return up to `merges` merge operations learned from the counts of words.

    `report` is called with the number of merges so far, once per group of simultaneous merges.
    There are fewer than `merges` if no remaining pair occurs twice. Raises ConfigError if there is
    nothing to learn.
    """
    if not any(len(word) > 1 for word in word_counts):
        raise ConfigError(
            "There is nothing to learn merges from: no word has two characters.",
            "Check the training text, or use `--words`.",
        )
    words = _Words(word_counts)
    learned: list[str] = []
    size = 8
    while pairs := words.most_frequent(min(size, merges - len(learned))):
        merged = words.merge(pairs)
        learned += (f"{pair.first} {pair.second}" for pair in pairs[:merged])
        # About as many as in the last round can be merged; trying a few more costs little.
        size = 8 + 2 * merged
        report(len(learned))
    if not learned:
        raise ConfigError(
            "There is nothing to learn merges from: no two characters are adjacent twice.",
            "Give more training text, or use `--words`.",
        )
    codes = Codes(learned)
    codes.remember(zip(word_counts, words.symbols(), strict=True))
    return codes


class _Words:
    """The distinct words as one array of symbols, with the pairs of neighbouring symbols.

    A symbol is stored at the position of its first character; the position `size` means none. The
    occurrences of a pair are a slice of `_occurrences`; those that other merges have removed since
    are filtered out on lookup.
    """

    def __init__(self, word_counts: Mapping[str, int]) -> None:
        lengths = np.fromiter(map(len, word_counts), np.int64, len(word_counts))
        text = "".join(word_counts).encode("utf-32-le", "surrogatepass")
        characters = np.frombuffer(text, np.uint32).astype(np.int64)
        size = self._size = len(characters)
        self._word_starts = np.cumsum(lengths) - lengths
        ends = self._word_starts + lengths - 1
        characters[ends] += _FINAL
        occurs = np.zeros(2 * _FINAL, bool)
        occurs[characters] = True
        self._strings = [
            chr(number) if number < _FINAL else chr(number - _FINAL) + WORD_END
            for number in np.flatnonzero(occurs).tolist()
        ]
        self._symbols = (np.cumsum(occurs) - 1)[np.append(characters, 0)]
        self._weights = np.repeat(np.fromiter(word_counts.values(), np.int64), lengths)
        self._next = np.arange(1, size + 2)
        self._next[ends] = size
        self._previous = np.arange(-1, size)
        self._previous[self._word_starts] = size
        self._merge_of_first = np.full(size + 1, _NONE)
        self._merge_of_second = np.full(size + 1, _NONE)
        # A merge of two symbols creates at most two occurrences of pairs.
        self._pair_at = np.full(size + 1, -1)
        self._occurrences = np.empty(3 * size, np.int64)
        self._starts = np.zeros(3 * size + 1, np.int64)
        self._counts, self._first, self._second = np.empty((3, 3 * size), np.int64)
        self._pairs = 0
        self._queue: list[_Pair] = []
        """The pairs that occur `_least` times, the best last; counts may have decreased since."""
        self._least = _NONE
        positions = np.flatnonzero(self._next[:-1] != size)
        merge = np.zeros(len(positions), np.int64)
        first, second = self._symbols[positions], self._symbols[positions + 1]
        self._add(self._group(merge, first, second, positions, positions))

    def most_frequent(self, number: int) -> list[_Pair]:
        """Return the next pairs to be merged, at most `number`; none if no pair occurs twice."""
        best: list[_Pair] = []
        while len(best) < number and (self._queue or (not best and self._fill_queue())):
            pair = self._queue.pop()
            count = int(self._counts[pair.number])
            if count == pair.frequency:
                best.append(pair)
            elif count >= self._least:
                insort(self._queue, pair._replace(frequency=count))
        return best

    def _fill_queue(self) -> bool:
        counts = self._counts[: self._pairs]
        self._least = max(_LEAST_COUNT, int(counts.max(initial=0)) * 3 // 4)
        self._queue = sorted(map(self._pair, np.flatnonzero(counts >= self._least).tolist()))
        return bool(self._queue)

    def _pair(self, number: int) -> _Pair:
        first, second = self._strings[self._first[number]], self._strings[self._second[number]]
        return _Pair(int(self._counts[number]), first, second, number)

    def merge(self, pairs: Sequence[_Pair]) -> int:
        """Merge as many of the first `pairs` as can be merged at once; return their number."""
        first, merge = self._find(pairs)
        second = self._next[first]
        left, right = self._previous[first], self._next[second]
        self._merge_of_first[first] = self._merge_of_second[second] = merge
        before, after = self._merge_of_second[left], self._merge_of_first[right]
        touch = np.minimum(before, after) < merge
        touch |= np.minimum(self._merge_of_second[first], self._merge_of_first[second]) < merge
        self._merge_of_first[first] = self._merge_of_second[second] = _NONE
        limit = int(merge[touch].min(initial=len(pairs)))
        # Of a pair of two equal new symbols only the first has a right neighbour.
        symbol = len(self._strings) + merge
        lefts = (left != self._size) & (before != merge) & (merge < limit)
        rights = (right != self._size) & (merge < limit)
        others = np.where(after == merge, symbol, self._symbols[right])
        new = self._group(
            np.append(merge[lefts], merge[rights]),
            np.append(self._symbols[left[lefts]], symbol[rights]),
            np.append(symbol[lefts], others[rights]),
            np.append(left[lefts], second[rights]),
            np.append(left[lefts], first[rights]),
        )
        self._strings += (pair.first + pair.second for pair in pairs)
        limit = self._before_rivals(pairs[:limit], new)
        del self._strings[int(symbol[0] - merge[0]) + limit :]
        self._queue += reversed(pairs[limit:])
        done = np.searchsorted(merge, limit)
        first, second, right = first[:done], second[:done], right[:done]
        self._symbols[first], self._symbols[second] = symbol[:done], _NONE
        self._next[first], self._previous[right] = right, first
        kept = int(np.searchsorted(new.merge, limit))
        end = new.ends[kept - 1] if kept else 0
        new = _NewPairs(
            new.merge[:kept], new.first[:kept], new.second[:kept], new.counts[:kept],
            new.ends[:kept], new.gone[:end], new.positions[:end],
        )  # fmt: skip
        np.subtract.at(self._counts, self._pair_at[new.gone], self._weights[new.gone])
        self._counts[[pair.number for pair in pairs[:limit]]] = 0
        self._pair_at[first] = self._pair_at[second] = -1
        self._add(new)
        return limit

    def symbols(self) -> Iterator[list[str]]:
        """Yield the current symbols of each word."""
        exists = self._symbols[:-1] != _NONE
        numbers = self._symbols[:-1][exists].tolist()
        start = 0
        for end in np.cumsum(np.add.reduceat(exists, self._word_starts, dtype=np.int64)).tolist():
            yield [self._strings[number] for number in numbers[start:end]]
            start = end

    def _find(self, pairs: Sequence[_Pair]) -> tuple[_Integers, _Integers]:
        """Return the positions of the occurrences, and the index in `pairs` of each."""
        numbers = np.array([pair.number for pair in pairs])
        starts, ends = self._starts[numbers], self._starts[numbers + 1]
        slices = zip(starts.tolist(), ends.tolist(), strict=True)
        positions = np.concatenate([self._occurrences[start:end] for start, end in slices])
        merge = np.repeat(np.arange(len(pairs)), ends - starts)
        valid = self._pair_at[positions] == numbers[merge]
        positions, merge = positions[valid], merge[valid]
        # Where a symbol repeats itself, every second pair is merged.
        overlaps = self._next[positions[:-1]] == positions[1:]
        overlaps = np.append(False, overlaps & (merge[1:] == merge[:-1]))
        if overlaps.any():
            index = np.arange(len(positions))
            odd = (index - np.maximum.accumulate(np.where(overlaps, 0, index))) % 2 == 1
            positions, merge = positions[~odd], merge[~odd]
        return positions, merge

    def _before_rivals(self, pairs: Sequence[_Pair], new: _NewPairs) -> int:
        """Return how many of `pairs` precede every new pair that the ones before them create."""
        limit = len(pairs)
        for index in np.flatnonzero(new.counts >= pairs[-1].frequency).tolist():
            first, second = self._strings[new.first[index]], self._strings[new.second[index]]
            rival = _Pair(int(new.counts[index]), first, second, 0)
            while limit > new.merge[index] + 1 and rival > pairs[limit - 1]:
                limit -= 1
        return limit

    def _group(
        self, merge: _Integers, first: _Integers, second: _Integers,
        gone: _Integers, positions: _Integers,
    ) -> _NewPairs:  # fmt: skip
        """Return the pairs whose occurrences are described by the items of the arrays."""
        scale = int(max(first.max(initial=0), second.max(initial=0))) + 1
        keys = (merge * scale + first) * scale + second
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
        counts = np.add.reduceat(self._weights[positions[order]], starts) if len(keys) else keys
        leaders = order[starts]
        return _NewPairs(
            merge[leaders], first[leaders], second[leaders], counts,
            np.append(starts[1:], len(keys))[: len(starts)], gone[order], positions[order],
        )  # fmt: skip

    def _add(self, new: _NewPairs) -> None:
        old, self._pairs = self._pairs, self._pairs + len(new.counts)
        added, start = slice(old, self._pairs), self._starts[old]
        self._occurrences[start : start + len(new.positions)] = new.positions
        self._starts[old + 1 : self._pairs + 1] = start + new.ends
        self._counts[added], self._first[added], self._second[added] = (
            new.counts, new.first, new.second,
        )  # fmt: skip
        lengths = np.diff(self._starts[old : self._pairs + 1])
        self._pair_at[new.positions] = np.repeat(np.arange(old, self._pairs), lengths)
        for number in (old + np.flatnonzero(new.counts >= self._least)).tolist():
            insort(self._queue, self._pair(number))
