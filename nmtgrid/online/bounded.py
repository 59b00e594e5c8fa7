"""Agents that know no more of a source than has come of it: not how long it will be."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from nmtgrid.search.api import Agent, SearchPlan
from nmtgrid.search.constraints import length_bounds


@dataclasses.dataclass(frozen=True)
class Bounded:
    """An agent that reads on where a stream cannot know whether it may write yet.

    The most tokens that a translation may have depend on the source's length, of which a stream
    knows only how much has come: at the limit for that much, it reads. So it does, with
    `end_is_hidden`, before it writes more tokens than it has read. Where no limit is in sight, as
    for wait-k with the default limits, the agent alone decides.
    """

    agent: Agent
    plan: SearchPlan
    end_is_hidden: bool = False

    @property
    def wants_reading(self) -> bool:
        """The agent's own."""
        return self.agent.wants_reading

    @property
    def finish_reading(self) -> bool:
        """The agent's own."""
        return self.agent.finish_reading

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        """Return the agent's reads, or more."""
        wanted = self.agent.next_reads(step, sentence, reads, lengths, rho)
        return torch.maximum(wanted, lengths.clamp(max=self._least(step)))

    def _least(self, step: int) -> int:
        """Return the fewest source tokens with which one more than `step` may be written."""
        least = step + 1 if self.end_is_hidden else 1
        share = self.plan.max_length_b
        if share == 0 or self._limit(least) > step:
            return least
        least = max(least, math.ceil((step + 1 - self.plan.max_length_a) / share))
        while self._limit(least) <= step:  # where numbers were rounded
            least += 1
        return least

    def _limit(self, tokens: int) -> int:
        """Return the most target tokens for `tokens` source tokens, the end symbol not counted."""
        lengths = torch.tensor([tokens + 1])
        return int(length_bounds(self.plan, lengths, end_is_hidden=self.end_is_hidden)[1])
