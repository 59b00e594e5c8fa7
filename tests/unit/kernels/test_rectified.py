"""Fused projections and rectifiers against plain ones: values, gradients, who is watching."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.layers.kernels.linear import (
    LinearReLU,
    Projection,
    close_where_zero,
    feed_forward,
    linear_relu,
)

# Flat cells, one cell, a long thin row, a decoding step of two rows.
SHAPES = [(37, 5), (1, 5), (301, 1), (2, 7, 5)]


def _leaves(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    wide = torch.randn(shape), torch.randn(6, shape[-1]), torch.randn(6)
    return [tensor.to(dtype).requires_grad_() for tensor in wide]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
)
def test_equals_the_plain_form(
    dtype: torch.dtype, tolerance: float, shape: tuple[int, ...]
) -> None:
    leaves = _leaves(shape, dtype)
    result = LinearReLU.apply(*leaves)  # type: ignore[no-untyped-call]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    right = torch.relu(exact[0] @ exact[1].t() + exact[2])
    # Where rounding decides which side of zero a value lies on, both are right.
    sums = exact[0].detach() @ exact[1].detach().t() + exact[2].detach()
    is_clear = sums.abs() > 0.05
    outer = (torch.randn(result.shape) * is_clear).to(dtype)
    gradients = torch.autograd.grad(result, leaves, outer)
    expected = torch.autograd.grad(right, exact, outer.double())
    for mine, theirs in zip((result, *gradients), (right, *expected), strict=True):
        assert mine.dtype == dtype
        size = float(theirs.detach().abs().max()) + 1.0
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_closed_rectifiers_pass_no_gradient(dtype: torch.dtype) -> None:
    outputs = torch.tensor([0.0, -0.0, 1e-38, 0.5, 3e38], dtype=dtype)
    gradients = torch.tensor([1.0, -0.0, 1e-38, -3.3e38, float("inf"), float("nan")], dtype=dtype)
    pairs = torch.cartesian_prod(outputs, gradients)
    rectified, gradient = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    right = torch.ops.aten.threshold_backward(gradient, rectified, 0)
    close_where_zero(gradient, rectified)
    assert torch.equal(gradient.nan_to_num(7.0), right.nan_to_num(7.0))
    assert torch.equal(gradient.isnan(), right.isnan())


def test_on_a_cpu_it_is_the_map_and_the_rectifier() -> None:
    assert torch.autograd.gradcheck(LinearReLU.apply, _leaves((4, 3), torch.float64))
    module, x = nn.Linear(5, 6), torch.randn(3, 5)
    assert torch.equal(linear_relu(module, x), torch.relu(module(x)))
    module, seen = nn.Linear(5, 6), []
    module.register_forward_hook(lambda *call: seen.append(call[2].shape))
    linear_relu(module, torch.randn(3, 5))
    assert seen == [(3, 6)]


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
def test_on_a_gpu(bf16: bool) -> None:
    module, x = nn.Linear(48, 96).cuda(), torch.randn(301, 48, device="cuda", requires_grad=True)
    leaves = [x, module.weight, module.bias]
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        result, right = linear_relu(module, x), torch.relu(module(x))
    assert result.dtype == right.dtype
    tolerance = 2e-2 if bf16 else 2e-3
    torch.testing.assert_close(result, right, rtol=tolerance, atol=tolerance)
    outer = torch.ones_like(result)
    gradients = torch.autograd.grad(result, leaves, outer)
    for mine, theirs in zip(gradients, torch.autograd.grad(right, leaves, outer), strict=True):
        assert mine.dtype == theirs.dtype
        assert float((mine - theirs).norm() / theirs.norm()) < 0.02


# Relative errors. In bfloat16 some values round to the other side of zero, where gradients are cut.
PRECISIONS = [(False, 1e-6), (True, 5e-2)]


def _gradients(fn: Callable[[Tensor], Tensor], x: Tensor, module: nn.Module) -> list[Tensor]:
    result = fn(x)
    outer = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
    leaves = [x, *module.parameters()]
    return [result, *torch.autograd.grad(result, leaves, outer.to(result.dtype))]


def _check(mine: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    for a, b in zip(mine, right, strict=True):
        assert float(((a.double() - b).norm() / b.norm()).detach()) < tolerance


@pytest.mark.parametrize("shape", [(1, 24), (5, 7, 24), (2500, 24)])
@pytest.mark.parametrize(("bf16", "tolerance"), PRECISIONS)
def test_projections_and_feed_forward_layers_against_double_precision(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, tolerance: float, shape: tuple[int, ...]
) -> None:
    # Small chunks, so that the largest shape has several and an incomplete one at the end.
    monkeypatch.setattr("nmtgrid.layers.kernels.linear.CHUNK", 2**10)
    first, second = Projection(24, 40), Projection(40, 16)
    maps = nn.Sequential(first, second)
    exact = copy.deepcopy(maps).double()
    x = torch.randn(shape, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return second(first(x))  # type: ignore[no-any-return]

    def run_fused(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return feed_forward(first, second, x)

    wide = x.detach().double().requires_grad_()
    mine, fused = _gradients(run, x, maps), _gradients(run_fused, x, maps)
    _check(mine, _gradients(lambda y: exact[1](exact[0](y)), wide, exact), tolerance)
    _check(fused, _gradients(lambda y: exact[1](exact[0](y).relu()), wide, exact), tolerance)
    # The result is what autocast says, a gradient what its leaf is.
    for tensors in (mine, fused):
        assert tensors[0].dtype == (torch.bfloat16 if bf16 else torch.float32)
        assert all(tensor.dtype == torch.float32 for tensor in tensors[1:])


@pytest.mark.parametrize("bf16", [False, True])
def test_only_the_gradients_that_are_asked_for(bf16: bool) -> None:
    first, second = Projection(6, 8), Projection(8, 6)
    first.requires_grad_(False)
    x = torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        feed_forward(first, second, x).sum().backward()
    assert all(p.grad is None for p in first.parameters())
    assert all(p.grad is not None for p in second.parameters())
