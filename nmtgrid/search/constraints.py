"""Constraints of decoding: rules that forbid next tokens, and bounds on the length.

Called by the loops of engine.py and of online/stream.py.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nmtgrid.search.api import SearchPlan
from nmtgrid.text.vocabulary import BEGIN, END, PAD

_PICTURE_LENGTH = 20
"""|x| of a picture in the limit of a caption's length, to which the number of regions is unrelated.
"""


class Constraint(Protocol):
    """A rule on the next token, for all rows of a search at once."""

    def apply(self, log_probabilities: Tensor, step: int | Tensor, sentence: Tensor) -> Tensor:
        """Return log-probabilities [R, V] in which forbidden tokens have -inf.

        Each row already has `step` tokens, a tensor [R] if rows differ (verified exits); `sentence`
        [R] is the row's position in the batch. The tensor may be changed in place.
        """


class StaticConstraint:
    """A constraint that can be recorded (search/cuda_graphs.py).

    Whatever may differ between searches is in tensors, sentences first; `apply` changes nothing
    else and does not synchronise with the device if `step` is a tensor.
    """


@dataclasses.dataclass(frozen=True)
class MinLength(StaticConstraint):
    """Forbids the end symbol before `lengths` [B] tokens, one for each sentence, are written."""

    lengths: Tensor

    def apply(self, log_probabilities: Tensor, step: int | Tensor, sentence: Tensor) -> Tensor:
        return _without_end(log_probabilities, step < self.lengths[sentence])


@dataclasses.dataclass(frozen=True)
class ForbidEnd:
    """Forbids the end symbol in rows with `is_early` [R]."""

    is_early: Tensor

    def apply(self, log_probabilities: Tensor, step: int | Tensor, sentence: Tensor) -> Tensor:
        return _without_end(log_probabilities, self.is_early)


def _without_end(log_probabilities: Tensor, rows: Tensor) -> Tensor:
    """Forbid the end symbol in `rows` [R] (bool) of log-probabilities [R, V], in place."""
    log_probabilities[:, END] = log_probabilities[:, END].masked_fill(rows, -math.inf)
    return log_probabilities


class ForcedPrefix(StaticConstraint):
    """Forces each sentence's translation to begin with given tokens."""

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device) -> None:
        """`prefixes` has one list of token ids (possibly empty) for each sentence.

        `lengths` [B] are their lengths.
        """
        self.lengths = torch.tensor([*map(len, prefixes)], dtype=torch.long, device=device)
        # The last column is padding, for steps beyond all prefixes. Widths are powers of two, so
        # that there are few recordings.
        width = 1 << max(map(len, prefixes), default=0).bit_length()
        rows = [[*prefix, *[PAD] * (width - len(prefix))] for prefix in prefixes]
        self._tokens = torch.tensor(rows, dtype=torch.long, device=device)

    def apply(self, log_probabilities: Tensor, step: int | Tensor, sentence: Tensor) -> Tensor:
        last = self._tokens.shape[1] - 1
        if isinstance(step, Tensor):
            step = step.clamp(max=last)
        elif step >= last:
            return log_probabilities
        # Rows whose prefix is over have padding here and stay free.
        token = self._tokens[sentence, step][:, None]
        only_token = torch.full_like(log_probabilities, -math.inf)
        only_token.scatter_(1, token, log_probabilities.gather(1, token))
        return torch.where(token == PAD, log_probabilities, only_token)

    def take_rows(self, rows: Tensor) -> ForcedPrefix:
        taken = copy.copy(self)
        taken.lengths, taken._tokens = self.lengths[rows], self._tokens[rows]
        return taken

    def static_tensors(self) -> tuple[Tensor, ...]:
        return self.lengths, self._tokens


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules on the next tokens of a search, which are never `<pad>` or `<s>`.

    `renormalize` gives their probability to the other types. A row that has reached its sentence's
    limit, in `limits` [B], ends whatever the constraints: with the end symbol's log-probability, or
    with 0 if `end_is_certain`.
    """

    constraints: tuple[Constraint, ...]
    limits: Tensor
    end_is_certain: bool = False
    renormalize: bool = False

    @classmethod
    def of(
        cls,
        plan: SearchPlan,
        lengths: Tensor,
        constraints: Sequence[Constraint] = (),
        *,
        end_is_hidden: bool = False,
        of_pictures: bool = False,
    ) -> Rules:
        """Return the rules of a plan and `constraints`; other arguments are of `length_bounds`."""
        least, limits = length_bounds(
            plan, lengths, end_is_hidden=end_is_hidden, of_pictures=of_pictures
        )
        for constraint in constraints:
            if isinstance(constraint, ForcedPrefix):
                # Otherwise the search would end in the middle of a long prefix.
                limits = limits.maximum(constraint.lengths)
        shortest = [MinLength(least)] if plan.min_length or end_is_hidden else []
        certain = plan.style == "transformers"
        return cls((*shortest, *constraints), limits, certain, plan.renormalize)

    def apply(
        self, log_probabilities: Tensor, step: int | Tensor, sentence: Tensor, *, at_limit: bool
    ) -> Tensor:
        """Return log-probabilities [R, V] with -inf for forbidden tokens, changed in place.

        `step` and `sentence` are as in `Constraint`; `at_limit` says whether a row can be at its
        limit.
        """
        # A slice, as the ids are adjacent: a list as index would be copied to the GPU and
        # synchronise with it.
        log_probabilities[:, PAD : BEGIN + 1].fill_(-math.inf)
        if self.renormalize:
            log_probabilities = log_probabilities.log_softmax(1)
        # Saved before the constraints change it in place.
        end = log_probabilities[:, END].clone() if at_limit else None
        for constraint in self.constraints:
            log_probabilities = constraint.apply(log_probabilities, step, sentence)
        if end is None:
            return log_probabilities
        is_over = self.limits[sentence] <= step
        last = torch.zeros_like(end) if self.end_is_certain else end
        last = torch.where(is_over, last, log_probabilities[:, END])
        log_probabilities = log_probabilities.masked_fill_(is_over[:, None], -math.inf)
        log_probabilities[:, END] = last
        return log_probabilities


def length_bounds(
    plan: SearchPlan, lengths: Tensor, *, end_is_hidden: bool = False, of_pictures: bool = False
) -> tuple[Tensor, Tensor]:
    """Return minimum and maximum target lengths [B], for source lengths with end symbols [B].

    Models that do not see where the source ends do not know when to stop either: with
    `end_is_hidden` there are as many target tokens as source tokens, or the plan's maximum if that
    is less; its minimum is ignored. Appendix C.
    """
    fewest = 0 if end_is_hidden else plan.min_length
    counted = torch.full_like(lengths, _PICTURE_LENGTH) if of_pictures else lengths - 1
    most = (plan.max_length_a + plan.max_length_b * counted).floor().long()
    # At least one token: an empty translation has no meaningful length norm.
    most = most.clamp(min=max(1, fewest))
    if end_is_hidden:
        # The lengths count the source's end symbol, the bounds do not count the target's.
        most = most.minimum(lengths - 1)
        return most, most
    return torch.full_like(most, fewest), most
