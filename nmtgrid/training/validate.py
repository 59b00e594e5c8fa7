"""Which weights are kept: the last ones, their running average or the mean of the last states.

All are scored on the validation split; the lowest loss wins, or the objective's own criterion.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import DataError
from nmtgrid.data.batches import cut_by_length
from nmtgrid.data.dataset import Dataset, PictureSplit, Split
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.training.api import Objective
from nmtgrid.training.distributed import Processes
from nmtgrid.training.settings import BatchSettings
from nmtgrid.training.update import autocast
from nmtgrid.training.weights import RunningAverage, Weights, swapped_weights


@dataclasses.dataclass(frozen=True)
class Quality:
    """Scores of greedy translations; None where there is no such score.

    Tokenised BLEU in percent, that of captions against all of a picture's; of captions also a
    hundred times CIDEr-D, by the document frequencies of the references that are scored.
    """

    bleu: float | None = None
    cider: float | None = None


@dataclasses.dataclass(frozen=True)
class Score:
    """What references say of weights, per target token: see `LossParts`."""

    nll: float
    criterion: float | None = None
    extra: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def value(self) -> float:
        """What weights are chosen by."""
        return self.nll if self.criterion is None else self.criterion


class Validator(Protocol):
    """Scores a model's present weights."""

    def score(self, model: TranslationModel) -> Score:
        """Return the loss of the references, without label smoothing."""
        ...

    def quality(self, model: TranslationModel) -> Quality:
        """Return the scores of greedy translations that are wanted."""
        ...


class SplitValidator:
    """Scores on a split: the loss on all of it, quality on its first `sentences` (0: all).

    Several processes share the work, and all get the same scores.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        objective: Objective,
        batches: BatchSettings,
        device: torch.device,
        *,
        bf16: bool = False,
        with_quality: bool = True,
        sentences: int = 0,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes()
        self.pipeline, self.split, self.objective = dataset.pipeline, split, objective
        self.device, self.bf16 = device, bf16
        # Nothing is kept for a backward pass, so twice the tokens fit.
        limits = 2 * batches.max_tokens, 2 * batches.max_cells
        lengths = split.source_lengths, split.target_lengths
        filled = numpy.flatnonzero((lengths[0] > 0) & (lengths[1] > 0))
        if not len(filled):
            # A loss of zero would make the first weights the best ones for good.
            raise DataError(
                f"No pair of the split `{split.name}` has text on both sides.",
                "Make the dataset with validation text that has, or without any.",
            )
        rank, count = self.processes.rank, self.processes.count
        self._batches = cut_by_length(*lengths, filled, *limits)[rank::count]
        self._count = min(sentences or len(split), len(split))
        self._translated = filled[filled < self._count] if with_quality else filled[:0]
        order = numpy.argsort(lengths[0][self._translated], kind="stable")
        ordered = self._translated[order]
        self._groups = cut_by_length(lengths[0], lengths[0], ordered, *limits)[rank::count]
        self._references: list[str] = []
        self._captions: list[list[str]] = []
        if with_quality and isinstance(split, PictureSplit):
            self._captions = split.references()[: self._count]
        elif with_quality:
            self._references = split.tokenized_target()[: self._count]

    @torch.no_grad()
    def score(self, model: TranslationModel) -> Score:
        """Return the loss of the references, without label smoothing."""
        model.eval()
        sums: dict[str, float] = {}
        for indices in self._batches:
            batch = self.split.batch(indices).to(self.device)
            with autocast(self.device, self.bf16):
                parts = self.objective.loss(model, batch)
            told = {"nll": parts.nll, "criterion": parts.criterion, **parts.extra}
            named = {name: value for name, value in told.items() if value is not None}
            values = torch.stack([value.double() for value in named.values()]).tolist()
            for name, value in zip(("tokens", *named), (parts.tokens, *values), strict=True):
                sums[name] = sums.get(name, 0.0) + value
        # A process without a batch does not know the names.
        lists = [json.loads(held) for held in self.processes.gather(json.dumps(sums).encode())]
        names = dict.fromkeys(name for held in lists for name in held)
        total = {name: sum(held.get(name, 0.0) for held in lists) for name in names}
        tokens = max(total.pop("tokens", 0), 1)
        each = {name: value / tokens for name, value in total.items()}
        return Score(each.pop("nll", 0.0), each.pop("criterion", None), each)

    @torch.no_grad()
    def quality(self, model: TranslationModel) -> Quality:
        """Return the scores of greedy translations, none if they are not wanted."""
        if not len(self._translated):
            return Quality()
        # Imported late: it is slow to load, and a run may do without.
        from nmtgrid.metrics.quality import bleu, caption_bleu, caption_cider

        model.eval()
        hypotheses = [""] * self._count
        for indices in self._groups:
            for index, tokens in zip(indices, self._translate(model, indices), strict=True):
                hypotheses[int(index)] = self.pipeline.restore_tokenized(tokens)
        # Each line is empty in all lists but one.
        gathered = self.processes.gather("\n".join(hypotheses).encode())
        lists = [lines.decode().split("\n") for lines in gathered]
        hypotheses = ["".join(lines) for lines in zip(*lists, strict=True)]
        if self._captions:
            held = hypotheses, self._captions
            return Quality(caption_bleu(*held).value, caption_cider(*held).value)
        return Quality(bleu(hypotheses, self._references, "none").value)

    def _translate(self, model: TranslationModel, indices: NDArray[Any]) -> list[list[int]]:
        batch = self.split.batch(indices).to(self.device)
        with autocast(self.device, self.bf16):
            agent = self.objective.agent()
            found = search([model], batch.source, batch.source_lengths, SearchPlan(), agent=agent)
        return [hypotheses[0].tokens for hypotheses in found]


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
        return contextlib.nullcontext() if weights is None else swapped_weights(self.model, weights)


def _order(value: float) -> float:
    return math.inf if math.isnan(value) else value
