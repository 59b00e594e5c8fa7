"""The fused loss: equal to its reference, and small in memory."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nmtgrid.layers.kernels.linear_loss import (
    Teacher,
    linear_cross_entropy,
    linear_nll,
)
from nmtgrid.layers.soft_targets import SoftTargets, VectorDistribution
from tests.unit.kernels.plain_kernels import plain_linear_cross_entropy, plain_r_drop

Problem = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _problem(
    count: int = 37, types: int = 23, size: int = 6, dtype: torch.dtype = torch.float64
) -> Problem:
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    features, weight = draw(count, size), draw(types, size)
    targets = torch.randint(0, types, (count,), generator=generator)
    weights = torch.rand(count, generator=generator, dtype=torch.float64).to(dtype)
    leaves = [tensor.requires_grad_() for tensor in (features, weight, draw(types))]
    return leaves[0], leaves[1], leaves[2], targets, weights


def test_value_by_hand() -> None:
    # Logits (log 2, 0), so p = (2/3, 1/3); target 0, smoothing 0.2: 0.9 and 0.1 of the mass.
    features, weight = torch.tensor([[1.0]]), torch.tensor([[math.log(2.0)], [0.0]])
    target = torch.tensor([0])
    loss, likelihood = linear_cross_entropy(features, weight, None, target, None, 0.2)
    expected = -(0.9 * math.log(2 / 3) + 0.1 * math.log(1 / 3))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert likelihood.item() == pytest.approx(-math.log(2 / 3), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("chunk", [1, 8, 37, 100, None])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("with_weights", [True, False])
def test_equals_the_reference(
    smoothing: float, chunk: int | None, with_bias: bool, with_weights: bool
) -> None:
    features, weight, drawn_bias, targets, drawn_weights = _problem()
    bias = drawn_bias if with_bias else None
    weights = drawn_weights if with_weights else None
    leaves = [features, weight, *([bias] if bias is not None else [])]
    fused = linear_cross_entropy(features, weight, bias, targets, weights, smoothing, chunk)
    plain = plain_linear_cross_entropy(features, weight, bias, targets, weights, smoothing)
    torch.testing.assert_close(fused, plain)
    gradients = torch.autograd.grad(fused[0] * 0.3, leaves)
    expected = torch.autograd.grad(plain[0] * 0.3, leaves)
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1.5e-2)])
def test_narrow_features_beside_a_float32_map(dtype: torch.dtype, tolerance: float) -> None:
    wide = _problem(200, 300, 16)
    features = wide[0].detach().to(dtype).requires_grad_()
    weight, bias = (tensor.detach().float().requires_grad_() for tensor in wide[1:3])
    loss, likelihood = linear_cross_entropy(features, weight, bias, wide[3], None, 0.1, 64)
    assert loss.dtype == likelihood.dtype == torch.float32
    exact = plain_linear_cross_entropy(*wide[:4], None, 0.1)
    assert loss.item() == pytest.approx(exact[0].item(), rel=tolerance)
    gradients = torch.autograd.grad(loss, (features, weight, bias))
    for gradient, leaf, right in zip(
        gradients, (features, weight, bias), torch.autograd.grad(exact[0], wide[:3]), strict=True
    ):
        assert gradient.dtype == leaf.dtype
        assert float((gradient.double() - right).norm() / right.norm()) < tolerance


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32() -> None:
    features, weight, bias, targets, _ = (
        tensor.detach().float() if tensor.is_floating_point() else tensor for tensor in _problem()
    )
    features.requires_grad_()
    narrow = features.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        cast = linear_cross_entropy(features, weight, bias, targets, None, 0.1)[0]
    by_hand = linear_cross_entropy(narrow, weight, bias, targets, None, 0.1)[0]
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, by_hand)
    torch.testing.assert_close(
        torch.autograd.grad(cast, features)[0], torch.autograd.grad(by_hand, narrow)[0].float()
    )


def test_improbable_targets_keep_a_finite_loss() -> None:
    # exp(-200) is zero in float32; the likelihood must not go through it.
    features = torch.tensor([[200.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]])
    loss, likelihood = linear_cross_entropy(features, weight, None, torch.tensor([1]))
    assert likelihood.item() == pytest.approx(200.0)
    assert torch.autograd.grad(loss, features)[0].item() == pytest.approx(1.0)


def test_sites_of_weight_zero_count_nothing() -> None:
    features, weight, bias, targets, _ = _problem(4)
    weights = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    loss, likelihood = linear_cross_entropy(features, weight, bias, targets, weights, 0.1)
    kept = linear_cross_entropy(features[::2], weight, bias, targets[::2], None, 0.1)
    torch.testing.assert_close((loss, likelihood), kept)
    assert torch.autograd.grad(loss, features)[0][1::2].count_nonzero() == 0
    assert not likelihood.requires_grad
    # Without any site all is zero.
    loss, likelihood = linear_cross_entropy(features[:0], weight, bias, targets[:0], None, 0.1)
    assert loss.item() == likelihood.item() == 0.0
    assert torch.autograd.grad(loss, weight)[0].count_nonzero() == 0


class _Sizes(TorchDispatchMode):
    """Counts matrix products and the largest tensor that any operator returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self.products = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        self.products += func.overloadpacket.__name__ in ("mm", "addmm", "_linear_pointwise")
        return result


def test_logits_of_one_chunk_are_the_most_it_holds() -> None:
    features, weight, bias, targets, _ = _problem(160, 50, 4)
    with _Sizes() as sizes:
        linear_cross_entropy(features, weight, bias, targets, None, 0.1, 16)[0].backward()
    assert sizes.largest == max(16 * 50, 160 * 4)
    assert sizes.products == 3 * 10
    with _Sizes() as sizes:
        plain_linear_cross_entropy(features, weight, bias, targets, None, 0.1)[0].backward()
    assert sizes.largest == 160 * 50
    with _Sizes() as sizes:
        linear_nll(features, weight, bias, targets, 16)
    assert sizes.largest <= max(16 * 50, 160 * 4)
    assert sizes.products == 10


def test_values_alone_take_one_product_each_chunk() -> None:
    features, weight, bias, targets, _ = _problem(32)
    expected = linear_cross_entropy(features, weight, bias, targets, None, 0.1, 16)
    with torch.no_grad(), _Sizes() as sizes:
        value = linear_cross_entropy(features, weight, bias, targets, None, 0.1, 16)
    assert sizes.products == 2
    torch.testing.assert_close(value[0], expected[0].detach())


@pytest.mark.parametrize(("smoothing", "chunk"), [(1.0, 8), (-0.1, 8), (0.1, 0)])
def test_impossible_settings_are_refused(smoothing: float, chunk: int) -> None:
    features, weight, bias, targets, _ = _problem(4)
    with pytest.raises(ValueError, match=r"must be"):
        linear_cross_entropy(features, weight, bias, targets, None, smoothing, chunk)


@pytest.mark.parametrize("chunk", [1, 8, 37, None])
@pytest.mark.parametrize("with_bias", [True, False])
def test_each_likelihood_alone(chunk: int | None, with_bias: bool) -> None:
    features, weight, drawn_bias, targets, _ = _problem()
    bias = drawn_bias if with_bias else None
    nll = linear_nll(features, weight, bias, targets, chunk)
    logits = features @ weight.t() + (0.0 if bias is None else bias)
    torch.testing.assert_close(nll, -logits.log_softmax(1)[torch.arange(37), targets].detach())
    assert not nll.requires_grad
    total = linear_cross_entropy(features, weight, bias, targets, chunk=chunk)[1]
    torch.testing.assert_close(nll.sum(), total)


def test_each_likelihood_under_autocast() -> None:
    features, weight, bias, targets, _ = _problem(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        nll = linear_nll(features, weight, bias, targets)
    assert nll.dtype == torch.float32
    torch.testing.assert_close(nll, linear_nll(features, weight, bias, targets), atol=0.1, rtol=0)
    with pytest.raises(ValueError, match="chunk"):
        linear_nll(features, weight, bias, targets, 0)


@pytest.mark.parametrize("chunk", [5, None])
def test_predictions_are_the_likeliest_types(chunk: int | None) -> None:
    features, weight, bias, targets, _ = _problem()
    logits = features @ weight.t() + bias
    predictions = torch.empty_like(targets)
    nll = linear_nll(features, weight, bias, targets, chunk, predictions)
    torch.testing.assert_close(nll, linear_nll(features, weight, bias, targets))
    assert torch.equal(predictions, logits.argmax(1))
    even = torch.tensor([9, 9])
    linear_nll(torch.ones(2, 1), torch.ones(3, 1), None, torch.tensor([0, 1]), predictions=even)
    assert even.tolist() == [0, 0]


def _soft_targets(targets: Tensor, types: int) -> SoftTargets:
    """Return mixtures of the targets and their successors, smoothed, with an entropy term."""
    tokens = torch.stack([targets, (targets + 1) % types], 1)
    shares = torch.tensor([0.7, 0.3], dtype=torch.float64).expand(tokens.shape)
    generator = torch.Generator().manual_seed(2)
    vectors = torch.randn(types, 3, generator=generator, dtype=torch.float64)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    distribution = VectorDistribution(vectors, 0.5, torch.ones(types, dtype=torch.float64))
    return SoftTargets(tokens, shares, distribution, 0.4, entropy=0.2)


def test_r_drop_by_hand() -> None:
    # Logits (log 2, 0) and (0, 0): p = (2/3, 1/3), q = (1/2, 1/2); KL(p||q) = 2/3 log 4/3 +
    # 1/3 log 2/3, KL(q||p) = 1/2 log 3/4 + 1/2 log 3/2.
    features, weight = torch.tensor([[1.0], [0.0]]), torch.tensor([[math.log(2.0)], [0.0]])
    loss, likelihood = linear_cross_entropy(features, weight, None, torch.tensor([0]), r_drop=3.0)
    of_p = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    of_q = 1 / 2 * math.log(3 / 4) + 1 / 2 * math.log(3 / 2)
    expected = -(math.log(2 / 3) + math.log(1 / 2)) / 2
    assert likelihood.item() == pytest.approx(expected, rel=1e-6)
    assert loss.item() == pytest.approx(expected + 3 / 4 * (of_p + of_q), rel=1e-6)


@pytest.mark.parametrize("chunk", [1, 8, 37, 100, None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("is_plain", [True, False])
def test_r_drop_equals_the_reference(
    chunk: int | None, smoothing: float, alpha: float, is_plain: bool
) -> None:
    """With and without bias, weights of the sites and soft targets."""
    features, weight, drawn_bias, both_targets, both_weights = _problem(2 * 37)
    targets = both_targets[:37]
    bias = None if is_plain else drawn_bias
    weights = None if is_plain else both_weights[:37]
    soft_targets = None if is_plain else _soft_targets(targets, len(weight))
    leaves = [features, weight, *([bias] if bias is not None else [])]
    arguments = features, weight, bias, targets, weights, smoothing
    fused = linear_cross_entropy(*arguments, chunk, soft_targets, alpha)
    plain = plain_r_drop(*arguments, soft_targets, alpha)
    exact: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(fused, plain, **exact)
    gradients = torch.autograd.grad(fused[0] * 0.3, leaves)
    torch.testing.assert_close(gradients, torch.autograd.grad(plain[0] * 0.3, leaves), **exact)
    with torch.no_grad():
        value = linear_cross_entropy(*arguments, chunk, soft_targets, alpha)
    torch.testing.assert_close(value[0], plain[0].detach(), **exact)


def test_r_drop_has_the_gradient_of_its_value() -> None:
    features, weight, bias, targets, weights = _problem(6, 5, 3)

    def loss(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        arguments = features, weight, bias, targets[:3], weights[:3]
        return linear_cross_entropy(*arguments, 0.1, 2, r_drop=5.0)[0]

    assert torch.autograd.gradcheck(loss, (features, weight, bias))


def test_r_drop_of_two_equal_passes_is_one_pass() -> None:
    features, weight, bias, targets, weights = _problem()
    single = linear_cross_entropy(features, weight, bias, targets, weights, 0.1)
    twice = torch.cat([features, features])
    two = linear_cross_entropy(twice, weight, bias, targets, weights, 0.1, r_drop=7.0)
    torch.testing.assert_close(two, single)
    leaves = (features, weight, bias)
    torch.testing.assert_close(
        torch.autograd.grad(two[0], leaves), torch.autograd.grad(single[0], leaves)
    )


def test_r_drop_in_bfloat16_reduces_in_float32() -> None:
    wide = _problem(400, 300, 16)
    exact = plain_r_drop(*wide[:3], wide[3][:200], None, 0.1, None, 5.0)
    features, weight, bias = (tensor.detach().float().requires_grad_() for tensor in wide[:3])
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = linear_cross_entropy(features, weight, bias, wide[3][:200], None, 0.1, r_drop=5.0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact[0].item(), rel=2e-2)
    for gradient, right in zip(
        torch.autograd.grad(loss, (features, weight, bias)),
        torch.autograd.grad(exact[0], wide[:3]),
        strict=True,
    ):
        assert float((gradient.double() - right).norm() / right.norm()) < 2e-2


def test_r_drop_holds_the_logits_of_one_chunk() -> None:
    """Both passes count in a chunk: twice the sites take no more memory."""
    features, weight, bias, targets, _ = _problem(320, 50, 4)
    with _Sizes() as sizes:
        linear_cross_entropy(features, weight, bias, targets[:160], None, 0.1, 16, r_drop=5.0)[
            0
        ].backward()
    assert sizes.largest == max(16 * 50, 320 * 4)
    assert sizes.products == 3 * 20


def test_r_drop_needs_both_passes() -> None:
    features, weight, bias, targets, _ = _problem(4)
    with pytest.raises(ValueError, match="2 for each target, but are 4 for 4"):
        linear_cross_entropy(features, weight, bias, targets, r_drop=1.0)
    with pytest.raises(ValueError, match="1 for each target, but are 4 for 2"):
        linear_cross_entropy(features, weight, bias, targets[:2])


@pytest.mark.parametrize("r_drop", [None, 2.0])
@pytest.mark.parametrize("biased", [False, True])
def test_a_teacher_adds_its_divergence(r_drop: float | None, biased: bool) -> None:
    """Value and gradients of alpha KL(q || p) by autograd, q fixed, beside the rest of the loss."""
    torch.manual_seed(5)
    passes = 1 if r_drop is None else 2
    features = torch.randn(passes * 7, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(9, dtype=torch.float64, requires_grad=True) if biased else None
    known = torch.randn(passes * 7, 3, dtype=torch.float64)
    teacher = Teacher(known, torch.randn(9, 3, dtype=torch.float64), None, 0.7)
    targets, weights = torch.randint(9, (7,)), torch.rand(7, dtype=torch.float64)
    arguments = features, weight, bias, targets, weights, 0.1, 2
    leaves = [leaf for leaf in (features, weight, bias) if leaf is not None]
    without, _ = linear_cross_entropy(*arguments, r_drop=r_drop)
    log_p = (features @ weight.t() + (0 if bias is None else bias)).log_softmax(1)
    q = (known @ teacher.weight.t()).softmax(1)
    divergence = (q * (q.log() - log_p)).sum(1).view(passes, 7).mean(0) @ weights
    expected = without + 0.7 * divergence
    loss, _ = linear_cross_entropy(*arguments, r_drop=r_drop, teacher=teacher)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    for ours, theirs in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    assert known.grad is None and teacher.weight.grad is None
