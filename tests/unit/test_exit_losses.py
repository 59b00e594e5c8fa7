"""Distributions over exits and their cross-entropy, by their formulas."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from nmtgrid.adaptive.halting_objective import (
    CompoundLoss,
    Family,
    HaltingSettings,
    exit_log_probabilities,
    exit_loss,
    predicted_exits,
)
from nmtgrid.data.batches import collate
from tests.unit.tiny_transformer import tiny

BATCH = collate([[5, 6, 7], [8]], [[4, 5], [6, 7, 4]])
FAMILIES: list[Family] = ["sequence", "multinomial", "geometric"]


def logits(family: Family) -> torch.Tensor:
    draw = torch.Generator().manual_seed(2)
    return 2 * torch.randn(7, 3 if family == "geometric" else 4, generator=draw)


@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_sum_to_one(family: Family) -> None:
    found = exit_log_probabilities(logits(family), family)
    assert found.shape == (7, 4)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(7))


def test_geometric_probabilities_are_those_of_trials() -> None:
    """Eq. (5.21): the first n - 1 trials fail, the n-th succeeds."""
    held = logits("geometric")
    found = exit_log_probabilities(held, "geometric").exp()
    for row, chances in enumerate(held.sigmoid().tolist()):
        for n in range(4):
            failed = math.prod(1 - chance for chance in chances[:n])
            wanted = failed * (chances[n] if n < 3 else 1.0)
            assert float(found[row, n]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_the_oracles_log_probability(family: Family) -> None:
    held = logits(family).requires_grad_()
    exits = torch.tensor([1, 2, 3, 4, 4, 1, 2])
    found = exit_loss(held, exits, family)
    known = exit_log_probabilities(held.detach(), family)
    wanted = [-float(known[m, n - 1]) for m, n in enumerate(exits)]
    assert found.tolist() == pytest.approx(wanted)
    found.sum().backward()
    assert held.grad is not None
    assert bool(held.grad.isfinite().all())


@pytest.mark.parametrize("family", FAMILIES)
def test_sure_logits_give_finite_losses(family: Family) -> None:
    held = logits(family).sign() * 200
    assert bool(exit_loss(held.half(), torch.full((7,), 2), family).isfinite().all())


def test_predictions_by_hand() -> None:
    rows = [list(row) for row in itertools.product((-1.0, 1.0), repeat=2)]
    assert predicted_exits(torch.tensor(rows), "geometric").tolist() == [3, 2, 1, 1]
    assert predicted_exits(torch.tensor([[0.0]]), "geometric").tolist() == [2]  # 0.5 is not above
    assert predicted_exits(torch.tensor([[0.0, 2.0, 1.0]]), "multinomial").tolist() == [2]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_source_is_encoded_once(family: Family) -> None:
    """Decoder and predictor see the same source, with the same dropout."""
    model = tiny(exits="tied", halting=family, dropout=0.3).train()
    calls: list[object] = []
    model.encoder[0].register_forward_hook(lambda *given: calls.append(given))
    CompoundLoss(HaltingSettings()).loss(model, BATCH)
    assert len(calls) == 1
