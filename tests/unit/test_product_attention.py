"""Attention by products against the library's, forward and backward."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nmtgrid.layers.attention import product_attention

Parts = tuple[Tensor, Tensor, Tensor]


def drawn(dtype: torch.dtype) -> tuple[Parts, Tensor]:
    """Return queries, keys and values, heads behind positions as in a model, and a mask."""
    torch.manual_seed(2)
    shapes = ((3, 5, 2, 4), (3, 5, 2, 4), (3, 5, 2, 6))
    query, keys, values = (
        torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes
    )
    mask = torch.zeros(3, 1, 1, 5, dtype=dtype)
    mask[0, ..., 3:] = mask[2, ..., 1:] = -math.inf
    return (query, keys, values), mask


def library(parts: Parts, mask: Tensor | None, scale: float) -> Tensor:
    query, keys, values = parts
    return scaled_dot_product_attention(query, keys, values, mask, scale=scale)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_the_librarys(masked: bool, causal: bool) -> None:
    parts, mask = drawn(torch.float64)
    given = mask if masked else None
    found = product_attention(*parts, given, causal=causal, dropout=0.0, scale=0.3)
    if causal:
        later = torch.full((5, 5), -math.inf, dtype=torch.float64).triu(1)
        given = later if given is None else given + later
    wanted = library(parts, given, 0.3)
    torch.testing.assert_close(found, wanted)
    seed = torch.randn_like(wanted)
    for one, other in zip(
        torch.autograd.grad(found, parts, seed), torch.autograd.grad(wanted, parts, seed),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)
    with torch.no_grad():  # takes another way
        plain = product_attention(
            *parts, mask if masked else None, causal=causal, dropout=0.0, scale=0.3
        )
    torch.testing.assert_close(plain, wanted)


def test_dropped_weights_are_zero_and_the_others_grow() -> None:
    """With the unit matrix as values what is read are the weights themselves."""
    (query, keys, _), _ = drawn(torch.float64)
    values = torch.eye(5, dtype=torch.float64).expand(3, 2, 5, 5)
    whole = product_attention(query, keys, values, None, causal=False, dropout=0.0, scale=1.0)
    torch.manual_seed(5)
    found = product_attention(query, keys, values, None, causal=False, dropout=0.25, scale=1.0)
    kept = found != 0
    assert 0.6 < kept.double().mean() < 0.9
    torch.testing.assert_close(found[kept], whole[kept] / 0.75)


def test_the_gradient_under_dropout_is_the_slope() -> None:
    (query, keys, values), mask = drawn(torch.float64)

    def read(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        torch.manual_seed(7)
        return product_attention(query, keys, values, mask, causal=False, dropout=0.5, scale=0.7)

    assert torch.autograd.gradcheck(read, (query, keys, values))


def test_bf16_weights_are_softmaxed_in_fp32() -> None:
    parts, mask = drawn(torch.float32)
    query, keys, values = (part.detach().bfloat16().requires_grad_() for part in parts)
    found = product_attention(
        query, keys, values, mask.bfloat16(), causal=False, dropout=0.0, scale=0.5
    )
    wanted = library(parts, mask, 0.5)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=0.03, rtol=0.03)
    (gradient,) = torch.autograd.grad(found.sum(), query)
    assert gradient.dtype is torch.bfloat16
