"""Which weights are kept: the last ones, their running average or the mean of the last states.

All are scored on the validation split; the lowest loss wins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping

from torch import Tensor

from nmtgrid.training.averaging import RunningAverage, exchanged
from nmtgrid.training.validate import Quality, Validator
from nmtgrid.training.weights import Weights


@dataclasses.dataclass
class Best:
    """The best evaluation so far; nll is per target token, natural logarithm."""

    nll: float | None = None
    update: int = 0
    weights: str = "last"
    bleu: float | None = None
    cider: float | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An evaluation: the loss of each candidate, and the better one's name, loss and quality."""

    nll: float
    weights: str
    losses: dict[str, float]
    quality: Quality
    best: dict[str, Tensor] | None
    """The candidate's weights, if it beats all before."""

    @property
    def is_best(self) -> bool:
        """Whether this is the best evaluation so far."""
        return self.best is not None


class Selection:
    """Scores candidates and remembers the best."""

    def __init__(
        self, weights: Weights, validator: Validator | None, average: RunningAverage | None
    ) -> None:
        self.weights, self.validator, self.average = weights, validator, average
        self.model = weights.model
        self.best = Best()

    def evaluate(self, update: int) -> Outcome:
        """Score the last weights and, where there is one, their running average."""
        candidates: dict[str, Mapping[str, Tensor] | None] = {"last": None}
        if self.average is not None and self.average.steps:
            candidates["ema"] = self.weights.full(self.average.weights)
        return self._evaluate(update, candidates)

    def evaluate_average(self, update: int, weights: Mapping[str, Tensor]) -> Outcome:
        """Score the mean of the last states."""
        return self._evaluate(update, {"average": weights})

    def _evaluate(
        self, update: int, candidates: Mapping[str, Mapping[str, Tensor] | None]
    ) -> Outcome:
        assert self.validator is not None
        losses = {}
        with self.weights.whole():
            for name, weights in candidates.items():
                with self._having(weights):
                    losses[name] = self.validator.loss(self.model)
            chosen = min(losses, key=lambda name: _order(losses[name]))
            with self._having(candidates[chosen]):
                quality = self.validator.quality(self.model)
        before = math.inf if self.best.nll is None else self.best.nll
        improved = losses[chosen] < before
        best = self.weights.copy(candidates[chosen]) if improved else None
        if improved:
            self.best = Best(losses[chosen], update, chosen, quality.bleu, quality.cider)
        return Outcome(losses[chosen], chosen, losses, quality, best)

    def _having(
        self, weights: Mapping[str, Tensor] | None
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if weights is None else exchanged(self.model, weights)


def _order(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
