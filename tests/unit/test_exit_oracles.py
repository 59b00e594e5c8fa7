"""Oracles against their formulas, token by token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nmtgrid.adaptive.halting_objective import Kernel, sequence_oracle, smoothed, token_oracle

LENGTHS = torch.tensor([4, 2, 1])


def scores(kind: str) -> Tensor:
    """Return scores [3, 4, 5] with nonsense on padding."""
    draw = torch.Generator().manual_seed(4)
    values = -3 * torch.rand(3, 4, 5, generator=draw, dtype=torch.float64)
    if kind == "correctness":
        values = (values > -1.5).double()
    for sentence, length in enumerate(LENGTHS.tolist()):
        values[sentence, length:] = math.nan
    return values


def earliest(values: list[float]) -> int:
    """Return the place, from 1, of the first of the largest values."""
    return 1 + values.index(max(values))


def smooth_by_hand(values: Tensor, b: int, t: int, n: int, sigma: float, kernel: Kernel) -> float:
    """Return the smoothed score of one token and exit (0-based), as Eq. (5.24) reads."""
    places = range(int(LENGTHS[b]))
    if sigma == 0:
        shares = [float(other == t) for other in places]
    else:
        shares = [math.exp(-((t - other) ** 2) / sigma) for other in places]
    total = sum(s * float(values[b, o, n]) for s, o in zip(shares, places, strict=True))
    return total / sum(shares) if kernel == "normalised" else total


@pytest.mark.parametrize("kind", ["likelihood", "correctness"])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 4.0, 1e6])
@pytest.mark.parametrize("kernel", ["plain", "normalised"])
@pytest.mark.parametrize("depth_penalty", [0.0, 0.1, 0.6])
def test_token_oracle_is_the_formula(
    kind: str, sigma: float, kernel: Kernel, depth_penalty: float
) -> None:
    values = scores(kind)
    found = token_oracle(values, LENGTHS, depth_penalty, sigma, kernel)
    for b, length in enumerate(LENGTHS.tolist()):
        for t in range(length):
            by_hand = [
                smooth_by_hand(values, b, t, n, sigma, kernel) - depth_penalty * (n + 1)
                for n in range(5)
            ]
            assert int(found[b, t]) == earliest([round(value, 9) for value in by_hand])


@pytest.mark.parametrize("kind", ["likelihood", "correctness"])
@pytest.mark.parametrize("depth_penalty", [0.0, 0.3, 1.0])
def test_sequence_oracle_is_the_formula(kind: str, depth_penalty: float) -> None:
    values = scores(kind)
    found = sequence_oracle(values, LENGTHS, depth_penalty)
    for b, length in enumerate(LENGTHS.tolist()):
        by_hand = [float(values[b, :length, n].sum()) - depth_penalty * (n + 1) for n in range(5)]
        assert int(found[b]) == earliest([round(value, 9) for value in by_hand])


def test_a_wide_kernel_is_the_sequences_oracle() -> None:
    values = scores("likelihood")
    found = token_oracle(values, LENGTHS, 0.3, 1e12)
    wanted = sequence_oracle(values, LENGTHS, 0.3)
    for b, length in enumerate(LENGTHS.tolist()):
        assert found[b, :length].tolist() == [int(wanted[b])] * length


def test_a_narrow_kernel_and_none_are_the_current_token() -> None:
    values = scores("likelihood")
    wanted = values.nan_to_num(0.0)
    torch.testing.assert_close(smoothed(values, LENGTHS, 0.0), wanted)
    torch.testing.assert_close(smoothed(values, LENGTHS, 1e-3), wanted)
    torch.testing.assert_close(smoothed(values, LENGTHS, 1e-3, "normalised"), wanted)


def test_what_stands_on_padding_and_beside_it_does_not_matter() -> None:
    values = scores("likelihood")
    alone = smoothed(values[1:2, :2], LENGTHS[1:2], 2.0, "normalised")
    together = smoothed(values, LENGTHS, 2.0, "normalised")[1:2, :2]
    torch.testing.assert_close(alone, together)


def test_the_earliest_of_equals_is_taken() -> None:
    equal = torch.tensor([[[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]])
    lengths = torch.tensor([3])
    assert token_oracle(equal, lengths, 0.0).tolist() == [[2, 1, 1]]
    assert sequence_oracle(equal, lengths, 0.0).tolist() == [2]
    # 0.3 - 0.6 and 0.9 - 1.2 are equal, but not so in floating point.
    even = torch.tensor([[[0.1, 0.3]] * 3], dtype=torch.float64)
    assert sequence_oracle(even, lengths, 0.6).tolist() == [1]


def test_a_penalty_favours_early_exits() -> None:
    values, lengths = torch.tensor([[[-3.0, -2.0, -1.5]]]), torch.tensor([1])
    taken = [int(token_oracle(values, lengths, penalty)) for penalty in (0.0, 0.4, 0.6, 0.9, 1.1)]
    assert taken == [3, 3, 2, 2, 1]
