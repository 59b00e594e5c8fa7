"""Weights of cells against the list of all paths."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from nmtgrid.online.paths import binary_weights, exact_weights, occupancy, wait_k
from tests.unit.all_paths import (
    SIZES,
    all_paths,
    lengths,
    paths_right_of,
    wait_k_by_hand,
)

KS = (1, 2, 3, 4, 9)


def _shares(first: list[int], source: int, target: int) -> list[list[Fraction]]:
    """Return the share of the paths nowhere left of `first` that use each cell."""
    paths = paths_right_of(first, source, target)
    return [
        [
            Fraction(sum(path[t] == j for path in paths), len(paths))
            for j in range(1, source + 1)
        ]
        for t in range(target)
    ]  # fmt: skip


def test_the_closed_form_is_enumeration() -> None:
    for source in range(1, 7):
        for target in range(1, 7):
            for k in range(1, source + 2):
                found = [
                    [occupancy(t, j, k, target, source) for j in range(1, source + 1)]
                    for t in range(1, target + 1)
                ]
                assert found == _shares(wait_k_by_hand(k, source, target), source, target)
                assert all(sum(row) == 1 for row in found)


@pytest.mark.parametrize("k", KS)
def test_a_ragged_batch_is_enumeration(k: int) -> None:
    sources, targets = lengths(SIZES)
    columns, size = 7, 8
    weights = exact_weights(wait_k(k, sources, size), sources, targets, columns)
    wanted = torch.zeros(len(SIZES), size, columns)
    for place, (source, target) in enumerate(SIZES):
        shares = _shares(wait_k_by_hand(k, source, target), source, target)
        wanted[place, :target, :source] = torch.tensor([[float(x) for x in row] for row in shares])
    torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-6)


def test_weights_right_of_any_path() -> None:
    for source, target in SIZES[:5]:
        for first in all_paths(source, target):
            shares = _shares(list(first), source, target)
            found = exact_weights(
                torch.tensor([first]), torch.tensor([source]), torch.tensor([target]), source
            )
            wanted = torch.tensor([[[float(x) for x in row] for row in shares]])
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_binary_weights() -> None:
    for k in KS:
        sources, targets = lengths(SIZES)
        weights = binary_weights(wait_k(k, sources, 8), sources, targets, 7)
        for place, (source, target) in enumerate(SIZES):
            first = wait_k_by_hand(k, source, target)
            for t in range(8):
                for j in range(1, 8):
                    used = t < target and first[t] <= j <= source
                    assert weights[place, t, j - 1] == used


@pytest.mark.parametrize("k", [1, 7, 400])
def test_long_sentences_are_stable(k: int) -> None:
    """Counts up to 1e299: compared with exact integers at cells all over the grid."""
    source, target = 500, 497
    sources, targets = torch.tensor([source, 30]), torch.tensor([target, 500])
    weights = exact_weights(wait_k(k, sources, 500), sources, targets, source)
    ones = torch.ones(target)
    torch.testing.assert_close(weights[0, :target].sum(-1), ones, rtol=0, atol=1e-5)
    assert (weights[0, target:] == 0).all() and (weights[1, :, 30:] == 0).all()
    for t in (1, 2, 100, 250, 496, 497):
        for j in (k, k + t, (k + t + source) // 2, 499, 500):
            wanted = float(occupancy(t, min(j, source), k, target, source))
            assert float(weights[0, t - 1, min(j, source) - 1]) == pytest.approx(
                wanted, rel=1e-5, abs=1e-30
            )
