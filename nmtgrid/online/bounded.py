"""Agents that know no more of a source than has come of it: not how long it will be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import Agent, SearchPlan


def hides_the_end(models: Sequence[TranslationModel]) -> bool:
    """Return whether a model is not shown where its source ends (appendix C)."""
    return any(model.traits.hides_source_end for model in models)


@dataclasses.dataclass(frozen=True)
class Bounded:
    """An agent that reads on where a stream cannot know whether it may write yet.

    The most tokens that a translation may have depend on the source's length, of which a stream
    knows only how much has come: at the limit for that much, it reads. So it does, with
    `ends_at_source_length`, before it writes more tokens than it has read. Where no limit is in
    sight, as for wait-k with the default limits, the agent alone decides.
    """

    agent: Agent
    plan: SearchPlan
    ends_at_source_length: bool = False

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
        least = step + 1 if self.ends_at_source_length else 1
        share = self.plan.max_length_b
        if share == 0 or self._limit(least) > step:
            return least
        least = max(least, math.ceil((step + 1 - self.plan.max_length_a) / share))
        while self._limit(least) <= step:  # where numbers were rounded
            least += 1
        return least

    def _limit(self, tokens: int) -> int:
        """Return the most target tokens for `tokens` source tokens, the end symbol not counted."""
        return int(self.plan.limits(torch.tensor([tokens + 1])))
