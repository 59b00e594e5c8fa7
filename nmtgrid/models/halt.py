"""When to leave the decoder: the question that a step asks after each of its blocks."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

Needs = Literal["nothing", "confidence", "geometric", "multinomial", "sequence"]
"""What a decision is made from: nothing of the model, the largest probability (5.18), or the
model's halting network: chi (5.20), or the exit that is likeliest by (5.19) or (5.11)."""


class Halt(Protocol):
    """Decides after each block which rows leave."""

    @property
    def needs(self) -> Needs:
        """What the decisions are made from."""
        ...

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        """Return [R'] (bool), True where a row leaves after block `exit` (from 1, never the last).

        `step` tokens stand in each row, keys [R'] (int64) tell the rows' sentences apart, and
        scores [R'] are what is needed: probabilities, or the exit chosen (int64), or None.
        """
        ...
