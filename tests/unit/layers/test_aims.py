"""Targets that are distributions: mixtures, spreads, entropy; fused against plain."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.layers import soft_targets
from nmtgrid.layers.kernels.linear_loss import linear_cross_entropy
from nmtgrid.layers.soft_targets import (
    SoftTargets,
    TargetDistribution,
    VectorDistribution,
)
from tests.unit.kernels.plain_kernels import plain_linear_cross_entropy

V, D, M = 11, 5, 9
ANGLES = torch.tensor([0.0, 60.0, 90.0]) * math.pi / 180
CIRCLE = torch.stack([ANGLES.cos(), ANGLES.sin()], 1)
"""Three vectors; cosines 1/2 between the first two, 0 and sqrt(3)/2 to the last."""


def vectors(size: int = V) -> Tensor:
    drawn = torch.nn.functional.normalize(torch.randn(size, 4), dim=1)
    drawn[0] = 0.0
    return drawn


def spreads() -> list[TargetDistribution | None]:
    full = VectorDistribution(vectors(), 0.5, torch.arange(V).float(), 0.3)
    return [None, full, full.nearest(4)]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("entropy", [0.0, 0.2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("count", [1, 3])
def test_fused_as_plain(which: int, entropy: float, smoothing: float, count: int) -> None:
    spread = spreads()[which]
    shares = torch.rand(M, count).double()
    soft_targets = SoftTargets(
        torch.randint(V, (M, count)), shares / shares.sum(1, keepdim=True), spread, 0.3, entropy
    )
    targets, weights = soft_targets.tokens[:, 0], torch.rand(M).double()
    inputs = [torch.randn(M, D).double(), torch.randn(V, D).double(), torch.randn(V).double()]
    results = []
    options: dict[str, Any] = {
        "targets": targets,
        "weights": weights,
        "label_smoothing": smoothing,
        "soft_targets": soft_targets,
    }
    fused = partial(linear_cross_entropy, **options, chunk=4)
    for function in (fused, partial(plain_linear_cross_entropy, **options)):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        loss, nll = function(*leaves)
        loss.backward()
        results.append([loss.detach(), nll, *(tensor.grad for tensor in leaves)])
    torch.testing.assert_close(*results)
    # Without gradients too, and the same.
    with torch.no_grad():
        loss, _ = fused(*inputs)
    torch.testing.assert_close(loss, results[0][0])


def test_against_the_definition() -> None:
    """-sum_v q_v log p_v - gamma H(p), q = (1 - alpha) sum_c s_c [v = y_c] + alpha sum_c s_c r."""
    spread = VectorDistribution(CIRCLE, 0.5, torch.ones(3))
    soft_targets = SoftTargets(
        torch.tensor([[0, 2]]), torch.tensor([[0.75, 0.25]]), spread, 0.4, 0.1
    )
    logits = torch.tensor([[0.5, -1.0, 2.0]])
    half = math.sqrt(3) / 2
    first = torch.tensor([math.exp(2), math.exp(1), math.exp(0)])
    last = torch.tensor([math.exp(0), math.exp(2 * half), math.exp(2)])
    mixed = 0.75 * first / first.sum() + 0.25 * last / last.sum()
    smoothed = 0.6 * torch.tensor([0.75, 0.0, 0.25]) + 0.4 * mixed
    logs = logits[0].log_softmax(0)
    expected = -(smoothed @ logs) + 0.1 * (logs.exp() @ logs)
    loss, nll = linear_cross_entropy(
        logits, torch.eye(3), None, torch.tensor([0]), soft_targets=soft_targets
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, -logs[0])


def test_rare_tokens_are_promoted() -> None:
    """Eq. (E.11): the token itself pays beta, one of half its frequency half of that."""
    spread = VectorDistribution(CIRCLE, 1.0, torch.tensor([4.0, 2.0, 0.0]), 0.6)
    expected = torch.tensor([[1 - 0.6, 0.5 - 0.3, 0.0]])
    torch.testing.assert_close(spread.rewards(torch.tensor([0])), expected)
    # Two types that were never seen are equally frequent.
    assert spread.rewards(torch.tensor([2]))[0, 2] == pytest.approx(1 - 0.6)
    full = VectorDistribution(CIRCLE, 0.5, torch.ones(3)).to(torch.device("cpu"))
    near = full.nearest(2)
    assert near.neighbours.shape == (3, 2)


def test_types_without_a_vector_keep_to_themselves() -> None:
    with_none = torch.cat([CIRCLE, torch.zeros(1, 2)])
    for spread in (VectorDistribution(with_none, 0.5, torch.ones(4)),):
        rows = spread.rows(torch.tensor([3, 0]))
        torch.testing.assert_close(rows[0], torch.tensor([0.0, 0.0, 0.0, 1.0]))
        assert rows[1, 3] == 0 and rows[1].sum() == pytest.approx(1)
        token, log = spread.sample(torch.tensor([3]), torch.tensor([0.5]))
        assert token.tolist() == [3] and log.tolist() == [-math.inf]
        near = spread.nearest(2)
        token, log = near.sample(torch.tensor([3]), torch.tensor([0.5]))
        assert token.tolist() == [3] and log.tolist() == [-math.inf]


def test_all_neighbours_are_all_types(monkeypatch: pytest.MonkeyPatch) -> None:
    full = VectorDistribution(vectors(), 0.3, torch.rand(V), 0.5)
    monkeypatch.setattr(soft_targets, "TILE", 3 * V)
    near = full.nearest(99)
    tokens = torch.arange(V)
    rows = torch.zeros(V, V).scatter_(1, near.neighbours.long(), near.probabilities)
    torch.testing.assert_close(rows, full.rows(tokens))
    monkeypatch.setattr(soft_targets, "TILE", 1)
    few = full.nearest(3)
    kept = full.rows(tokens).topk(3, 1).values
    torch.testing.assert_close(few.probabilities, kept / kept.sum(1, keepdim=True))


def test_neighbours_of_44_000_types_fit() -> None:
    """No V x V matrix: 44,000 types would take 7.7 GB."""
    size = 44_000
    spread = VectorDistribution(vectors(size), 0.2, torch.ones(size))
    logits, tokens = torch.zeros(3, size), torch.tensor([[5], [5], [7]])
    mean = spread.subtract_(None, logits + 2.0, tokens, torch.ones(3, 1))
    torch.testing.assert_close(mean, torch.full((3,), 2.0))


@pytest.mark.parametrize("near", [False, True])
def test_drawn_as_spread(near: bool) -> None:
    """Every number in [0, 1) names a type; their lengths are r without the token itself."""
    full = VectorDistribution(CIRCLE, 0.5, torch.ones(3))
    spread: TargetDistribution = full.nearest(3) if near else full
    steps = 10_000
    numbers = (torch.arange(steps) + 0.5) / steps
    tokens, logs = spread.sample(torch.zeros(steps, dtype=torch.long), numbers)
    raw = torch.tensor([0.0, math.exp(1), math.exp(0)])
    chances = raw / raw.sum()
    result = torch.bincount(tokens, minlength=3) / steps
    torch.testing.assert_close(result, chances, atol=2e-4, rtol=0)
    torch.testing.assert_close(logs, chances.log()[tokens])


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_drawn_in_tiles(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    full = VectorDistribution(vectors(), 0.3, torch.rand(V), 0.5)
    tokens, numbers = torch.arange(V).repeat(2), torch.rand(2 * V)
    expected = full.sample(tokens, numbers)
    monkeypatch.setattr(soft_targets, "TILE", rows * V)
    actual = full.sample(tokens, numbers)
    assert torch.equal(actual[0], expected[0])
    torch.testing.assert_close(actual[1], expected[1])
    assert all(len(part) == 0 for part in full.sample(tokens[:0], numbers[:0]))
