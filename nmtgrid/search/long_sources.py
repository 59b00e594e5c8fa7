"""Long sources: split at the ends of their sentences, and the translations joined again.

A model translates sources as long as those that it was trained on; of longer ones it silently
omits text. Called by translate.py, and by simultaneous translation (`online/`), which decides
where a segment ends without knowing what follows.
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
_WHOLE, _SEGMENT = 128, 256

_LARGEST_ALIGNMENT = 1 << 22
"""Maximum number of cells of an alignment that is joined from segments; larger ones are omitted."""


@dataclasses.dataclass(frozen=True)
class SourceLimits:
    """Limits on the length of sources, in units.

    A line of up to `whole` units is translated whole, a longer one sentence by sentence, and no
    segment has more than `segment` units. `trained` is the longest training source, if it is known.
    """

    whole: int = _WHOLE
    segment: int = _SEGMENT
    trained: int | None = None

    @classmethod
    def of(cls, models: Iterable[TrainingLengths | None], chosen: int | None) -> SourceLimits:
        """Return the limits for an ensemble of models; a `chosen` number replaces both.

        By default 99 % of the training sources have at most `whole` units, and the longest one
        has `segment`.
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
        """Return a raw word with its units, or its parts with theirs if too long for a segment."""
        units = side.tokens(word)
        if len(units) <= self.segment:
            return [(word, units)]
        # Except for some marks, no character becomes several units.
        parts = (word[n : n + self.segment] for n in range(0, len(word), self.segment))
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
    """Return the ends of the segments of a line of `units`; the last is the end of the line.

    A line that is too long is split at the end of every sentence, and a sentence that is too long
    for one segment is split by `cut`. The `mark` of the units shows where words end.
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
        ends += [start + inner for inner in cut(units[start:end], limits.segment, mark)]
        start = end
    return ends


def cut(units: Sequence[str], longest: int, mark: str = JOINER) -> list[int]:
    """Return the ends of segments of a sentence, none longer than `longest`; the last is its end.

    A segment ends after the last comma or similar mark in its second half, otherwise between words,
    otherwise (in an endless word) at `longest` units.
    """
    ends: list[int] = []
    start = 0
    numbers = word_numbers(units, mark)
    while len(units) - start > longest:
        # Candidates are lengths of the segment, the longest first.
        lengths = range(longest, max(1, longest // 2) - 1, -1)
        breaks = [n for n in lengths if units[start + n - 1] in _CLAUSE_ENDS]
        breaks = breaks or [n for n in lengths if numbers[start + n - 1] != numbers[start + n]]
        start += breaks[0] if breaks else longest
        ends.append(start)
    return [*ends, len(units)]


class OnlineSplitter:
    """Decides where the segments of a line end while its words arrive, one by one.

    The length of the line is not known: it is one segment until it has more than `whole` units, and
    from then on each sentence is a segment.
    """

    def __init__(self, limits: SourceLimits, moses: Moses) -> None:
        self._limits, self._moses = limits, moses
        self._line = self._segment = 0

    def begins_segment(self, size: int) -> bool:
        """Return whether a word of `size` units does not fit the segment, which is not empty."""
        return bool(size and self._segment and self._segment + size > self._limits.segment)

    def add(self, word: str, size: int) -> bool:
        """Add a word of `size` units; return whether the segment ends with it."""
        if self.begins_segment(size):
            self._segment = 0
        self._line += size
        self._segment += size
        is_long = self._line > self._limits.whole
        is_end = is_long and self._segment > 0 and ends_sentence(word, self._moses)
        if is_end:
            self._segment = 0
        return is_end


def join(
    segments: Sequence[Hypothesis],
    plan: SearchPlan,
    sizes: Sequence[int] = (),
    seen: Sequence[int] = (),
) -> Hypothesis:
    """Return the concatenation of the translations of a source's segments.

    For translations with reads, `sizes` are the numbers of units of the segments, and `seen` the
    numbers of units of the line that had arrived when it was known that a segment ends: including
    the next word if the segment was full, and the end symbol at the line's end.
    The log-probability of an inner end symbol is added to the token before it (or after it, if
    there is none), so that the sum is unchanged; alignments are block-diagonal, and an inner source
    end symbol's share goes to the last one. The score is eq. (2.28) of the whole plus the coverage
    penalties of the segments; `passes` are those of all segments.
    """
    if len(segments) == 1:
        return segments[0]
    values: list[float] = []
    carried = 0.0
    for segment in segments[:-1]:
        *inner, end = segment.log_probabilities
        if inner:
            values += [inner[0] + carried, *inner[1:]]
            carried = 0.0
        if values:
            values[-1] += end
        else:
            carried += end
    first, *rest = segments[-1].log_probabilities
    values += [first + carried, *rest]
    tokens = [token for segment in segments for token in segment.tokens]
    total = sum(segment.log_probability for segment in segments)
    # Scores of segments do not add up: each has the norm of its own length. Coverage penalties do.
    penalty = sum(_coverage_penalty(segment, plan) for segment in segments)
    score = total / _norm(tokens, plan) + penalty
    # Exits and exit scores of inner end symbols are dropped.
    exits = [segment.exits for segment in segments if segment.exits is not None]
    scores = [segment.exit_scores for segment in segments if segment.exit_scores is not None]
    has_exits = len(exits) == len(segments)
    has_scores = has_exits and len(scores) == len(segments)
    passes = [segment.passes for segment in segments if segment.passes is not None]
    return Hypothesis(
        tokens,
        values,
        total,
        score,
        _diagonal([segment.alignment for segment in segments if segment.alignment is not None]),
        reads=_joined_reads(segments, sizes, seen) if sizes else None,
        exits=[n for inner in exits[:-1] for n in inner[:-1]] + exits[-1] if has_exits else None,
        exit_scores=torch.cat([*(s[:-1] for s in scores[:-1]), scores[-1]]) if has_scores else None,
        num_exits=segments[0].num_exits,
        passes=[ran for part in passes for ran in part] if len(passes) == len(segments) else None,
    )


def _norm(tokens: Sequence[int], plan: SearchPlan) -> float:
    """Return the length norm of `tokens` and the end symbol."""
    return plan.length_norm_of(len(tokens) + 1)


def _coverage_penalty(segment: Hypothesis, plan: SearchPlan) -> float:
    """Return the part of a segment's score that is not eq. (2.28)."""
    if not plan.coverage_penalty:
        return 0.0  # exactly, instead of a rounding error
    return segment.score - segment.log_probability / _norm(segment.tokens, plan)


def _joined_reads(
    segments: Sequence[Hypothesis], sizes: Sequence[int], seen: Sequence[int]
) -> list[int]:
    """Return how many units of the line had arrived when each token was written."""
    reads: list[int] = []
    before = latest = 0
    for segment, size, ends in zip(segments, sizes, seen, strict=True):
        counts = segment.reads or []
        # Only the last segment's end symbol belongs to the line.
        for count in counts if segment is segments[-1] else counts[:-1]:
            # No token is written before an earlier one.
            latest = max(latest, before + count if count <= size else ends)
            reads.append(latest)
        before += size
    return reads


def join_ranked(
    segments: Sequence[list[Hypothesis]], plan: SearchPlan
) -> list[tuple[Hypothesis, list[int]]]:
    """Return the hypotheses of a line, best first: the first ones of all segments, and so on.

    The first ones stay the first, as without an n-best list: no search over the whole line shows
    that another is better. Each comes with the indices, from 0, of the tokens that its segments
    begin with.
    """
    if len(segments) < 2:
        return [(whole, [0]) for hypotheses in segments for whole in hypotheses]
    ranked = [
        [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in segments]
        for rank in range(max(map(len, segments)))
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
        longest, done = limits.segment, "cut"
    lines = _numbered(lengths)
    units = plural(longest, "source unit")
    return f"long-line: longer than {units} and {done}: line (units) {lines}."


def untrained_length_warning(lengths: Mapping[int, int], limits: SourceLimits, advice: str) -> str:
    """Return the warning about lines with a segment longer than any training source."""
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
    """Return [T + 1, S + 1] from segments [T_i + 1, S_i + 1], each with end symbols last."""
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
