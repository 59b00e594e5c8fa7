"""R-Drop (Liang et al., 2021), for every architecture and every objective that supports it."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.smoothing.objectives import Smoothed
from nmtgrid.training.api import LossParts, Objective
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings, both_passes
from nmtgrid.training.settings import SequenceSmoothing, SmoothingSettings
from tests.invariants.helpers import (
    Case,
    batch_for,
    every_architecture,
    every_case,
    exit_cases,
    online_cases,
)
from tests.unit.kernels.plain_kernels import plain_r_drop

ALPHA = 5.0
CHANGES: dict[str, dict[str, Any]] = {
    "wait-k-sampled": {"paths": 2},
    "exits-mixed": {"sequences": 2, "distillation": 0.5},
    "exits-aligned": {"gradient_ratio": 2.0},
}
"""Settings with which an objective has the most work."""


def _in_training(case: Case, dropout: float = 0.0) -> tuple[TranslationModel, Batch]:
    """Return the model in training mode and three sentences for it, in double precision."""
    model = case.build(dropout=dropout).double().train()
    batch = batch_for(model, (3, 5, 1), (2, 4, 6))
    if model.traits.source_features:
        batch = dataclasses.replace(batch, source=batch.source.double())
    return model, batch


def _loss(objective: Objective, model: TranslationModel, batch: Batch) -> LossParts:
    """Return the loss, with the same random numbers at each call."""
    torch.manual_seed(3)
    return objective.loss(model, batch)


def _gradients(model: TranslationModel, parts: LossParts) -> list[Tensor]:
    return list(torch.autograd.grad(parts.total, list(model.parameters()), materialize_grads=True))


def _assert_same(model: TranslationModel, objective: Objective, batch: Batch) -> None:
    single = _loss(objective, model, batch)
    double = _loss(objective, model, dataclasses.replace(batch, r_drop=ALPHA))
    torch.testing.assert_close((double.total, double.nll), (single.total, single.nll))
    assert double.tokens == single.tokens and double.extra.keys() == single.extra.keys()
    torch.testing.assert_close(_gradients(model, double), _gradients(model, single))


@functools.cache
def _pairs() -> list[tuple[str, Case]]:
    """Return each objective that takes two passes, with models that it can train."""
    every = [(case, case.build()) for case in (*online_cases(), *exit_cases())]
    pairs = []
    for name in objectives:
        kind = objectives.get(name)
        if not kind.takes_two_passes or name == "likelihood":
            continue
        archs: dict[str, Case] = {}
        for case, model in every:
            try:
                kind.make(kind.settings()).check(model)
            except ConfigError:
                continue
            archs.setdefault(case.arch, case)
        pairs += [(name, case) for case in archs.values()]
    return pairs


every_pair = pytest.mark.parametrize(("name", "case"), _pairs(), ids=str)


def _objective(name: str) -> Objective:
    kind = objectives.get(name)
    return kind.make(kind.settings(**CHANGES.get(name, {})))


@every_case
def test_two_passes_without_dropout_are_one(case: Case) -> None:
    """Their divergence is zero, and their mean is the loss of either."""
    model, batch = _in_training(case)
    _assert_same(model, Likelihood(LikelihoodSettings(label_smoothing=0.1)), batch)


@every_pair
def test_two_passes_of_an_objective_without_dropout_are_one(name: str, case: Case) -> None:
    """Everything else that is random (paths, cells, exits) is drawn once for both."""
    model, batch = _in_training(case)
    _assert_same(model, _objective(name), batch)


@every_pair
def test_an_objective_counts_the_divergence(name: str, case: Case) -> None:
    model, batch = _in_training(case, 0.5)
    objective = _objective(name)
    losses = [
        _loss(objective, model, dataclasses.replace(batch, r_drop=alpha)).total.item()
        for alpha in (0.0, 1.0, 3.0)
    ]
    assert losses[1] > losses[0]
    assert losses[2] - losses[0] == pytest.approx(3 * (losses[1] - losses[0]))


@every_architecture
def test_the_loss_is_that_of_two_passes(case: Case) -> None:
    """Each has separate dropout, also in the encoder."""
    model, batch = _in_training(case, 0.5)
    batch = dataclasses.replace(batch, r_drop=ALPHA)
    parts = _loss(Likelihood(LikelihoodSettings(label_smoothing=0.1)), model, batch)
    sites = PredictionSites.offline(batch)
    torch.manual_seed(3)
    features = model.features(*both_passes(batch, sites))
    first, second = features.chunk(2)
    assert bool((first != second).any(1).all())
    targets = batch.target_output[batch.is_target]
    classifier = model.classifier()
    expected = plain_r_drop(
        features, classifier.weight, classifier.bias, targets, None, 0.1, None, ALPHA
    )
    torch.testing.assert_close((parts.total, parts.nll), expected)
    assert parts.tokens == len(targets)


@every_architecture
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_with_drawn_sentences(case: Case, lazy: bool, alpha: float) -> None:
    """The samples are the same for both passes."""
    model, batch = _in_training(case)
    sequence = SequenceSmoothing(alpha=alpha, samples=2, lazy=lazy)
    size = model.classifier().weight.shape[0]
    plain = Likelihood(LikelihoodSettings(label_smoothing=0.1))
    _assert_same(model, Smoothed(plain, SmoothingSettings(sequence=sequence), size), batch)


def test_shared_sources_are_encoded_once_for_each_pass() -> None:
    batch = batch_for(Case("transformer").build(), (3, 5), (2, 4))
    encoded: list[Tensor] = []

    def encode(source: Tensor, lengths: Tensor) -> Tensor:
        encoded.append(source)
        assert lengths.tolist() == [4, 6, 4, 6]
        return torch.arange(len(source))

    shared = batch.with_shared_source()
    rows = torch.tensor([1, 0, 1])
    assert shared.select(rows).twice().encode_source(encode).tolist() == [1, 0, 1, 3, 2, 3]
    assert shared.twice().encode_source(encode).tolist() == [0, 1, 2, 3]
    assert len(encoded) == 1 and torch.equal(encoded[0], torch.cat([batch.source] * 2))
