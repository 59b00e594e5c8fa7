"""Long sources: cut at sentence ends where possible, and their translations joined again.

Called by translate.py, and by `decode --stream`, which joins sentences.
"""

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
"""Cells: larger tables of a source and its translation, joined from pieces, are left out."""


def cut(units: Sequence[str], longest: int) -> list[int]:
    """Return the ends of pieces of `units`, none longer than `longest`; the last is the whole.

    A piece ends after the last sentence punctuation of its second half, else after a comma or
    the like, else between words, else (one endless word) where it must.
    """
    ends: list[int] = []
    start = 0
    while len(units) - start > longest:
        # Each candidate is a length of the piece, the longest first.
        lengths = range(longest, max(1, longest // 2) - 1, -1)
        last_units = [(length, units[start + length - 1]) for length in lengths]
        for marks in (_SENTENCE_ENDS, _CLAUSE_ENDS):
            breaks = [length for length, unit in last_units if unit in marks]
            if breaks:
                break
        else:
            breaks = [length for length, unit in last_units if not unit.endswith(JOINER)]
        start += breaks[0] if breaks else longest
        ends.append(start)
    return [*ends, len(units)]


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
    # Scores of pieces do not add up: each has the norm of its own length.
    norm = float(plan.length_norm(torch.tensor(len(tokens) + 1)))
    # Of exits and their scores those of inner end symbols are dropped.
    exits = [piece.exits for piece in pieces if piece.exits is not None]
    scores = [piece.exit_scores for piece in pieces if piece.exit_scores is not None]
    has_exits = len(exits) == len(pieces)
    has_scores = has_exits and len(scores) == len(pieces)
    return Hypothesis(
        tokens,
        values,
        total,
        total / norm,
        _diagonal([piece.alignment for piece in pieces if piece.alignment is not None]),
        exits=[n for inner in exits[:-1] for n in inner[:-1]] + exits[-1] if has_exits else None,
        exit_scores=torch.cat([*(s[:-1] for s in scores[:-1]), scores[-1]]) if has_scores else None,
        num_exits=pieces[0].num_exits,
    )


def join_ranked(pieces: Sequence[list[Hypothesis]], plan: SearchPlan) -> list[Hypothesis]:
    """Return the hypotheses of a line: the first of each piece together, and so on, best first."""
    if len(pieces) < 2:
        return pieces[0] if pieces else []
    joined = [
        join([hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in pieces], plan)
        for rank in range(max(map(len, pieces)))
    ]
    # Ranks may change places: the sum of scores is not the score of the whole.
    return sorted(joined, key=lambda hypothesis: -hypothesis.score)


def long_line_warning(
    lengths: Mapping[int, int], longest: int, treatment: Literal["split", "cut"]
) -> str:
    """Return the warning on lines, by their numbers, that have too many units."""
    lines = ", ".join(f"{line} ({length:,})" for line, length in [*lengths.items()][:10])
    more = f" and {len(lengths) - 10:,} more" if len(lengths) > 10 else ""
    done = "translated in pieces" if treatment == "split" else "cut"
    return (
        f"long-line: longer than {longest:,} source units and {done}: line (units) {lines}{more}."
    )


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
