"""Validation, and the choice of the best weights: the last ones, their EMA or average.

All candidates are scored on the validation split; the one with the lowest loss or value of the
objective's own criterion, or the best translations wins (`training.best_by`). Called by trainer.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.devices import autocast, is_out_of_memory
from nmtgrid.base.errors import DataError
from nmtgrid.base.io.records import Count, Finite, NonNegative, Percent
from nmtgrid.data.batches import cut_by_length
from nmtgrid.data.dataset import Dataset, PictureSplit, Split
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.cuda_graphs import Graphs, Recorder
from nmtgrid.search.engine import search
from nmtgrid.text.scripts import bleu_tokenizer
from nmtgrid.training.api import LossParts, Objective, checked
from nmtgrid.training.distributed import ALONE, Processes
from nmtgrid.training.settings import BatchSettings, BestBy
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.weights import ExponentialMovingAverage, swapped_weights

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Quality:
    """Scores of greedy translations; None for scores that were not computed.

    Tokenised BLEU in percent, for captions against all references of a picture; for captions also
    100 times CIDEr-D, with the document frequencies of the references that are scored.
    """

    bleu: float | None = None
    cider: float | None = None


@dataclasses.dataclass(frozen=True)
class Score:
    """The loss of weights on references, per target token: see `LossParts`."""

    nll: float
    criterion: float | None = None
    extra: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def value(self) -> float:
        """The loss, or the objective's own criterion."""
        return self.nll if self.criterion is None else self.criterion


class Validator(Protocol):
    """Scores a model's current weights, as `SplitValidator` does."""

    def score(self, model: TranslationModel) -> Score: ...

    def quality(self, model: TranslationModel) -> Quality: ...


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
        processes: Processes = ALONE,
    ) -> None:
        self.processes = processes
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
                "Make the dataset with other validation text, or without any.",
            )
        rank, count = self.processes.rank, self.processes.count
        self._batches = cut_by_length(*lengths, filled, *limits)[rank::count]
        self._count = min(sentences or len(split), len(split))
        # As in decoding, every line with a source is translated, even if its reference is empty.
        has_source = lengths[0][: self._count] > 0
        self._translated = numpy.flatnonzero(has_source) if with_quality else filled[:0]
        # Only by source length: the lengths of the translations are not known.
        order = numpy.argsort(lengths[0][self._translated], kind="stable")
        ordered = self._translated[order]
        self._groups = cut_by_length(lengths[0], lengths[0], ordered, *limits)[rank::count]
        self._references: list[str] = []
        self._captions: list[list[str]] = []
        self._tokenize = "none"
        if with_quality and isinstance(split, PictureSplit):
            self._captions = split.references()[: self._count]
        elif with_quality:
            self._references = split.tokenized_target()[: self._count]
            language, raw = self.pipeline.facts.target_lang, split.raw_target()[: self._count]
            self._tokenize = bleu_tokenizer(language, raw, "none")

    def _within_memory(
        self, batches: Sequence[NDArray[Any]], work: Callable[[NDArray[Any]], Result]
    ) -> Iterator[tuple[NDArray[Any], Result]]:
        """Yield indices of pairs with the result of `work`; halve batches that do not fit."""
        remaining = [*reversed(batches)]
        while remaining:
            indices = remaining.pop()
            try:
                result = work(indices)
            except (RuntimeError, MemoryError) as fault:
                if len(indices) == 1 or not is_out_of_memory(fault):
                    raise
            else:
                yield indices, result
                continue
            # Outside the handler: its traceback would keep the failed pass's tensors alive.
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            remaining += [indices[len(indices) // 2 :], indices[: len(indices) // 2]]

    @torch.no_grad()
    def score(self, model: TranslationModel) -> Score:
        """Return the loss of the references, without label smoothing."""
        model.eval()
        sums: dict[str, float] = {}

        def loss(indices: NDArray[Any]) -> LossParts:
            with autocast(self.device, self.bf16):
                batch = self.split.batch(indices).to(self.device)
                return checked(self.objective.loss(model, batch))

        for _, parts in self._within_memory(self._batches, loss):
            values = {"nll": parts.nll, **parts.extra}
            if parts.criterion is not None:
                values["criterion"] = parts.criterion
            # Transferred together: a GPU is synchronised once.
            numbers = torch.stack([value.double() for value in values.values()]).tolist()
            for name, value in zip(("tokens", *values), (parts.tokens, *numbers), strict=True):
                sums[name] = sums.get(name, 0.0) + value
        # A process without a batch does not know the names, so they are sent too.
        total: dict[str, float] = {}
        for shares in self.processes.gather(json.dumps(sums).encode()):
            for name, value in json.loads(shares).items():
                total[name] = total.get(name, 0.0) + value
        tokens = max(total.pop("tokens", 0), 1)
        means = {name: value / tokens for name, value in total.items()}
        return Score(means.pop("nll", 0.0), means.pop("criterion", None), means)

    @torch.no_grad()
    def quality(self, model: TranslationModel) -> Quality:
        """Return the scores of greedy translations, none without `with_quality`."""
        # The same for all processes, though some may have no group of their own.
        if not len(self._translated):
            return Quality()
        # Imported late: it is slow to load, and a run may do without.
        from nmtgrid.metrics.quality import bleu, caption_bleu, caption_cider

        model.eval()
        # Recorded anew each time: recordings keep weights, and memory that training needs.
        graphs = Graphs(Recorder(self.device)) if self.device.type == "cuda" else None
        hypotheses = [""] * self._count

        def translate(indices: NDArray[Any]) -> list[list[Hypothesis]]:
            batch = self.split.batch(indices).to(self.device)
            with autocast(self.device, self.bf16):
                return search(
                    [model], batch.source, batch.source_lengths, SearchPlan(),
                    agent=self.objective.agent(), graphs=graphs,
                )  # fmt: skip

        for indices, nbest_lists in self._within_memory(self._groups, translate):
            for index, (best, *_) in zip(indices, nbest_lists, strict=True):
                hypotheses[int(index)] = self.pipeline.restore_tokenized(best.tokens)
        # Each line is empty in all lists but one.
        gathered = self.processes.gather("\n".join(hypotheses).encode())
        lists = [lines.decode().split("\n") for lines in gathered]
        hypotheses = ["".join(lines) for lines in zip(*lists, strict=True)]
        if self._captions:
            cider = caption_cider(hypotheses, self._captions).value
            return Quality(caption_bleu(hypotheses, self._captions).value, cider)
        return Quality(bleu(hypotheses, self._references, self._tokenize).value)


Candidate = Literal["last", "ema", "average"]
"""Weights that are scored."""


@dataclasses.dataclass
class Best:
    """The best evaluation so far; nll is per target token, natural logarithm."""

    nll: Finite | None
    update: Count
    weights: Candidate
    bleu: Percent | None = None
    cider: NonNegative | None = None
    criterion: Finite | None = None
    """The objective's own, if it has one."""

    def value(self, by: BestBy, *, has_criterion: bool) -> float:
        """Return the value that it was chosen by; infinite before the first evaluation.

        Also infinite for a run that had no criterion before, because its loss is not comparable
        with one.
        """
        if self.nll is None or (by == "loss" and has_criterion and self.criterion is None):
            return math.inf
        return _value(by, Score(self.nll, self.criterion), Quality(self.bleu, self.cider))


def _value(by: BestBy, score: Score, quality: Quality) -> float:
    """Return the value by which weights are chosen, the lower the better; infinite for NaN.

    Weights without a finite loss have diverged, whatever they translate.
    """
    if not math.isfinite(score.nll):
        return math.inf
    if by == "loss":
        value: float | None = score.value
    else:
        gain = quality.bleu if by == "bleu" else quality.cider
        value = None if gain is None else -gain
    return math.inf if value is None or math.isnan(value) else value


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An evaluation: the better candidate's name, score and quality."""

    weights: str
    score: Score
    quality: Quality
    losses: dict[str, float]
    """The nll of all candidates."""
    value: float
    """The value by which the candidate was chosen, the lower the better."""
    best: dict[str, Tensor] | None
    """The candidate's weights, if it beats all before; else None."""


class Selection:
    """Scores candidates and remembers the best, by their loss or by their translations."""

    def __init__(
        self,
        trained: TrainedModel,
        validator: Validator | None,
        ema: ExponentialMovingAverage | None,
        by: BestBy = "loss",
    ) -> None:
        self.trained, self.validator, self.ema = trained, validator, ema
        self.by: BestBy = by
        self.best = Best(None, 0, "last")

    def evaluate(self, update: int, average: Mapping[str, Tensor] | None = None) -> Outcome:
        """Score the last weights and, if there is one, their exponential moving average.

        If `average` (weights by name) is given, score only this mean of the last states.
        """
        assert self.validator is not None
        candidates: dict[Candidate, Mapping[str, Tensor] | None] = {"last": None}
        if average is not None:
            candidates = {"average": average}
        elif self.ema is not None and self.ema.steps:
            candidates["ema"] = self.trained.unsharded(self.ema.weights)
        model = self.trained.model
        scores: dict[Candidate, Score] = {}
        qualities: dict[Candidate, Quality] = {}
        with self.trained.gathered():
            for name, weights in candidates.items():
                with swapped_weights(model, weights):
                    scores[name] = self.validator.score(model)
                    if self.by != "loss":
                        qualities[name] = self.validator.quality(model)
            values = {n: _value(self.by, scores[n], qualities.get(n, Quality())) for n in scores}
            name = min(values, key=values.__getitem__)
            weights, score = candidates[name], scores[name]
            if name not in qualities:
                # Translating takes long, so only the winner is translated.
                with swapped_weights(model, weights):
                    qualities[name] = self.validator.quality(model)
        quality, best = qualities[name], None
        # Compared with the best of all candidates so far, whichever weights they were.
        has_criterion = score.criterion is not None
        if values[name] < self.best.value(self.by, has_criterion=has_criterion):
            best = self.trained.copy(weights)
            self.best = Best(
                nll=score.nll,
                update=update,
                weights=name,
                bleu=quality.bleu,
                cider=quality.cider,
                criterion=score.criterion,
            )
        losses: dict[str, float] = {name: score.nll for name, score in scores.items()}
        return Outcome(name, score, quality, losses, values[name], best)
