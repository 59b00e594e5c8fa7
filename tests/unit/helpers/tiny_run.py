"""A tiny model, sentences and trainers for the tests of training; not a test itself."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from nmtgrid.data.batches import Batch, collate
from nmtgrid.models.api import Classifier, PredictionSites, Traits, TranslationModel
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.progress import StopRequest
from nmtgrid.training.settings import BatchSettings, RunSettings, TrainingSettings
from nmtgrid.training.trainer import Trainer
from nmtgrid.training.validate import Quality, Score, Validator

TYPES = 12


@dataclasses.dataclass(frozen=True)
class TinyConfig:
    size: int = 8
    dropout: float = 0.1


class TinyModel(TranslationModel):
    """The previous token and the mean of the source predict the next token."""

    architecture = "tiny"

    def __init__(self, config: TinyConfig | None = None) -> None:
        super().__init__()
        self.config = config or TinyConfig()
        self.traits = Traits()
        self.source = nn.Embedding(TYPES, self.config.size)
        self.target = nn.Embedding(TYPES, self.config.size)
        self.bias = nn.Parameter(torch.zeros(TYPES))

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        shown = batch.is_source[:, :, None].float()
        means = (self.source(batch.source) * shown).sum(1) / shown.sum(1)
        before = self.target(batch.target_input)
        summed: Tensor = before[sites.sentence, sites.position] + means[sites.sentence]
        return F.dropout(summed, self.config.dropout, self.training)

    def classifier(self) -> Classifier:
        return Classifier(self.target.weight, self.bias)


class Sentences:
    """Random pairs, in the form that the trainer reads."""

    def __init__(self, count: int = 40, seed: int = 3) -> None:
        draw = numpy.random.default_rng(seed)
        self.pairs = [
            (draw.integers(4, TYPES, length).tolist(), draw.integers(4, TYPES, length).tolist())
            for length in draw.integers(1, 8, count)
        ]
        self.read: list[int] = []

    @property
    def source_lengths(self) -> NDArray[Any]:
        return numpy.array([len(source) for source, _ in self.pairs])

    @property
    def target_lengths(self) -> NDArray[Any]:
        return numpy.array([len(target) for _, target in self.pairs])

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch:
        places = [int(index) for index in indices]
        self.read += places
        chosen = [self.pairs[index] for index in places]
        return collate([s for s, _ in chosen], [t for _, t in chosen], places)


class Scores:
    """A validator that returns the given results, then repeats the last one."""

    def __init__(self, *losses: float) -> None:
        self.losses = list(losses)
        self.asked = 0

    def score(self, model: TranslationModel) -> Score:
        model.eval()
        self.asked += 1
        return Score(self.losses.pop(0) if len(self.losses) > 1 else self.losses[0])

    def quality(self, model: TranslationModel) -> Quality:
        return Quality()


def trainer(
    folder: Path,
    *,
    seed: int = 1,
    accumulation: int = 1,
    model: TranslationModel | None = None,
    sentences: Sentences | None = None,
    validator: Validator | None = None,
    valid: Sentences | None = None,
    stop: StopRequest | None = None,
    bf16: bool = False,
    **training: Any,
) -> Trainer:
    """Return a trainer of a tiny model that neither validates nor saves by itself."""
    torch.manual_seed(seed)
    defaults: dict[str, Any] = {
        "max_updates": 4, "warmup_updates": 2, "learning_rate": 0.05, "validate_epochs": 0,
        "save_minutes": 0.0, "log_updates": 1,
    }  # fmt: skip
    options = TrainingSettings(**{**defaults, **training})
    batches = BatchSettings(max_tokens=24, accumulation=accumulation)
    settings = RunSettings("tiny", training=options, batches=batches)
    model, objective = model or TinyModel(), Likelihood(LikelihoodSettings())
    pairs, device = sentences or Sentences(), torch.device("cpu")
    return Trainer(
        model, objective, pairs, settings, folder, device,
        validator=validator, valid=valid, stop=stop, bf16=bf16,
    )  # fmt: skip
