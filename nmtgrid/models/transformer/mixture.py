"""Transparent attention: every decoder block reads its own mixture of the encoder's states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StateMixtures(nn.Module):
    """m mixtures of n states: a learnt m x n matrix W, its rows normalised by softmax.

    As in the published system W starts at zero, so each mixture starts as the plain mean, and
    dropout falls on W + 1/n before the softmax, once for all sentences.
    """

    def __init__(self, mixtures: int, states: int, dropout_rate: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(mixtures, states))
        self.dropout_rate = dropout_rate

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return m mixtures [B, S, D] of n states [B, S, D]."""
        held = torch.stack(list(states))
        shares = self.shares().to(held.dtype)
        mixed: tuple[Tensor, ...] = (
            (shares @ held.flatten(1)).unflatten(1, states[0].shape).unbind(0)
        )
        return mixed

    def shares(self) -> Tensor:
        """Return [m, n], what each state gives to each mixture."""
        scores = self.weight + 1.0 / self.weight.shape[1]
        return nn.functional.dropout(scores, self.dropout_rate, self.training).softmax(-1)
