"""The objective's form: sites, weights, smoothing, and what it counts."""

import math

import pytest
import torch

from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import collate
from nmtgrid.models.api import PredictionSites
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings, site_loss
from tests.unit.helpers.tiny_run import TYPES, TinyModel

BATCH = collate([[5, 6], [7]], [[8, 4], [9]])


def log_probabilities(model: TinyModel) -> torch.Tensor:
    """[5, V], computed apart: three tokens of the first pair, two of the second."""
    rows = []
    for pair, length in ((0, 3), (1, 2)):
        source = BATCH.source[pair, : BATCH.source_lengths[pair]]
        mean = model.source.weight[source].mean(0)
        for position in range(length):
            vector = model.target.weight[BATCH.target_input[pair, position]] + mean
            rows.append((model.target.weight @ vector + model.bias).log_softmax(0))
    return torch.stack(rows)


TARGETS = torch.tensor([8, 4, 2, 9, 2])


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_likelihood_is_the_sum_over_target_tokens(smoothing: float) -> None:
    """Smoothing spreads its mass over all types."""
    model = TinyModel().eval()
    parts = Likelihood(LikelihoodSettings(label_smoothing=smoothing)).loss(model, BATCH)
    logs = log_probabilities(model)
    nll = -logs.gather(1, TARGETS[:, None]).sum()
    assert parts.tokens == 5
    expected = (1 - smoothing) * nll - smoothing * logs.sum() / TYPES
    torch.testing.assert_close(parts.total, expected)
    torch.testing.assert_close(parts.nll, nll.detach())


def test_sites_are_weighted_and_tokens_stay_those_of_the_batch() -> None:
    model = TinyModel().eval()
    sites = PredictionSites(torch.tensor([1, 0]), torch.tensor([0, 2]))
    parts = site_loss(model, BATCH, sites, torch.tensor([2.0, 0.5]))
    logs = log_probabilities(model)
    torch.testing.assert_close(parts.total, -2.0 * logs[3, 9] - 0.5 * logs[2, 2])
    assert parts.tokens == 5


def test_without_gradients_nothing_is_kept_for_them() -> None:
    model = TinyModel().eval()
    with torch.no_grad():
        parts = Likelihood(LikelihoodSettings(label_smoothing=0.0)).loss(model, BATCH)
    assert not parts.total.requires_grad
    assert math.isfinite(parts.nll.item())


def test_the_registry_makes_it_and_its_settings_are_checked() -> None:
    kind = objectives.get("likelihood")
    assert isinstance(kind.make(kind.settings()), Likelihood)
    assert LikelihoodSettings().faults() == []
    assert "label_smoothing" in LikelihoodSettings(label_smoothing=1.0).faults()[0]
    with pytest.raises(Exception, match="likelihood"):
        objectives.get("likelyhood")
