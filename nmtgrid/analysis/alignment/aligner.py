"""Word alignments of sentence pairs: read from a Pharaoh file, or learned by an IBM-2 aligner.

The aligner is IBM model 2 with a prior that favours the diagonal, as in fast-align (Dyer et al.
2013): EM in both directions over blocks of pairs of one shape, all words of a block at once; then
the directions are joined (`pharaoh.symmetrise`). Words are separated by spaces, so that a Pharaoh
file and its text fit together. `nmtgrid analyze align`, `difficulty` and `paths` call it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray

from nmtgrid.analysis.alignment.pharaoh import Heuristic, Links, read_links, symmetrise
from nmtgrid.analysis.systems import check_lengths, read_text
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.spans import plural

Integers = NDArray[numpy.int32]
Numbers = NDArray[numpy.float64]
Words = Sequence[str]
Advance = Callable[[str, int, int], None]
"""Called with the current step, and how much of it is done out of how much."""

# Number of cells that are numbered at a time.
_CHUNK = 1 << 22
# A wrong file, or one without line ends, must not take all memory.
MOST_CELLS = 1 << 24
"""Maximum number of cells of one sentence pair: larger lines are not sentences."""
_MARKS = ".,;:!?…\"'()[]{}<>«»„“”‚‘’¡¿。，！？、；："


@dataclasses.dataclass(frozen=True)
class Block:
    """Pairs of one shape: their indices in the corpus, and the numbers of words and cells."""

    members: list[int]
    source: Integers
    target: Integers
    """[B, n] and [B, m]."""
    cells: Integers
    """[B, m, n]: rows of the table of pairs of words."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Blocks, and the source and target word of each row of the table of pairs of words."""

    blocks: list[Block]
    pair_source: Integers
    pair_target: Integers
    source_types: int
    target_types: int


def lay_out(
    source: Sequence[Words],
    target: Sequence[Words],
    advance: Advance = lambda what, done, total: None,
) -> Corpus:
    """Return the pairs whose sides both have words.

    Words are equal if they differ only in case or in punctuation at their edges. Raises InputError
    with the line for a pair of immense lines.
    """
    done = total = 0
    for line, (x, y) in enumerate(zip(source, target, strict=True), start=1):
        total += len(x) * len(y)
        if len(x) * len(y) > MOST_CELLS:
            raise InputError(
                f"line {line} has {len(x):,} source and {len(y):,} target words: too many "
                "for a sentence pair.",
                "Split the line into sentences, or remove it.",
            )
    source_ids, source_types = _numbered(source)
    target_ids, target_types = _numbered(target)
    chunks: list[tuple[list[Block], NDArray[numpy.int64]]] = []
    # Chunk by chunk: the pairs of words of all cells at once would not fit into memory.
    for groups in _batches([*map(len, source)], [*map(len, target)]):
        blocks, keys = [], []
        for members in groups:
            x_ids = numpy.stack([source_ids[member] for member in members])
            y_ids = numpy.stack([target_ids[member] for member in members])
            table = x_ids[:, None, :].astype(numpy.int64) * target_types + y_ids[:, :, None]
            keys.append(table.ravel())
            cells = numpy.empty(table.shape, dtype=numpy.int32)
            blocks.append(Block(members, x_ids, y_ids, cells))
        unique, rows = numpy.unique(numpy.concatenate(keys), return_inverse=True)
        start = 0
        for block in blocks:
            stop = start + block.cells.size
            block.cells[...] = rows[start:stop].reshape(block.cells.shape)
            start = stop
        chunks.append((blocks, unique))
        done += len(rows)
        advance("laying out", done, total)
    uniques = [unique for _, unique in chunks]
    every = numpy.unique(numpy.concatenate(uniques)) if uniques else numpy.empty(0, numpy.int64)
    # Map numbers within a chunk to those within the corpus.
    for blocks, unique in chunks:
        rows = numpy.searchsorted(every, unique).astype(numpy.int32)
        for block in blocks:
            block.cells[...] = rows[block.cells]
    return Corpus(
        [block for blocks, _ in chunks for block in blocks],
        (every // max(target_types, 1)).astype(numpy.int32),
        (every % max(target_types, 1)).astype(numpy.int32),
        source_types,
        target_types,
    )


def form(word: str) -> str:
    """Return the form that equal words share: no case, no punctuation at the edges."""
    return word.casefold().strip(_MARKS) or word


def _numbered(sentences: Sequence[Words]) -> tuple[list[Integers], int]:
    """Return each sentence as numbers of words, and how many words there are."""
    numbers: dict[str, int] = {}

    # Cached, so that a word is folded once, not at each occurrence.
    @functools.cache
    def number(word: str) -> int:
        return numbers.setdefault(form(word), len(numbers))

    ids = [
        numpy.fromiter(map(number, words), dtype=numpy.int32, count=len(words))
        for words in sentences
    ]
    return ids, len(numbers)


def _batches(source: Sequence[int], target: Sequence[int]) -> list[list[list[int]]]:
    """Return chunks of groups of pairs of equal shape, the same for the same lengths."""

    def shape(pair: int) -> tuple[int, int]:
        return target[pair], source[pair]

    filled = [pair for pair in range(len(source)) if source[pair] and target[pair]]
    filled.sort(key=shape)
    chunks: list[list[list[int]]] = []
    room = 0
    for (m, n), group in groupby(filled, key=shape):
        members = list(group)
        while members:
            if room < m * n:
                chunks.append([])
                room = max(_CHUNK, m * n)
            fitting, members = members[: room // (m * n)], members[room // (m * n) :]
            chunks[-1].append(fitting)
            room -= len(fitting) * m * n
    return chunks


# Bounds within which the tension is sought.
_LEAST, _MOST = 0.1, 40.0
_STEPS = 12


def prior_table(m: int, n: int, tension: float) -> tuple[Numbers, Numbers]:
    """Return shares and -|t/m - j/n|, both [m, n]: n conditioning words per written one."""
    # Closeness on the diagonal of relative positions, as in Dyer et al. 2013; 0 is the best.
    distance = -numpy.abs(numpy.arange(1, m + 1)[:, None] / m - numpy.arange(1, n + 1)[None, :] / n)
    shares = numpy.exp(tension * distance)
    shares /= shares.sum(1, keepdims=True)
    return shares, distance


def fitted_tension(
    expected: float, weights: Mapping[tuple[int, int], Numbers], start: float = 4.0
) -> float:
    """Return the most likely tension, whose mean closeness equals the `expected` sum.

    `weights` has, for each shape (m, n), the number of words of each written position that picked a
    conditioning word [m]. The likelihood is concave in the tension: Newton's steps, kept within a
    bracket.
    """
    least, most, tension = _LEAST, _MOST, start
    for _ in range(_STEPS):
        # The mean closeness under the prior, and its variance, summed over the words.
        mean = spread = 0.0
        for (m, n), words in weights.items():
            shares, distance = prior_table(m, n, tension)
            first = (shares * distance).sum(1)
            second = (shares * distance * distance).sum(1)
            mean += float((words * first).sum())
            spread += float((words * (second - first * first)).sum())
        gap = expected - mean
        if gap > 0:
            least = tension
        else:
            most = tension
        # Without any spread (pairs of one word) all tensions are equally likely.
        if abs(gap) < 1e-9 * max(1.0, abs(expected)) or spread <= 0:
            break
        # Newton's step may leave the bracket if the likelihood is flat: the bracket is then halved.
        step = tension + gap / spread
        tension = step if least < step < most else (least + most) / 2
    return tension


@dataclasses.dataclass(frozen=True)
class AlignerSettings:
    """`iterations` of EM, the last of which only aligns.

    `null` is p0; `tension` the strength of the diagonal, 0 for none, learned from this start unless
    `fixed`; `concentration` that of the Dirichlet prior, 0 for plain maximum likelihood.
    """

    iterations: int = 5
    null: float = 0.08
    tension: float = 4.0
    fixed: bool = False
    concentration: float = 0.01
    heuristic: Heuristic = "grow-diag-final-and"


@dataclasses.dataclass(frozen=True)
class AlignedPairs:
    """The words of both sides, their links, and a sentence on the origin of the links.

    Links are source word first, from 0, in order; `tensions`, if they were learned, those of the
    target given the source, and of the source given the target.
    """

    source: Sequence[Words]
    target: Sequence[Words]
    links: Sequence[Links]
    origin: str
    tensions: tuple[float, float] | None = None

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Return the source and target words of each pair."""
        return [(len(x), len(y)) for x, y in zip(self.source, self.target, strict=True)]

    @property
    def unaligned(self) -> float:
        """Return the share of target words without a link."""
        words = sum(map(len, self.target))
        linked = sum(len({target for _, target in links}) for links in self.links)
        return 1.0 - linked / words if words else 0.0


def align(
    source: Sequence[Words],
    target: Sequence[Words],
    settings: AlignerSettings | None = None,
    more: tuple[Sequence[Words], Sequence[Words]] = ([], []),
    advance: Advance = lambda what, done, total: None,
) -> AlignedPairs:
    """Return the pairs with the links that are learned from them and from `more`.

    A pair with an empty side has no links. Raises InputError for an immense line.
    """
    settings = settings or AlignerSettings()
    count = len(source)
    # Both directions read the same cells; the layout is the larger part of the memory. More text
    # comes last: its links are not returned.
    corpus = lay_out([*source, *more[0]], [*target, *more[1]], advance)
    choices, tensions = [], []
    for backward in (False, True):
        direction = _Direction(corpus, settings, backward)
        name = "backward" if backward else "forward"
        # The last iteration only aligns, with what the others have learned.
        for iteration in range(settings.iterations - 1):
            advance(f"learning {name}", iteration, settings.iterations)
            direction.learn()
        advance(f"learning {name}", settings.iterations - 1, settings.iterations)
        choices.append(direction.choices(count))
        tensions.append(direction.tension)
    links = []
    for pair, (forward, backwards) in enumerate(zip(*choices, strict=True)):
        first = [(j, t) for t, j in enumerate(forward) if j >= 0]
        second = [(j, t) for j, t in enumerate(backwards) if t >= 0]
        links.append(symmetrise(first, second, settings.heuristic))
        if pair % 5000 == 0:
            advance("joining", pair, count)
    origin = (
        f"Word alignments were learned from {plural(count + len(more[0]), 'pair')} by nmtgrid's "
        "aligner (IBM model 2 that favours the diagonal, as in fast-align, "
        f"{settings.iterations} iterations), the two directions joined by {settings.heuristic}."
    )
    return AlignedPairs(source, target, links, origin, (tensions[0], tensions[1]))


class _Direction:
    """One direction of EM: each word of the written side picks one of the conditioning side."""

    def __init__(self, corpus: Corpus, settings: AlignerSettings, backward: bool) -> None:
        self.corpus, self.settings, self.backward = corpus, settings, backward
        pairs = (corpus.pair_source, corpus.pair_target)
        self.conditions = pairs[backward]
        self.condition_types = (corpus.source_types, corpus.target_types)[backward]
        written_types = (corpus.target_types, corpus.source_types)[backward]
        # All equally probable at first: any constant will do.
        self.table = numpy.ones(len(self.conditions))
        self.null_table = numpy.ones(written_types)
        self.tension = settings.tension
        self.iteration = 0

    def learn(self) -> None:
        """Do one iteration of EM. The first one does not change the tension, as in fast-align."""
        counts, nulls = numpy.zeros_like(self.table), numpy.zeros_like(self.null_table)
        expected = 0.0
        weights: dict[tuple[int, int], Numbers] = {}
        for block in self.corpus.blocks:
            cells, written = self._sides(block)
            shares, none, distance = self._posterior(cells, written)
            # `counts[cells] += shares` would count a pair of words only once if a block has it
            # twice.
            numpy.add.at(counts, cells.ravel(), shares.ravel())
            numpy.add.at(nulls, written.ravel(), none.ravel())
            expected += float((shares.sum(0) * distance).sum())
            shape = (cells.shape[1], cells.shape[2])
            weights[shape] = weights.get(shape, 0.0) + (1.0 - none).sum(0)
        if self.iteration and not self.settings.fixed and self.settings.tension > 0:
            likeliest = fitted_tension(expected, weights, self.tension)
            # The most likely tension is too strong: the posterior depends on the prior already, so
            # that each fit would strengthen the next. Half the way, on a log scale, aligns better.
            self.tension = math.sqrt(self.settings.tension * likeliest)
        self.iteration += 1
        # Variational Bayes with a Dirichlet prior: a rare word should not explain all words that it
        # occurs with once.
        totals = numpy.zeros(self.condition_types)
        alpha = self.settings.concentration
        numpy.add.at(totals, self.conditions, counts + alpha)
        self.table = _ratio(counts + alpha, totals, self.conditions, alpha > 0)
        nulls += alpha
        # All words that no word explains share one distribution.
        only = numpy.zeros(len(nulls), dtype=numpy.int32)
        self.null_table = _ratio(nulls, nulls.sum(keepdims=True), only, alpha > 0)

    def choices(self, count: int) -> list[list[int]]:
        """Return, for each of the first pairs, the conditioning word that each written word picks.

        -1 means none, which wins ties; otherwise the first of equally probable words wins.
        """
        choices: list[list[int]] = [[] for _ in range(count)]
        for block in self.corpus.blocks:
            # No links are needed for the additional text, which is only learned from.
            if min(block.members) >= count:
                continue
            cells, written = self._sides(block)
            shares, none, _ = self._posterior(cells, written)
            picked = numpy.where(shares.max(2) > none, shares.argmax(2), -1)
            for member, row in zip(block.members, picked.tolist(), strict=True):
                if member < count:
                    choices[member] = row
        return choices

    def _sides(self, block: Block) -> tuple[Integers, Integers]:
        """Return the block's cells [B, written, conditioning] and the written words."""
        if self.backward:
            return block.cells.swapaxes(1, 2), block.source
        return block.cells, block.target

    def _posterior(self, cells: Integers, written: Integers) -> tuple[Numbers, Numbers, Numbers]:
        """Return probabilities of conditioning words [B, m, n] and of none [B, m], distances."""
        # A word picks none with p0, else one by the prior and the table; for a whole block at once.
        prior, distance = prior_table(cells.shape[1], cells.shape[2], self.tension)
        shares: Numbers = self.table[cells]
        shares *= (1.0 - self.settings.null) * prior
        none: Numbers = self.settings.null * self.null_table[written]
        total = shares.sum(2) + none
        # A word that has lost all probability (nothing explains it) picks none.
        lost = total <= 0
        total[lost] = 1.0
        shares /= total[:, :, None]
        none = numpy.where(lost, 1.0, none / total)
        return shares, none, distance


def _ratio(counts: Numbers, totals: Numbers, rows: Integers, bayesian: bool) -> Numbers:
    """Return counts as shares of their rows' totals; exp(digamma) of both if `bayesian`."""
    if bayesian:
        counts, totals = exp_digamma(counts), exp_digamma(totals)
    return numpy.asarray(counts / numpy.where(totals > 0, totals, 1.0)[rows])


def exp_digamma(x: Numbers) -> Numbers:
    """Return exp(digamma(x)) for x >= 0."""
    numbers: Numbers = torch.from_numpy(x).digamma().exp().numpy()
    return numbers


def link_pairs(
    pairs: tuple[list[list[str]], list[list[str]]],
    alignments: Path | None = None,
    train: tuple[Path, Path] | None = None,
    settings: AlignerSettings | None = None,
    advance: Advance = lambda what, done, total: None,
) -> AlignedPairs:
    """Return the words of both sides with the links in `alignments`, or else with learned ones.

    `train` is additional text to learn from. Raises ConfigError for a file given as both sides of
    it, InputError for files of different lengths and invalid links.
    """
    x, y = pairs
    if alignments is not None:
        sizes = [(len(own), len(other)) for own, other in zip(x, y, strict=True)]
        links = read_links(alignments, sizes)
        return AlignedPairs(x, y, links, f"Word alignments are those of {alignments.name}.")
    more = read_words(*train) if train is not None else ([], [])
    return align(x, y, settings, more, advance)


def read_words(source: Path, target: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return the words of both files.

    Raises ConfigError if one file is given twice, InputError if their numbers of lines differ.
    """
    if os.path.realpath(source) == os.path.realpath(target):
        raise ConfigError(f"{source} is given as source and as target.", "Give two files.")
    x, y = read_text(source), read_text(target)
    check_lengths({source: len(x), target: len(y)})
    return [line.split() for line in x], [line.split() for line in y]
