"""The fused residual sum against its reference: on a GPU, or in Triton's interpreter.

Without a GPU, `test_grid_conv.py` runs this file again in a process with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmtgrid.data.batches import collate
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from tests.unit.kernels.plain_kernels import plain_residual_dropout
from tests.unit.kernels.triton_interpreter import DEVICE, INTERPRETED, assembly

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.usefixtures("mended_interpreter")
runs = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="run by test_grid_conv.py in the interpreter"
)
# One element, odd sizes, exactly one program of 4 x 512, and more than one.
SHAPES = [(1,), (3, 5), (0, 4), (2, 1024), (37, 61)]
SCALE = math.sqrt(0.5)


def residual(h: Tensor, y: Tensor, rate: float, scale: float) -> Tensor:
    from nmtgrid.layers.kernels.dropout_triton import TritonResidual

    total: Tensor = TritonResidual.apply(h, y, rate, scale)  # type: ignore[no-untyped-call]
    return total


def mask_of(shape: tuple[int, ...], rate: float) -> Tensor:
    """Return the mask that the next sum will draw, 1 where an element is kept."""
    state = torch.get_rng_state()
    ones = torch.ones(shape, device=DEVICE)
    mask = (residual(torch.zeros_like(ones), ones, rate, 1.0) != 0).double().cpu()
    torch.set_rng_state(state)
    return mask


@runs
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, SCALE])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_reference(
    dtype: torch.dtype, rate: float, scale: float, shape: tuple[int, ...]
) -> None:
    drawn = [torch.randn(shape).to(dtype) for _ in range(3)]
    h, y = (tensor.to(DEVICE).requires_grad_() for tensor in drawn[:2])
    mask = mask_of(shape, rate)
    actual = residual(h, y, rate, scale)
    gradients = torch.autograd.grad(actual, (h, y), drawn[2].to(DEVICE))
    exact = [tensor.double().requires_grad_() for tensor in drawn[:2]]
    right = plain_residual_dropout(exact[0], exact[1], mask, 1.0 - rate, scale)
    expected = torch.autograd.grad(right, exact, drawn[2].double())
    tolerance = 8e-3 if dtype == torch.bfloat16 else 1e-6  # bf16: one rounding
    for mine, theirs in zip((actual, *gradients), (right, *expected), strict=True):
        assert mine.dtype == dtype
        actual = mine.detach().cpu().double()
        torch.testing.assert_close(actual, theirs.detach(), rtol=tolerance, atol=1e-6)


@runs
@pytest.mark.parametrize("branches", [2, 3])
@pytest.mark.parametrize("shape", [(0, 4), (37, 61)])
@pytest.mark.parametrize(("rate", "scale"), [(0.0, 1.0), (0.3, SCALE)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
def test_gradients_of_all_readers_are_added(
    dtype: torch.dtype, tolerance: float, rate: float, scale: float, shape: tuple[int, ...],
    branches: int,
) -> None:  # fmt: skip
    from nmtgrid.layers.kernels.dropout_triton import TritonResidual

    h, y = (torch.randn(shape).to(dtype).to(DEVICE).requires_grad_() for _ in range(2))
    # One has other strides, as gradients may have.
    outer = [torch.randn(shape).to(dtype) for _ in range(branches - 1)]
    outer.append(torch.randn(shape[::-1]).to(dtype).t())
    state = torch.get_rng_state()
    single = residual(h, y, rate, scale)
    torch.set_rng_state(state)
    mask = mask_of(shape, rate)
    results = TritonResidual.apply(  # type: ignore[no-untyped-call]
        h, y, rate, scale, branches
    )
    assert len(results) == branches
    assert all(torch.equal(result, single) for result in results)
    assert len({result.data_ptr() for result in results}) == 1
    gradients = torch.autograd.grad(results, (h, y), [part.to(DEVICE) for part in outer])
    total = torch.stack([part.double() for part in outer]).sum(0) * scale
    for mine, right in zip(gradients, (total, total * mask / (1.0 - rate)), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.cpu().double(), right, rtol=tolerance, atol=1e-6)


@runs
@pytest.mark.parametrize("accumulate", ["blocks", "layers"])
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_network_whose_sums_add_gradients(
    monkeypatch: pytest.MonkeyPatch, accumulate: str, is_watched: bool
) -> None:
    """Gradients are those of one tensor for all readers, and a hook sees the whole of them."""
    from nmtgrid.layers.kernels import dropout

    torch.manual_seed(4)
    options = {"depth": 2, "size": 6, "feed_forward_size": 8, "accumulate": accumulate}
    model = zoo.build("pervasive", None, options, source_vocab_size=9, target_vocab_size=8)
    batch = collate([[4, 5, 6], [7]], [[5, 4], [6, 7]])
    sites = PredictionSites.offline(batch)
    middle = model.get_submodule("network.states.2")
    gradients: list[tuple[Tensor | None, ...]] = []
    seen: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.register_hook(seen.append)

    for has_kernel in (False, True):
        monkeypatch.setattr(dropout, "_has_kernel", lambda h, answer=has_kernel: answer)
        hook = middle.register_forward_hook(watch)
        if not is_watched:
            hook.remove()
        loss = model.eval().features(batch, sites).square().sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
        hook.remove()
    for mine, right in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6)
    assert len(seen) == 2 * is_watched
    if is_watched:
        torch.testing.assert_close(seen[0], seen[1], rtol=1e-4, atol=1e-6)


@runs
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_and_independence(rate: float) -> None:
    count = 40_003
    mask = mask_of((count,), rate) - (1.0 - rate)
    # Five standard deviations of the mean of `count` coins.
    variance = rate * (1 - rate)
    assert abs(float(mask.mean())) < 5 * math.sqrt(variance / count)
    for distance in (1, 4, 512, 513, 2048):
        both = float((mask[distance:] * mask[:-distance]).mean())
        assert abs(both) < 5 * variance / math.sqrt(count - distance)


@runs
def test_same_seed_same_mask_and_another_each_time() -> None:
    first = mask_of((999,), 0.5)
    assert torch.equal(mask_of((999,), 0.5), first)
    residual(torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE), 0.5, 1.0)
    assert not torch.equal(mask_of((999,), 0.5), first)
    state = torch.get_rng_state()
    residual(torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE), 0.0, 0.5)
    assert torch.equal(torch.get_rng_state(), state)
    h, y = torch.randn(8, 6, device=DEVICE).t(), torch.randn(6, 8, device=DEVICE)
    torch.testing.assert_close(residual(h, y, 0.0, 0.5), (h + y) * 0.5)


@runs
def test_recomputed_activations_have_the_same_masks() -> None:
    h, y = (torch.randn(33, 7, device=DEVICE, requires_grad=True) for _ in range(2))

    def run(h: Tensor, y: Tensor) -> Tensor:
        return residual(h, y, 0.3, 0.7).square()

    torch.manual_seed(5)
    plain = torch.autograd.grad(run(h, y).sum(), (h, y))
    torch.manual_seed(5)
    again = checkpoint(run, h, y, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), (h, y)), plain)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize(
    ("kind", "sums"),
    [("bf16", "residual and dropout"), ("bf16", "residual"), ("fp32", "residual and dropout")],
)
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile(
    capability: int, kind: str, sums: str, way: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    text = assembly(f"{sums}, {way}", kind, capability)
    # Random numbers are made of products of 32 bits, and only where they are wanted.
    assert ("mul.hi.u32" in text) == (sums == "residual and dropout")
