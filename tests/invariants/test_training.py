"""Laws of training: an interrupted run is the same run, and micro-batches add up."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.data.batches import Batch
from nmtgrid.data.dropout import drop_words
from nmtgrid.models.api import ExitModel, PredictionSites, TranslationModel, with_exits
from nmtgrid.text.vocabulary import UNKNOWN
from nmtgrid.training import events
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.optimiser import MuonAdamW, make_optimiser
from nmtgrid.training.progress import StopRequest
from nmtgrid.training.settings import BatchSettings, Optimiser, RunSettings, TrainingSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.trainer import Trainer
from nmtgrid.training.update import Updater
from tests.invariants.helpers import (
    SOURCE_TYPES,
    TARGET_TYPES,
    Case,
    batch_for,
    cases,
    every_architecture,
    every_case,
    exit_cases,
    frozen_statistics,
    model_and_batch,
    readable,
    reader_cases,
)
from tests.unit.helpers import tiny_run


class Sentences(tiny_run.Sentences):
    """Twenty random pairs, in the form that the trainer reads."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        sizes = torch.randint(1, 7, (20, 2), generator=draw).tolist()
        self.pairs = [
            (
                torch.randint(3, SOURCE_TYPES, (source,), generator=draw).tolist(),
                torch.randint(3, TARGET_TYPES, (target,), generator=draw).tolist(),
            )
            for source, target in sizes
        ]


def _trainer(
    case: Case, folder: Path, stop: StopRequest, seed: int, optimiser: Optimiser
) -> Trainer:
    torch.manual_seed(seed)
    training = TrainingSettings(
        optimiser=optimiser,
        max_updates=4, warmup_updates=3, ema_decay=0.9, ema_updates=1, log_updates=1,
        save_minutes=0.0, validate_epochs=0, learning_rate=0.01,
    )  # fmt: skip
    model = case.build(dropout=0.2)
    # Word dropout is random too; on the source only if it has words.
    batches = BatchSettings(
        max_tokens=24, accumulation=2, target_word_dropout=0.2,
        source_word_dropout=0.0 if model.traits.source_features else 0.2,
    )  # fmt: skip
    settings = RunSettings(case.arch, training=training, batches=batches)
    objective = Likelihood(LikelihoodSettings())
    sentences = readable(Sentences(), model)
    return Trainer(model, objective, sentences, settings, folder, torch.device("cpu"), stop=stop)


def _saved(trainer: Trainer) -> dict[str, torch.Tensor]:
    index = trainer.checkpoints.existing()[-1]
    return {
        f"{file}:{name}": tensor
        for file in ("last.safetensors", "training.safetensors")
        for name, tensor in load_tensors(index / file).items()
    }


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@every_architecture
def test_two_and_two_updates_are_four(case: Case, optimiser: Optimiser, tmp_path: Path) -> None:
    """Weights, moments, running average and random states are equal bit for bit."""
    whole = _trainer(case, tmp_path / "whole", StopRequest(), seed=1, optimiser=optimiser)
    list(whole.run())
    stop = StopRequest()
    first = _trainer(case, tmp_path / "parts", stop, seed=1, optimiser=optimiser)
    for event in first.run():
        if isinstance(event, events.Updated) and event.update == 2:
            stop.reason = "asked to"
    assert first.progress.update == 2
    second = _trainer(case, tmp_path / "parts", StopRequest(), seed=99, optimiser=optimiser)
    assert second.resume()
    list(second.run())
    assert second.progress.update == whole.progress.update == 4
    expected, resumed = _saved(whole), _saved(second)
    assert expected.keys() == resumed.keys()
    differing = [name for name in expected if not torch.equal(expected[name], resumed[name])]
    assert differing == []
    two = torch.cat([t.flatten().double() for t in _saved(first).values()])
    assert not torch.equal(two, torch.cat([t.flatten().double() for t in expected.values()]))


@every_architecture
def test_no_gradient_sees_a_dropped_word(case: Case) -> None:
    """Loss and gradients do not depend on a dropped word, but they do on others."""
    model = case.build()
    batch = batch_for(model, (7, 4, 1, 9), (3, 8, 5, 2))
    rates = (0.0 if model.traits.source_features else 0.5, 0.5)
    names = [name for name, rate in zip(("source", "target_input"), rates, strict=True) if rate]
    dropped = drop_words(batch, rates, 1, 0)
    torch.manual_seed(3)
    for name in names:
        words, is_dropped = getattr(batch, name), getattr(dropped, name) == UNKNOWN
        is_dropped &= words != UNKNOWN
        is_shown = ~is_dropped & (words > UNKNOWN)
        assert bool(is_dropped.any()) and bool(is_shown.any())
        gradients = []
        for changed in (None, is_dropped, is_shown):
            tokens = words if changed is None else torch.where(changed, words % 2 + 4, words)
            assert changed is None or not torch.equal(tokens, words)
            words_changed: dict[str, Any] = {name: tokens}
            other = drop_words(dataclasses.replace(batch, **words_changed), rates, 1, 0)
            model.zero_grad()
            Likelihood(LikelihoodSettings()).loss(model, other).total.backward()
            gradients.append(
                torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            )
        own, same, differs = gradients
        assert torch.equal(own, same) and not torch.equal(own, differs)


@every_case
def test_micro_batches_add_up(case: Case) -> None:
    """The gradient of a batch is that accumulated over its parts, whatever their sizes and lengths.

    With batch statistics it is not, which must be detected; with frozen ones it is.
    """
    model = case.build()
    if not model.traits.batch_statistics:
        assert _largest_deviation(model) <= 1e-5
        return
    assert _largest_deviation(model) > 1e-2, "`traits.batch_statistics` should be False"
    with frozen_statistics(model):
        assert _largest_deviation(model) <= 1e-5


def _largest_deviation(model: TranslationModel) -> float:
    """Return the largest difference of gradients of parts and batch, relative to the batch's."""
    batch = batch_for(model, (7, 4, 1, 9), (3, 8, 5, 2))
    gradients = []
    for parts in ([[0, 1, 2, 3]], [[2, 0], [1, 3]], [[3], [0, 1, 2]]):
        pieces = [batch.select(torch.tensor(rows)) for rows in parts]
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
        updater = Updater(
            TrainedModel(model, Likelihood(LikelihoodSettings())), optimiser, torch.device("cpu"),
            bf16=False, clip_norm=0.0,
        )  # fmt: skip
        updater.apply(pieces, 0.0)
        gradients.append(
            torch.cat([
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().clone()
                for p in model.parameters()
            ])
        )  # fmt: skip
    whole, *others = gradients
    assert whole.abs().max() > 1e-3
    return max(float((other - whole).abs().max() / whole.abs().max()) for other in others)


@every_case
def test_a_gradient_is_the_slope_of_the_loss(case: Case) -> None:
    """A small step along the gradient changes the loss by its squared length, to first order.

    The margin is for the kinks of maxima and rectifiers that the step may cross.
    """
    model, batch = model_and_batch(case, (4, 2), (3, 5))
    objective = Likelihood(LikelihoodSettings(label_smoothing=0.1))
    loss = objective.loss(model, batch).total
    loss.backward()
    moved = [p for p in model.parameters() if p.grad is not None]
    slope = sum(float(p.grad.double().square().sum()) for p in moved if p.grad is not None)
    size = 5e-4 / slope**0.5

    def at(amount: float) -> float:
        with torch.no_grad():
            for p in moved:
                assert p.grad is not None
                p.add_(p.grad, alpha=amount)
            value = float(objective.loss(model, batch).total.double())
            for p in moved:
                assert p.grad is not None
                p.sub_(p.grad, alpha=amount)
        return value

    measured = (at(size) - at(-size)) / (2 * size)
    assert measured == pytest.approx(slope, rel=0.05)


@every_case
def test_every_parameter_learns(case: Case) -> None:
    """No parameter is unused in the loss, or detached from it."""
    model, batch = model_and_batch(case)
    if model.traits.readiness == "monotonic":
        model.train()  # in evaluation mode heads make hard choices, which have no gradient
    loss = Likelihood(LikelihoodSettings()).loss(model, batch).total
    if model.traits.reads:
        loss = loss + model.reading(batch)[batch.is_target].square().sum()
    if model.traits.num_exits > 1:
        loss = loss + _of_exits(with_exits(model), batch)
    loss.backward()
    idle = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not bool((parameter.grad != 0).any())
    ]
    assert idle == []


def _of_exits(model: ExitModel, batch: Batch) -> Tensor:
    """Return a loss that depends on all classifiers and on the halting network."""
    states = model.exit_features(batch, PredictionSites.offline(batch))
    classifiers = [model.classifier(exit) for exit in range(1, len(states) + 1)]
    pairs = zip(states, classifiers, strict=True)
    logits = [torch.nn.functional.linear(state, layer.weight, layer.bias) for state, layer in pairs]
    loss = torch.stack(logits).logsumexp(-1).square().sum()
    if model.traits.halting == "none":
        return loss
    return loss + model.halting_logits(batch, states).square().sum()


@pytest.mark.parametrize("case", [*cases(), *exit_cases(), *reader_cases()], ids=str)
def test_muon_moves_the_maps_between_features(case: Case) -> None:
    """All matrices of linear and recurrent layers; no embedding, no classifier, no vector."""
    model = case.build()
    optimiser = make_optimiser(model, TrainingSettings(optimiser="muon"))
    assert isinstance(optimiser, MuonAdamW)
    moved = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    assert len(moved) == len(set(moved)) and set(moved) == set(model.parameters())
    names = {parameter: name for name, parameter in model.named_parameters()}
    hidden = {names[parameter] for parameter in optimiser.hidden}
    exits = range(1, model.traits.num_exits + 1) if model.traits.num_exits > 1 else ()
    classifiers = [model.classifier(), *(with_exits(model).classifier(exit) for exit in exits)]
    assert not hidden & {
        name for name, p in model.named_parameters() for part in classifiers if p is part.weight
    }
    # No other dimension equals the sizes of the vocabularies.
    types = {SOURCE_TYPES, TARGET_TYPES}
    assert not [name for name in hidden if types & set(model.get_parameter(name).shape)]
    layers = nn.Linear | nn.RNNBase | nn.RNNCellBase
    matrices = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if isinstance(module, layers) and parameter.dim() > 1 and prefix != "halting_map"
    }
    single = {name for name in matrices if 1 in model.get_parameter(name).shape}
    assert matrices - hidden == single


@every_case
def test_the_loss_is_the_sum_over_its_sites(case: Case) -> None:
    """Without smoothing it is minus the log-probability of the target."""
    model, batch = model_and_batch(case)
    sites = PredictionSites.offline(batch)
    values = model.classify(model.features(batch, sites)).log_softmax(-1)
    targets = batch.target_output[sites.sentence, sites.position]
    expected = -values.gather(1, targets[:, None]).sum()
    parts = Likelihood(LikelihoodSettings(label_smoothing=0.0)).loss(model, batch)
    assert parts.tokens == int(batch.target_lengths.sum()) == len(sites)
    assert float(parts.total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(parts.nll) == pytest.approx(float(expected.detach()), rel=1e-5)
