"""Gated convolutions, weight normalisation and windows, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmtgrid.base.rows import is_token
from nmtgrid.layers.convolution import GatedConvolution, NormalisedProjection, WindowCache
from nmtgrid.layers.kernels import linear as products
from nmtgrid.layers.kernels.gated_conv import Window, gated_convolution
from nmtgrid.layers.kernels.linear import linear, product
from tests.unit.kernels.plain_kernels import plain_gated_convolution


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_gates_by_hand() -> None:
    """One channel, two taps: a = x_{l-1} + 2 x_l, b = 3 x_{l-1} - x_l + 0.5."""
    x = torch.tensor([[[1.0], [2.0], [-1.0]]])
    weight, bias = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([0.0, 0.5])
    actual = gated_convolution(x, weight, bias, Window.causal(2))
    expected = [2 * sigmoid(-0.5), 5 * sigmoid(1.5), 0 * sigmoid(7.5)]
    assert actual.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    scaled = gated_convolution(x, weight, bias, Window.causal(2), residual_scale=0.5)
    assert scaled.flatten().tolist() == pytest.approx(
        [(value + gate) / 2 for value, gate in zip([1, 2, -1], expected, strict=True)], abs=1e-6
    )
    # Three taps of ones and an open gate: each position sums its real neighbours.
    x = torch.tensor([[[1.0], [2.0], [4.0]], [[1.0], [2.0], [99.0]]])
    weight, bias = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([0.0, 50.0])
    window = Window.centred(3, is_token(torch.tensor([3, 2]), 3))
    actual = gated_convolution(x, weight, bias, window)[..., 0]
    assert actual[0].tolist() == [3, 7, 6] and actual[1, :2].tolist() == [3, 3]


def test_cut_taps_are_enumerated() -> None:
    """Of a sentence of two in four places, position 1 must not read place 2 (k = 3).

    With k = 5, position 0 must not read place 2, nor position 1 places 2 and 3.
    """
    real = is_token(torch.tensor([2]), 4)
    assert Window.centred(3, real[:, :2]).cut is None
    cut = Window.centred(3, real).cut
    assert cut is not None and cut.tolist() == [1 * 3 + 2]
    cut = Window.centred(5, real).cut
    assert cut is not None and cut.tolist() == [0 * 5 + 4, 1 * 5 + 3, 1 * 5 + 4]


@pytest.mark.parametrize("kernel", [1, 3, 5, 9])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_fast_equals_plain(kernel: int, centred: bool, scale: float | None) -> None:
    lengths, size, channels = torch.tensor([4, 2, 3]), 4, 5
    real = is_token(lengths, size)[..., None]
    window = Window.centred(kernel, real[..., 0]) if centred else Window.causal(kernel)
    parts = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((3, size, channels), (2 * channels, kernel * channels), (2 * channels,))
    ]
    x, weight, bias = parts
    readout = torch.randn(3, size, channels, dtype=torch.float64) * real
    clean = x * real if centred else x
    actual = gated_convolution(x, weight, bias, window, residual_scale=scale)
    expected = plain_gated_convolution(clean, weight, bias, window, scale)
    assert torch.allclose(actual * real, expected * real, atol=1e-12)
    ours = torch.autograd.grad((actual * readout).sum(), parts)
    theirs = torch.autograd.grad((expected * readout).sum(), parts)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-5)


def test_dropout_zeroes_and_scales_what_the_convolution_reads() -> None:
    """With one tap of weight one and an open gate, the output is the dropped input."""
    torch.manual_seed(1)
    x = torch.ones(1, 4000, 1, requires_grad=True)
    weight, bias = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 50.0])
    actual = gated_convolution(x, weight, bias, Window.causal(1), rate=0.25, training=True)
    dropped = actual == 0
    assert 0.22 < dropped.float().mean() < 0.28
    assert torch.allclose(actual[~dropped], torch.tensor(4 / 3))
    actual.sum().backward()
    assert x.grad is not None and torch.equal(x.grad == 0, dropped)
    rested = gated_convolution(x, weight, bias, Window.causal(1), rate=0.25, training=False)
    assert torch.equal(rested, x)


def test_bf16_stays_near_fp32() -> None:
    layer, x = GatedConvolution(16, 3, normalise=True, dropout=0.0), torch.randn(2, 7, 16)
    expected, actual = (layer(each, Window.causal(3), 0.7) for each in (x, x.bfloat16()))
    assert actual.dtype is torch.bfloat16
    assert (actual.float() - expected).abs().max() < 0.05


def test_normalised_weight_by_hand() -> None:
    """Direction (3, 4) / 5 with a gain of 10 is (6, 8), whatever the length of the vector."""
    layer = NormalisedProjection(2, 1, normalise=True)
    assert layer.gain is not None
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
        layer.gain.fill_(10.0)
        layer.bias.fill_(1.0)
    assert layer(torch.tensor([[1.0, 1.0]])).item() == pytest.approx(15.0)
    weight, bias = layer.scaled(0.5, torch.float32)
    assert weight.tolist() == [[pytest.approx(3.0), pytest.approx(4.0)]] and bias.item() == 0.5
    layer(torch.tensor([[1.0, 1.0]])).sum().backward()
    assert layer.gain.grad is not None and layer.weight.grad is not None
    assert layer.gain.grad.item() == pytest.approx(7 / 5)
    # A step along the vector itself changes nothing.
    assert (layer.weight.grad * layer.weight).sum().item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("normalise", [True, False])
def test_maps_start_as_they_were_drawn(normalise: bool) -> None:
    """Deviation sqrt(1/n) of maps and sqrt(4 p / n) of gated convolutions, p kept by dropout."""
    torch.manual_seed(1)
    plain = NormalisedProjection(400, 500, normalise=normalise)
    gated = GatedConvolution(200, 3, normalise=normalise, dropout=0.25)
    for layer, std in ((plain, math.sqrt(1 / 400)), (gated, math.sqrt(4 * 0.75 / 600))):
        assert torch.allclose(layer.effective_weight(), layer.weight, atol=1e-6)
        assert layer.weight.std().item() == pytest.approx(std, rel=0.02)
        assert (layer.bias == 0).all()


def test_gated_layers_keep_the_variance_of_small_inputs() -> None:
    """Gehring et al. (2017), section 3.5: a gate near one half passes a quarter of the variance."""
    torch.manual_seed(1)
    x = torch.randn(8, 30, 256) * 0.1
    window = Window.centred(3, torch.ones(8, 30, dtype=torch.bool))
    for _ in range(8):
        layer = GatedConvolution(256, 3, normalise=True, dropout=0.0)
        x = layer(x, window, math.sqrt(0.5))
    assert x.std().item() == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("kernel", [1, 3])
def test_windows_step_by_step_equal_all_at_once(kernel: int) -> None:
    torch.manual_seed(1)
    layers, steps, size = 2, 25, 4
    weight, bias = torch.randn(2 * size, kernel * size), torch.randn(2 * size)
    x = torch.randn(layers, 3, steps, size)
    expected = gated_convolution(x.flatten(0, 1), weight, bias, Window.causal(kernel))
    expected = expected.view(layers, 3, steps, size)
    rows = torch.arange(3)
    cache = WindowCache.empty(x[0, :, 0], layers, kernel, spare=5)
    for step in range(steps):
        if step in (4, 11):
            moved = torch.tensor([2, 0, 0])
            rows, cache = rows[moved], cache.take_rows(moved)
        cache.advance()
        for layer in range(layers):
            window = cache.push(layer, x[layer, rows, step])
            assert window.stride(1) == 1
            actual = F.glu(F.linear(window, weight, bias), -1)
            assert torch.allclose(actual, expected[layer, rows, step], atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 4, 6), (5, 6), (0, 6)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("is_faster", [True, False])
def test_products_through_onednn_equal_the_library(
    shape: tuple[int, ...], has_bias: bool, is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_faster and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no such product")
    monkeypatch.setitem(products._IS_FASTER, torch.float32, is_faster)
    x, weight = torch.randn(*shape, requires_grad=True), torch.randn(7, 6, requires_grad=True)
    bias = torch.randn(7, requires_grad=True) if has_bias else None
    parts: list[Tensor] = [x, weight] if bias is None else [x, weight, bias]
    readout = torch.randn(*shape[:-1], 7)
    actual, expected = linear(x, weight, bias), F.linear(x, weight, bias)
    assert torch.allclose(actual, expected, atol=1e-6)
    ours = torch.autograd.grad((actual * readout).sum(), parts)
    theirs = torch.autograd.grad((expected * readout).sum(), parts)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert torch.allclose(product(x, weight), F.linear(x, weight), atol=1e-6)
        assert product(x.double(), weight.double()).dtype is torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(x, weight).dtype is torch.bfloat16


@pytest.mark.parametrize("intel", [True, False])
@pytest.mark.parametrize("has_avx512", [True, False])
def test_onednn_multiplies_where_mkl_is_slow(
    intel: bool, has_avx512: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "is_intel", lambda: intel)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: has_avx512)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert products._is_slowed_by_mkl() is (has_avx512 and not intel)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not products._is_slowed_by_mkl()
