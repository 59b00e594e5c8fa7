"""A step of a search: the averaged predictions of the models, and the tokens written.

Called by the loop of engine.py; cuda_graphs.py records it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmtgrid.models.api import Step, TranslationModel
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.beams import Groups, Rows, StepResult, write_tokens
from nmtgrid.search.constraints import Rules
from nmtgrid.search.select import Beam, Greedy, Sample, Select


class Averaged(NamedTuple):
    """Predictions of an ensemble: mean probabilities, alignments and readiness (see `Step`)."""

    log_probabilities: Tensor
    alignment: Tensor | None = None
    readiness: Tensor | None = None

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Averaged:
        """Return the means of all models' steps, log-probabilities [R, V] in float32."""
        alignment = _mean([step.alignment for step in steps])
        readiness = _mean([step.readiness for step in steps])
        # In float32 even under autocast: sums over a sentence need the precision.
        values = [step.logits.float().log_softmax(1) for step in steps]
        if len(values) == 1:
            return cls(values[0], alignment, readiness)
        # The mean of probabilities, computed in log space.
        mean = torch.stack(values).logsumexp(0) - math.log(len(values))
        return cls(mean, alignment, readiness)

    def put(self, rows: Tensor, part: Averaged) -> None:
        """Replace the values of `rows` [R'] by those of `part`."""
        for whole, some in zip(self, part, strict=True):
            if whole is not None and some is not None:
                whole[rows] = some


def _mean(values: Sequence[Tensor | None]) -> Tensor | None:
    present = [value.float() for value in values if value is not None]
    return torch.stack(present).mean(0) if present else None


@dataclasses.dataclass(frozen=True)
class SearchStep:
    """A step of a search without agent and halt, which can be recorded."""

    models: tuple[TranslationModel, ...]
    plan: SearchPlan
    align: bool

    @property
    def select(self) -> Select:
        """The selection of the next tokens."""
        if self.plan.sample:
            return Sample(self.plan)
        return Greedy() if self.plan.beam == 1 else Beam(self.plan.beam)

    @property
    def wants_alignment(self) -> bool:
        """Whether models have to return alignments."""
        return self.align or self.plan.coverage_penalty > 0

    def __call__(
        self, states: Sequence[Any], rows: Rows, groups: Groups, rules: Rules, step: Tensor
    ) -> StepResult:
        """Return the step's result; states are static, and each group is a sentence of `rules`."""
        align, pairs = self.wants_alignment, zip(self.models, states, strict=True)
        predicted = Averaged.of(
            [model.step(rows.tokens, state, align=align) for model, state in pairs]
        )
        group = torch.arange(len(rows.tokens), device=step.device) // self.select.width
        values = rules.apply(predicted.log_probabilities, step, group, at_limit=True)
        return write_tokens(self.plan, self.select, values, predicted.alignment, rows, groups, step)
