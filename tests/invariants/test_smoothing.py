"""The smoothed loss of every architecture, computed from its log-probabilities (Appendix E)."""

import dataclasses

import pytest
import torch
from torch import Tensor

from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.soft_targets import VectorDistribution
from nmtgrid.models.api import TranslationModel
from nmtgrid.smoothing.objectives import Smoothed
from nmtgrid.smoothing.samplers import Samples
from nmtgrid.text.vocabulary import END
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.settings import SequenceSmoothing, SmoothingSettings, TokenSmoothing
from tests.invariants.helpers import Case, batch_for, every_architecture, teacher_forced

ALPHA, TOKEN_ALPHA = 0.3, 0.4


class _Given(Smoothed):
    """A smoothed objective with given sampled sentences."""

    drawn: Tensor

    def draw(self, batch: Batch) -> Samples:
        distances = (self.drawn != batch.target_output[:, None]).sum(2)
        return Samples(self.drawn, distances, torch.zeros(distances.shape).double())


def _in_training(case: Case) -> tuple[TranslationModel, Batch]:
    """Return the model in training mode and two sentences for it, in double precision."""
    model = case.build().double()
    model.train()
    batch = batch_for(model, (3, 5), (2, 4))
    if model.traits.source_features:
        batch = dataclasses.replace(batch, source=batch.source.double())
    return model, batch


def _one_more(batch: Batch, size: int) -> Tensor:
    """Return two sentences [B, 2, T] for each: in the first, every second token is replaced.

    Special tokens, including <unk>, are neither replaced nor substitutes, as in sampling.
    """
    truth = batch.target_output
    other = torch.where(truth + 1 < size, truth + 1, 4)
    is_changed = (truth > 3) & (torch.arange(truth.shape[1]) % 2 == 0)
    return torch.stack([torch.where(is_changed, other, truth), truth], 1)


def _by_hand(batch: Batch, drawn: Tensor) -> Batch:
    """Return the sampled sentences [B, L, T] with the sources of their true ones."""
    rows = torch.arange(len(batch)).repeat_interleave(drawn.shape[1])
    kept = [row[: row.index(END)] for row in drawn.flatten(0, 1).tolist()]
    text = collate([[]] * len(kept), kept)
    return dataclasses.replace(
        batch.select(rows), target_input=text.target_input, target_output=text.target_output
    )


def _gradients(model: TranslationModel, total: Tensor) -> list[Tensor]:
    """Return the gradient of each parameter, zero where there is none."""
    parameters = list(model.parameters())
    return list(torch.autograd.grad(total, parameters, materialize_grads=True))


@every_architecture
@pytest.mark.parametrize("lazy", [False, True])
def test_smoothed_loss(case: Case, lazy: bool) -> None:
    """(E.14): both levels, two sampled sentences for each true one, exact and lazy."""
    model, batch = _in_training(case)
    size = model.classifier().weight.shape[0]
    vectors = torch.randn(size, 3).double()
    spread = VectorDistribution(vectors / vectors.norm(dim=1, keepdim=True), 0.5, torch.ones(size))
    settings = SmoothingSettings(
        TokenSmoothing(alpha=TOKEN_ALPHA), SequenceSmoothing(alpha=ALPHA, samples=2, lazy=lazy)
    )
    smoothed = _Given(Likelihood(LikelihoodSettings(label_smoothing=0.0)), settings, size, spread)
    smoothed.drawn = _one_more(batch, size)
    parts = smoothed.loss(model, batch)
    rows = spread.rows(torch.arange(size))
    aimed = (1 - TOKEN_ALPHA) * torch.eye(size).double() + TOKEN_ALPHA * rows

    def entropy(logs: Tensor, tokens: Tensor) -> Tensor:
        actual = -(aimed[tokens] * logs).sum(2)
        return actual.masked_fill(logs.abs().sum(2) == 0, 0.0).sum()

    several = _by_hand(batch, smoothed.drawn)
    own, theirs = teacher_forced(model, batch), teacher_forced(model, several)
    if lazy:
        theirs = own.repeat_interleave(2, 0)
    drawn = entropy(theirs, several.target_output) / 2
    expected = (1 - ALPHA) * entropy(own, batch.target_output) + ALPHA * drawn
    torch.testing.assert_close(parts.total, expected)
    truth = own.gather(2, batch.target_output[..., None])[..., 0]
    torch.testing.assert_close(parts.nll, -truth.sum())
    assert parts.tokens == int(batch.target_lengths.sum())
    changed = (smoothed.drawn != batch.target_output[:, None]).sum() / 2
    assert float(parts.extra["changed"]) == float(changed)
    for actual, gradient in zip(
        _gradients(model, parts.total), _gradients(model, expected), strict=True
    ):
        torch.testing.assert_close(actual, gradient)


@every_architecture
@pytest.mark.parametrize("alpha", [ALPHA, 1.0])
def test_a_source_is_encoded_once(case: Case, alpha: float) -> None:
    """However many sentences are sampled for it, with or without the true one."""
    model, batch = _in_training(case)
    encoded: dict[str, list[int]] = {}
    for name, stage in model.stages().items():
        # An embedding may be shared with the target.
        if name.startswith("encoder.") and not isinstance(stage, Embedding):
            counts = encoded.setdefault(name, [])
            stage.register_forward_hook(lambda *call, to=counts: to.append(call[2].numel()))
    plain = Likelihood(LikelihoodSettings(label_smoothing=0.0))
    plain.loss(model, batch)
    alone = {name: counts.pop() for name, counts in encoded.items()}
    sequence = SequenceSmoothing(alpha=alpha, samples=2)
    size = model.classifier().weight.shape[0]
    Smoothed(plain, SmoothingSettings(sequence=sequence), size).loss(model, batch)
    assert encoded == {name: [count] for name, count in alone.items()}


@every_architecture
@pytest.mark.parametrize("lazy", [False, True])
def test_drawing_the_truth_is_likelihood(case: Case, lazy: bool) -> None:
    model, batch = _in_training(case)
    size = model.classifier().weight.shape[0]
    plain = Likelihood(LikelihoodSettings(label_smoothing=0.1))
    sequence = SequenceSmoothing(alpha=ALPHA, temperature=1e-3, lazy=lazy)
    smoothed = Smoothed(plain, SmoothingSettings(sequence=sequence), size)
    actual, expected = smoothed.loss(model, batch), plain.loss(model, batch)
    torch.testing.assert_close(actual.total, expected.total)
    assert float(actual.extra["changed"]) == 0
