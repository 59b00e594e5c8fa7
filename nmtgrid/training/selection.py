"""Which weights are kept: the last ones, their running average or the mean of the last states.

All are scored on the validation split; the lowest loss wins, or the objective's own criterion.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping

from torch import Tensor

from nmtgrid.training.averaging import RunningAverage, exchanged
from nmtgrid.training.validate import Quality, Score, Validator
from nmtgrid.training.weights import Weights


@dataclasses.dataclass
class Best:
    """The best evaluation so far; nll is per target token, natural logarithm."""

    nll: float | None = None
    update: int = 0
    weights: str = "last"
    bleu: float | None = None
    cider: float | None = None
    criterion: float | None = None
    """What it was chosen by, if not by nll."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An evaluation: the scores of all candidates, and the better one's name and quality."""

    weights: str
    scores: dict[str, Score]
    quality: Quality
    best: dict[str, Tensor] | None
    """The candidate's weights, if it beats all before."""

    @property
    def score(self) -> Score:
        """The better candidate's."""
        return self.scores[self.weights]

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
        scores = {}
        with self.weights.whole():
            for name, weights in candidates.items():
                with self._having(weights):
                    scores[name] = self.validator.score(self.model)
            chosen = min(scores, key=lambda name: _order(scores[name].value))
            with self._having(candidates[chosen]):
                quality = self.validator.quality(self.model)
        score = scores[chosen]
        before = self.best.nll if score.criterion is None else self.best.criterion
        improved = score.value < (math.inf if before is None else before)
        best = self.weights.copy(candidates[chosen]) if improved else None
        if improved:
            self.best = Best(
                score.nll, update, chosen, quality.bleu, quality.cider, score.criterion
            )
        return Outcome(chosen, scores, quality, best)

    def _having(
        self, weights: Mapping[str, Tensor] | None
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if weights is None else exchanged(self.model, weights)


def _order(value: float) -> float:
    return math.inf if math.isnan(value) else value
