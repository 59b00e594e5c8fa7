"""Long sources: cut where it hurts least, and their translations joined again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.text.bpe import JOINER

_SENTENCE_ENDS = frozenset([".", "!", "?", "...", "…", "。", "！", "？", "؟", "।"])
_CLAUSE_ENDS = frozenset([",", ";", ":", "-", "–", "—", "、", "，", "；", "："])

LARGEST_ALIGNMENT = 1 << 22
"""Cells: a longer source and its translation, joined from pieces, go without an alignment."""


def cut(units: Sequence[str], longest: int) -> list[int]:
    """Return the ends of pieces of `units`, none longer than `longest`; the last is the whole.

    A piece ends after the last sentence punctuation of its second half, else after a comma or
    the like, else between words, else (one endless word) where it must.
    """
    ends: list[int] = []
    start = 0
    while len(units) - start > longest:
        start += _last_break(units[start : start + longest])
        ends.append(start)
    return [*ends, len(units)]


def _last_break(units: Sequence[str]) -> int:
    """Return how many of `units` to take, at least half of them."""
    places = range(len(units), max(1, len(units) // 2) - 1, -1)
    for marks in (_SENTENCE_ENDS, _CLAUSE_ENDS):
        for place in places:
            if units[place - 1] in marks:
                return place
    return next((place for place in places if not units[place - 1].endswith(JOINER)), places[0])


def join(pieces: Sequence[Hypothesis], plan: SearchPlan) -> Hypothesis:
    """Return the translations of the pieces of one source, one after the other, as one.

    The log-probability of an inner end symbol goes to the token before it (or after, where there
    is none), so that they still add up; alignments stand on the diagonal, an inner source end
    symbol's share goes to the last one. The score is eq. (2.28) of the whole.
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
    norm = float(plan.length_norm(torch.tensor(len(tokens) + 1)))
    parts = [piece.alignment for piece in pieces if piece.alignment is not None]
    exits, scores = _joined_exits(pieces)
    return Hypothesis(
        tokens, values, total, total / norm, _diagonal(parts), exits=exits, exit_scores=scores,
        num_exits=pieces[0].num_exits,
    )  # fmt: skip


def join_ranked(pieces: Sequence[list[Hypothesis]], plan: SearchPlan) -> list[Hypothesis]:
    """Return the hypotheses of a line: the first of each piece together, and so on, best first."""
    if len(pieces) < 2:
        return pieces[0] if pieces else []
    joined = [
        join([found[min(rank, len(found) - 1)] for found in pieces], plan)
        for rank in range(max(map(len, pieces)))
    ]
    return sorted(joined, key=lambda one: -one.score)


def long_line_warning(
    lengths: Mapping[int, int], longest: int, deed: Literal["split", "cut"]
) -> str:
    """Return what people are told of lines, by their numbers, that have too many units."""
    shown = ", ".join(f"{line} ({length:,})" for line, length in [*lengths.items()][:10])
    more = f" and {len(lengths) - 10:,} more" if len(lengths) > 10 else ""
    done = "translated in pieces" if deed == "split" else "cut"
    return (
        f"long-line: longer than {longest:,} source units and {done}: line (units) {shown}{more}."
    )


def _joined_exits(pieces: Sequence[Hypothesis]) -> tuple[list[int] | None, Tensor | None]:
    """Return the exits (T + 1) of the whole, and their scores [T + 1, N], no inner ends."""
    exits = [piece.exits for piece in pieces if piece.exits is not None]
    scores = [piece.exit_scores for piece in pieces if piece.exit_scores is not None]
    if len(exits) < len(pieces):
        return None, None
    joined = [exit for of_piece in exits[:-1] for exit in of_piece[:-1]] + exits[-1]
    if len(scores) < len(pieces):
        return joined, None
    return joined, torch.cat([*(rows[:-1] for rows in scores[:-1]), scores[-1]])


def _diagonal(parts: Sequence[Tensor]) -> Tensor | None:
    """Return [T + 1, S + 1] from pieces [T_i + 1, S_i + 1] whose last row and column are ends."""
    height = sum(part.shape[0] - 1 for part in parts) + 1
    width = sum(part.shape[1] - 1 for part in parts) + 1
    if not parts or height * width > LARGEST_ALIGNMENT:
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
