"""Attention by products against the library's, forward and backward."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nmtgrid.layers.attention import product_attention

Parts = tuple[Tensor, Tensor, Tensor]


def drawn(dtype: torch.dtype) -> tuple[Parts, Tensor]:
    """Return queries, keys and values, heads after positions as in a model, and a mask."""
    torch.manual_seed(2)
    shapes = ((3, 5, 2, 4), (3, 5, 2, 4), (3, 5, 2, 6))
    query, keys, values = (
        torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes
    )
    mask = torch.zeros(3, 1, 1, 5, dtype=dtype)
    mask[0, ..., 3:] = mask[2, ..., 1:] = -math.inf
    return (query, keys, values), mask


def attend(parts: Sequence[Tensor], mask: Tensor | None, **changes: Any) -> Tensor:
    query, keys, values = parts
    settings = {"causal": False, "dropout": 0.0, "scale": 1.0, **changes}
    return product_attention(query, keys, values, mask, **settings)


def library(parts: Parts, mask: Tensor | None, scale: float) -> Tensor:
    return scaled_dot_product_attention(*parts, mask, scale=scale)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_the_librarys(masked: bool, causal: bool) -> None:
    parts, drawn_mask = drawn(torch.float64)
    mask = whole = drawn_mask if masked else None
    result = attend(parts, mask, causal=causal, scale=0.3)
    if causal:
        later = torch.full((5, 5), -math.inf, dtype=torch.float64).triu(1)
        whole = later if mask is None else mask + later
    expected = library(parts, whole, 0.3)
    torch.testing.assert_close(result, expected)
    seed = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(result, parts, seed), torch.autograd.grad(expected, parts, seed)
    )
    with torch.no_grad():  # takes another way
        torch.testing.assert_close(attend(parts, mask, causal=causal, scale=0.3), expected)


def test_dropped_weights_are_zero_and_the_others_grow() -> None:
    """With the unit matrix as values what is read are the weights themselves."""
    (query, keys, _), _ = drawn(torch.float64)
    parts = query, keys, torch.eye(5, dtype=torch.float64).expand(3, 2, 5, 5)
    whole = attend(parts, None)
    torch.manual_seed(5)
    dropped = attend(parts, None, dropout=0.25)
    kept = dropped != 0
    assert 0.6 < kept.double().mean() < 0.9
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)


def test_the_gradient_under_dropout_is_the_slope() -> None:
    parts, mask = drawn(torch.float64)

    def read(*parts: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attend(parts, mask, dropout=0.5, scale=0.7)

    assert torch.autograd.gradcheck(read, parts)


def test_bf16_weights_are_softmaxed_in_fp32() -> None:
    parts, mask = drawn(torch.float32)
    narrow = [part.detach().bfloat16().requires_grad_() for part in parts]
    result = attend(narrow, mask.bfloat16(), scale=0.5)
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result.float(), library(parts, mask, 0.5), atol=0.03, rtol=0.03)
    (gradient,) = torch.autograd.grad(result.sum(), narrow[0])
    assert gradient.dtype is torch.bfloat16
