"""Long sources: split at the ends of their sentences, and the translations joined again.

A model translates sources as long as those that it was trained on; of longer ones it silently
omits text. Called by translate.py, and by simultaneous translation (`online/`), which decides
where a piece ends without knowing what follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from nmtgrid.base.errors import listed
from nmtgrid.base.spans import plural
from nmtgrid.base.subword_marks import JOINER, joined_words, word_numbers
from nmtgrid.models.directory import TrainingLengths
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.text.moses import Moses
from nmtgrid.text.pipeline import Side
from nmtgrid.text.sentences import ends_sentence, sentence_ends, sentences_of_word

LongLines = Literal["split", "cut"]
_CLAUSE_ENDS = frozenset([",", ";", ":", "-", "–", "—", "、", "，", "；", "：", "。", "！", "？"])
# For models whose training lengths are unknown: sentences of most corpora are shorter.
_WHOLE, _PIECE = 128, 256

_LARGEST_ALIGNMENT = 1 << 22
"""Maximum number of cells of an alignment that is joined from pieces; larger ones are omitted."""


@dataclasses.dataclass(frozen=True)
class SourceLimits:
    """Limits on the length of sources, in units.

    A line of up to `whole` units is translated whole, a longer one sentence by sentence, and no
    piece has more than `piece` units. `trained` is the longest training source, if it is known.
    """

    whole: int = _WHOLE
    piece: int = _PIECE
    trained: int | None = None

    @classmethod
    def of(cls, models: Iterable[TrainingLengths | None], chosen: int | None) -> SourceLimits:
        """Return the limits for an ensemble of models; a `chosen` number replaces both.

        By default 99 % of the training sources have at most `whole` units, and the longest one
        has `piece`.
        """
        known = [lengths.source for lengths in models if lengths is not None]
        trained = min((lengths.longest for lengths in known), default=None)
        if chosen is not None:
            return cls(chosen, chosen, trained)
        if trained is None:
            return cls()
        whole = min(lengths.p99 for lengths in known)
        return cls(max(1, whole), max(1, trained), trained)

    def parts(self, word: str, side: Side) -> list[tuple[str, list[str]]]:
        """Return a raw word with its units, or its parts with theirs if too long for a piece."""
        units = side.tokens(word)
        if len(units) <= self.piece:
            return [(word, units)]
        # Except for some marks, no character becomes several units.
        parts = (word[n : n + self.piece] for n in range(0, len(word), self.piece))
        return [(part, side.tokens(part)) for part in parts]


def units_to_split(line: str, limits: SourceLimits, side: Side) -> list[str]:
    """Return the units of a raw `line` that `split` takes; [] for an empty line.

    In text without spaces a word may contain several sentences: if the line is too long, each of
    them becomes a separate word, with the units that it has as a line by itself.
    """
    words = side.moses.tokenize(line).split()
    units = side.units(words)
    if len(units) <= limits.whole:
        return units
    return side.units([sentence for word in words for sentence in sentences_of_word(word)])


def split(
    units: Sequence[str], limits: SourceLimits, moses: Moses, mark: str = JOINER
) -> list[int]:
    """Return the ends of the pieces of a line of `units`; the last is the end of the line.

    A line that is too long is split at the end of every sentence, and a sentence that is too long
    for one piece is split by `cut`. The `mark` of the units shows where words end.
    """
    if len(units) <= limits.whole:
        return [len(units)]
    words = joined_words(units, mark)
    numbers = word_numbers(units, mark)
    ends_of_words = [0, *(n for n in range(1, len(units)) if numbers[n] != numbers[n - 1])]
    ends_of_words.append(len(units))
    ends: list[int] = []
    start = 0
    for sentence_end in sentence_ends(words, moses):
        end = ends_of_words[sentence_end]
        ends += [start + inner for inner in cut(units[start:end], limits.piece, mark)]
        start = end
    return ends


def cut(units: Sequence[str], longest: int, mark: str = JOINER) -> list[int]:
    """Return the ends of pieces of a sentence, none longer than `longest`; the last is its end.

    A piece ends after the last comma or similar mark in its second half, otherwise between words,
    otherwise (in an endless word) at `longest` units.
    """
    ends: list[int] = []
    start = 0
    numbers = word_numbers(units, mark)
    while len(units) - start > longest:
        # Candidates are lengths of the piece, the longest first.
        lengths = range(longest, max(1, longest // 2) - 1, -1)
        breaks = [n for n in lengths if units[start + n - 1] in _CLAUSE_ENDS]
        breaks = breaks or [n for n in lengths if numbers[start + n - 1] != numbers[start + n]]
        start += breaks[0] if breaks else longest
        ends.append(start)
    return [*ends, len(units)]


class OnlineSplitter:
    """Decides where the pieces of a line end while its words arrive, one by one.

    The length of the line is not known: it is one piece until it has more than `whole` units, and
    from then on each sentence is a piece.
    """

    def __init__(self, limits: SourceLimits, moses: Moses) -> None:
        self._limits, self._moses = limits, moses
        self._line = self._piece = 0

    def begins_piece(self, size: int) -> bool:
        """Return whether a word of `size` units does not fit the piece, which is not empty."""
        return bool(size and self._piece and self._piece + size > self._limits.piece)

    def add(self, word: str, size: int) -> bool:
        """Add a word of `size` units; return whether the piece ends with it."""
        if self.begins_piece(size):
            self._piece = 0
        self._line += size
        self._piece += size
        is_long = self._line > self._limits.whole
        is_end = is_long and self._piece > 0 and ends_sentence(word, self._moses)
        if is_end:
            self._piece = 0
        return is_end


def join(
    pieces: Sequence[Hypothesis],
    plan: SearchPlan,
    sizes: Sequence[int] = (),
    seen: Sequence[int] = (),
) -> Hypothesis:
    """Return the concatenation of the translations of a source's pieces.

    For translations with reads, `sizes` are the numbers of units of the pieces, and `seen` the
    numbers of units of the line that had arrived when it was known that a piece ends: including the
    next word if the piece was full, and the end symbol at the line's end.
    The log-probability of an inner end symbol is added to the token before it (or after it, if
    there is none), so that the sum is unchanged; alignments are block-diagonal, and an inner source
    end symbol's share goes to the last one. The score is eq. (2.28) of the whole plus the coverage
    penalties of the pieces; `passes` are those of all pieces.
    """
    if len(pieces) == 1:
        return pieces[0]
    values: list[float] = []
    carried = 0.0
    for piece in pieces[:-1]:
        *inner, end = piece.log_probabilities
        if inner:
            values += [inner[0] + carried, *inner[1:]]
            carried = 0.0
        if values:
            values[-1] += end
        else:
            carried += end
    first, *rest = pieces[-1].log_probabilities
    values += [first + carried, *rest]
    tokens = [token for piece in pieces for token in piece.tokens]
    total = sum(piece.log_probability for piece in pieces)
    # Scores of pieces do not add up: each has the norm of its own length. Coverage penalties do.
    score = total / _norm(tokens, plan) + sum(_coverage_penalty(piece, plan) for piece in pieces)
    # Exits and exit scores of inner end symbols are dropped.
    exits = [piece.exits for piece in pieces if piece.exits is not None]
    scores = [piece.exit_scores for piece in pieces if piece.exit_scores is not None]
    has_exits = len(exits) == len(pieces)
    has_scores = has_exits and len(scores) == len(pieces)
    passes = [piece.passes for piece in pieces if piece.passes is not None]
    return Hypothesis(
        tokens,
        values,
        total,
        score,
        _diagonal([piece.alignment for piece in pieces if piece.alignment is not None]),
        reads=_joined_reads(pieces, sizes, seen) if sizes else None,
        exits=[n for inner in exits[:-1] for n in inner[:-1]] + exits[-1] if has_exits else None,
        exit_scores=torch.cat([*(s[:-1] for s in scores[:-1]), scores[-1]]) if has_scores else None,
        num_exits=pieces[0].num_exits,
        passes=[ran for part in passes for ran in part] if len(passes) == len(pieces) else None,
    )


def _norm(tokens: Sequence[int], plan: SearchPlan) -> float:
    """Return the length norm of `tokens` and the end symbol."""
    return plan.length_norm_of(len(tokens) + 1)


def _coverage_penalty(piece: Hypothesis, plan: SearchPlan) -> float:
    """Return the part of a piece's score that is not eq. (2.28)."""
    if not plan.coverage_penalty:
        return 0.0  # exactly, instead of a rounding error
    return piece.score - piece.log_probability / _norm(piece.tokens, plan)


def _joined_reads(
    pieces: Sequence[Hypothesis], sizes: Sequence[int], seen: Sequence[int]
) -> list[int]:
    """Return how many units of the line had arrived when each token was written."""
    reads: list[int] = []
    before = latest = 0
    for piece, size, ends in zip(pieces, sizes, seen, strict=True):
        counts = piece.reads or []
        # Only the last piece's end symbol belongs to the line.
        for count in counts if piece is pieces[-1] else counts[:-1]:
            # No token is written before an earlier one.
            latest = max(latest, before + count if count <= size else ends)
            reads.append(latest)
        before += size
    return reads


def join_ranked(
    pieces: Sequence[list[Hypothesis]], plan: SearchPlan
) -> list[tuple[Hypothesis, list[int]]]:
    """Return the hypotheses of a line, best first: the first ones of all pieces, and so on.

    The first ones stay the first, as without an n-best list: no search over the whole line shows
    that another is better. Each comes with the indices, from 0, of the tokens that its pieces begin
    with.
    """
    if len(pieces) < 2:
        return [(whole, [0]) for hypotheses in pieces for whole in hypotheses]
    ranked = [
        [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in pieces]
        for rank in range(max(map(len, pieces)))
    ]
    joined = [
        (join(parts, plan), list(accumulate((len(part.tokens) for part in parts[:-1]), initial=0)))
        for parts in ranked
    ]
    # The others may be reordered: the sum of scores is not the score of the whole.
    best, *others = joined
    return [best, *sorted(others, key=lambda pair: pair[0].score, reverse=True)]


def long_line_warning(
    lengths: Mapping[int, int], limits: SourceLimits, treatment: LongLines
) -> str:
    """Return the warning about lines with too many units; `lengths` are by line number."""
    longest, done = limits.whole, "translated in segments"
    if treatment == "cut":
        longest, done = limits.piece, "cut"
    lines = _numbered(lengths)
    units = plural(longest, "source unit")
    return f"long-line: longer than {units} and {done}: line (units) {lines}."


def untrained_length_warning(lengths: Mapping[int, int], limits: SourceLimits, advice: str) -> str:
    """Return the warning about lines with a piece longer than any training source."""
    return (
        f"untrained-length: longer than any source that the model was trained on "
        f"({plural(limits.trained or 0, 'unit')}), so that text may be lost: line (units) "
        f"{_numbered(lengths)}. {advice}"
    )


def unaligned_warning(line: int) -> str:
    """Return the warning about a line whose alignment would be too large."""
    return (
        f"no-alignment: line {line:,} and its translation are too long for an alignment (more than "
        f"{_LARGEST_ALIGNMENT:,} pairs of units): its links are left out, and unknown words in it "
        "are not replaced. Split it into lines of one sentence each."
    )


def _numbered(lengths: Mapping[int, int]) -> str:
    return listed([f"{line} ({length:,})" for line, length in lengths.items()])


def _diagonal(parts: Sequence[Tensor]) -> Tensor | None:
    """Return [T + 1, S + 1] from pieces [T_i + 1, S_i + 1], each with end symbols last."""
    height = sum(part.shape[0] - 1 for part in parts) + 1
    width = sum(part.shape[1] - 1 for part in parts) + 1
    if not parts or height * width > _LARGEST_ALIGNMENT:
        return None
    whole = parts[0].new_zeros(height, width)
    row = column = 0
    for part in parts:
        rows = part.shape[0] if part is parts[-1] else part.shape[0] - 1
        columns = part.shape[1] - 1
        whole[row : row + rows, column : column + columns] = part[:rows, :columns]
        whole[row : row + rows, -1] = part[:rows, -1]
        row, column = row + rows, column + columns
    return whole
