"""Log-probabilities of references: those of an ensemble are of the mean probability."""

from __future__ import annotations

import math

import torch

from nmtgrid.search.forced import forced_log_probabilities
from tests.invariants.helpers import basic_cases, model_and_batch


def test_an_ensemble_scores_by_the_mean_probability() -> None:
    case = next(case for case in basic_cases() if "transformer" in str(case))
    model, batch = model_and_batch(case)
    other = case.build()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.3)
    alone = [forced_log_probabilities([member], batch).exp() for member in (model, other)]
    together = forced_log_probabilities([model, other], batch)
    is_token = torch.arange(together.shape[1]) < batch.target_lengths[:, None]
    expected = ((alone[0] + alone[1]) / 2).log()
    assert not torch.allclose(alone[0], alone[1])
    assert torch.allclose(together[is_token], expected[is_token], atol=1e-5)
    assert (together[~is_token] == 0).all()
    # One model three times is that model: a forgotten `- log M` would add log 3 to each token.
    same = forced_log_probabilities([model] * 3, batch)
    assert torch.allclose(same, forced_log_probabilities([model], batch), atol=1e-5)
    assert math.isclose(math.exp(float(same[0, 0])), float(alone[0][0, 0]), rel_tol=1e-4)
