"""Cheap dropout: the right share, the right scale, reproducible, and the right gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nmtgrid.layers.kernels.dropout import (
    draw_mask,
    dropout,
    kept_share,
    residual_dropout,
)
from tests.unit.kernels.plain_kernels import plain_residual_dropout

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def test_kept_share_is_the_nearest_multiple() -> None:
    shares = {0.5: 128, 0.1: 230, 0.2: 205, 1e-6: 255, 0.99999: 1, 0.0: 256}
    assert {rate: kept_share(rate) for rate in shares} == {r: n / 256 for r, n in shares.items()}


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("dtype", DTYPES)
def test_share_and_expectation(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    count = 200_003
    dropped = dropout(torch.ones(count, dtype=dtype), rate, True)
    share = kept_share(rate)
    # Five standard deviations of the mean of `count` coins.
    margin = 5 * math.sqrt(share * (1 - share) / count)
    assert float((dropped != 0).double().mean()) == pytest.approx(share, abs=margin)
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / share))
    assert float(dropped.double().mean()) == pytest.approx(1.0, abs=margin / share + 2e-3)


def test_masks_are_independent_and_seeded() -> None:
    torch.manual_seed(2)
    mask = draw_mask(torch.empty(400_000), 0.5).double() - 0.5
    for distance in (1, 2, 7, 8, 64):
        correlation = float((mask[distance:] * mask[:-distance]).mean()) * 4
        assert abs(correlation) < 5 / math.sqrt(400_000)
    x = torch.ones(1001)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = dropout(x, 0.3, True), dropout(x, 0.3, True)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.3, True), first)
    assert torch.equal(dropout(x, 0.3, True), second) and not torch.equal(first, second)


def test_any_number_of_elements() -> None:
    for x in map(torch.ones, ((1,), (3, 5), (2, 3, 7), (8,), (0, 4))):
        for dropped in (dropout(x, 0.5, True), residual_dropout(x, x, 0.5, 0.5, True)):
            assert dropped.shape == x.shape


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.3, False)])
def test_inactive_dropout_changes_nothing_and_draws_nothing(rate: float, training: bool) -> None:
    h, y = torch.randn(5, 3), torch.randn(5, 3)
    state = torch.get_rng_state()
    assert dropout(h, rate, training) is h
    torch.testing.assert_close(residual_dropout(h, y, rate, 0.7, training), (h + y) * 0.7)
    assert torch.equal(torch.get_rng_state(), state)

    for rate in (-0.1, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="rate"):
            dropout(torch.ones(2), rate, True)
        with pytest.raises(ValueError, match="rate"):
            residual_dropout(torch.ones(2), torch.ones(2), rate, 1.0, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, math.sqrt(0.5)])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_residual_equals_the_reference(dtype: torch.dtype, scale: float, rate: float) -> None:
    h, y = (torch.randn(33, 7).to(dtype).requires_grad_() for _ in range(2))
    torch.manual_seed(4)
    mask = draw_mask(h, rate) if rate else torch.ones_like(h)
    torch.manual_seed(4)
    actual = residual_dropout(h, y, rate, scale, True)
    share = kept_share(rate)
    exact = [tensor.detach().double().requires_grad_() for tensor in (h, y)]
    expected = plain_residual_dropout(exact[0], exact[1], mask.double(), share, scale)
    outer = torch.randn(33, 7).to(dtype)
    gradients = torch.autograd.grad(actual, (h, y), outer)
    right = torch.autograd.grad(expected, exact, outer.double())
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
    for value, reference in zip((actual, *gradients), (expected, *right), strict=True):
        assert value.dtype == dtype
        torch.testing.assert_close(value, reference.to(dtype), rtol=tolerance, atol=tolerance)


def test_gradients_and_dtypes() -> None:
    x = torch.randn(999, requires_grad=True)
    dropped = dropout(x, 0.25, True)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    torch.testing.assert_close(gradient, (dropped != 0).float() / 0.75)
    h = torch.randn(4, 3).bfloat16().requires_grad_()
    y = torch.randn(4, 3, requires_grad=True)
    result = residual_dropout(h, y, 0.5, 1.0, True)
    assert result.dtype == torch.bfloat16
    of_h, of_y = torch.autograd.grad(result.sum(), (h, y))
    assert (of_h.dtype, of_y.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_activation_checkpointing_draws_the_same_masks(rate: float) -> None:
    h, y = (torch.randn(33, 7, requires_grad=True) for _ in range(2))

    def run(h: Tensor, y: Tensor) -> Tensor:
        return residual_dropout(dropout(h, rate, True), y, rate, 0.7, True).square()

    torch.manual_seed(5)
    plain = torch.autograd.grad(run(h, y).sum(), (h, y))
    torch.manual_seed(5)
    again = checkpoint(run, h, y, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), (h, y)), plain)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    h, y = torch.zeros(500, 40, device="cuda"), torch.ones(500, 40, device="cuda")
    dropped = residual_dropout(h, y, 0.5, 0.5, True)
    assert set(dropped.unique().tolist()) == {0.0, 1.0}
    assert float(dropped.mean()) == pytest.approx(0.5, abs=0.03)
