"""Weights of the exits' losses, by hand."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from nmtgrid.adaptive.objectives import Weighting, exit_weights, gradient_scales


@pytest.mark.parametrize(
    ("weighting", "shares"),
    [
        ("uniform", [1, 1, 1, 1]),
        ("linear", [1, 2, 3, 4]),
        ("root", [1, math.sqrt(2), math.sqrt(3), 2]),
        ("inverse-root", [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 1 / 2]),
        ("inverse", [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_weights_are_in_proportion_to_the_powers(weighting: Weighting, shares: list[float]) -> None:
    found = exit_weights(weighting, 4)
    assert found == pytest.approx([share / sum(shares) for share in shares])


@pytest.mark.parametrize("weighting", get_args(Weighting))
@pytest.mark.parametrize("count", [1, 2, 6])
def test_weights_sum_to_one(weighting: Weighting, count: int) -> None:
    assert sum(exit_weights(weighting, count)) == pytest.approx(1.0)


def test_the_last_block_keeps_its_gradient() -> None:
    assert gradient_scales(0.5, 4) == [1.5, 1.0, 0.5, 1.0]
    assert gradient_scales(0.5, 1) == [1.0]
