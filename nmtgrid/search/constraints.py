"""What must and must not be written: rules that strike out next tokens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nmtgrid.text.vocabulary import END, PAD


class Constraint(Protocol):
    """A rule on the next token, for all rows of a search at once."""

    def apply(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Return log-probabilities [R, V] where each token that is ruled out has -inf.

        `step` tokens stand already in each row; `sentence` [R] is the row's place in the batch
        that the search was given. The tensor may be changed in place.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Banned:
    """Tokens that are never written."""

    tokens: tuple[int, ...]

    def apply(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Strike the banned tokens out."""
        for token in self.tokens:  # a list as index would be brought to a GPU, which waits for it
            log_probabilities[:, token] = -math.inf
        return log_probabilities


@dataclasses.dataclass(frozen=True)
class MinLength:
    """No end symbol before `length` tokens are written."""

    length: int

    def apply(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Strike the end symbol out while the row is too short."""
        if step < self.length:
            log_probabilities[:, END] = -math.inf
        return log_probabilities


@dataclasses.dataclass(frozen=True)
class EndAtSourceLength:
    """The end symbol comes after as many tokens as the source has, and never before.

    For models that are not shown where the source ends (appendix C). `source_lengths` [B] count
    the end symbol.
    """

    source_lengths: Tensor

    def apply(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Leave only the end symbol in rows that are as long as their source, none elsewhere."""
        is_end = self.source_lengths[sentence] - 1 <= step
        end = log_probabilities[:, END].clone()
        log_probabilities.masked_fill_(is_end[:, None], -math.inf)
        log_probabilities[:, END] = torch.where(is_end, end, -math.inf)
        return log_probabilities


class ForcedPrefix:
    """Each sentence's translation begins with its given tokens."""

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device) -> None:
        """`prefixes` has one list of token ids (perhaps empty) for each sentence."""
        self.longest = max(map(len, prefixes), default=0)
        rows = [[*prefix, *[PAD] * (self.longest - len(prefix))] for prefix in prefixes]
        self._tokens = torch.tensor(rows, dtype=torch.long, device=device)

    def apply(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Leave only the prefix's token in rows that are still inside it."""
        if step >= self.longest:
            return log_probabilities
        wanted = self._tokens[sentence, step][:, None]
        kept = torch.full_like(log_probabilities, -math.inf)
        kept.scatter_(1, wanted, log_probabilities.gather(1, wanted))
        return torch.where(wanted == PAD, log_probabilities, kept)
