"""Weights that are cast together, against autocast's casts of each: on a CPU, in bfloat16."""

from typing import Any

import pytest
import torch
from torch import nn

from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.optimiser import make_optimiser
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import Updater
from nmtgrid.training.weights import LowPrecisionCopies
from tests.invariants.helpers import Case, basic_cases, batch_for

CPU = torch.device("cpu")


def updater_of(case: Case, **objective: Any) -> Updater:
    torch.manual_seed(3)
    model = case.build()
    optimiser = make_optimiser(model, TrainingSettings(optimiser="nesterov"))
    chosen = Likelihood(LikelihoodSettings(**objective))
    return Updater(TrainedModel(model, chosen), optimiser, CPU, bf16=True, clip_norm=1.0)


@pytest.mark.parametrize("case", basic_cases(), ids=str)
def test_losses_and_gradients_are_autocasts(case: Case) -> None:
    """Bit for bit where each weight is used once: gradients are then cast, not summed."""
    plain, copied = updater_of(case), updater_of(case)
    copied._copies = LowPrecisionCopies(copied.model)
    torch.manual_seed(5)
    batches = [batch_for(plain.model, (7, 4, 1), (3, 8, 5)), batch_for(plain.model, (2,), (6,))]
    for _ in range(2):
        results = []
        for updater in (plain, copied):
            torch.manual_seed(1)
            results.append(updater.apply(batches, 0.1))
        assert results[0].loss == pytest.approx(results[1].loss, rel=1e-6)
        assert results[0].gradient_norm == pytest.approx(results[1].gradient_norm, rel=1e-3)
    for (name, tensor), other in zip(
        plain.model.named_parameters(), copied.model.parameters(), strict=True
    ):
        assert type(other) is nn.Parameter
        torch.testing.assert_close(tensor, other, rtol=1e-3, atol=1e-5, msg=name)
