"""Constraints strike out exactly what they should."""

from __future__ import annotations

import math

import torch

from nmtgrid.search.api import SearchPlan
from nmtgrid.search.constraints import Banned, ForcedPrefix, MinLength, length_bounds
from nmtgrid.text.vocabulary import END

ROWS = torch.arange(3)


def allowed(values: torch.Tensor) -> list[list[int]]:
    return [(row > -math.inf).nonzero()[:, 0].tolist() for row in values]


def test_banned() -> None:
    assert allowed(Banned((1, 3)).apply(torch.zeros(2, 5), 0, ROWS[:2])) == [[0, 2, 4]] * 2


def test_min_length() -> None:
    rule = MinLength(torch.tensor([2, 0, 1]))
    everything = list(range(5))
    without_end = [token for token in everything if token != END]
    for step, short in ((0, [True, False, True]), (1, [True, False, False]), (2, [False] * 3)):
        wanted = [without_end if is_short else everything for is_short in short]
        assert allowed(rule.apply(torch.zeros(3, 5), step, ROWS)) == wanted
        by_row = rule.apply(torch.zeros(3, 5), step, torch.tensor([2, 2, 0]))
        assert allowed(by_row) == [wanted[2], wanted[2], wanted[0]]


def test_bounds_of_length() -> None:
    """Sources of 0, 1 and 8 tokens and their ends, floor(1.5 + |x| / 2) tokens at most."""
    lengths = torch.tensor([1, 2, 9])
    plan = SearchPlan(max_length_a=1.5, max_length_b=0.5)
    at_least = SearchPlan(max_length_a=1.5, max_length_b=0.5, min_length=4)

    def found(plan: SearchPlan, end_is_hidden: bool = False) -> list[list[int]]:
        bounds = length_bounds(plan, lengths, end_is_hidden=end_is_hidden)
        return [side.tolist() for side in bounds]

    assert found(plan) == [[0, 0, 0], [1, 2, 5]]
    assert found(at_least) == [[4, 4, 4], [4, 4, 5]]
    assert found(plan, True) == found(at_least, True) == [[0, 1, 5]] * 2


def test_forced_prefix_follows_the_sentence_not_the_row() -> None:
    rule = ForcedPrefix([[3, 4], [], [4]], torch.device("cpu"))
    sentence = torch.tensor([2, 0, 0, 1])
    everything = list(range(5))
    values = torch.arange(20.0).view(4, 5)
    first = rule.apply(values.clone(), 0, sentence)
    assert allowed(first) == [[4], [3], [3], everything]
    assert first[1, 3] == values[1, 3]
    assert allowed(rule.apply(values.clone(), 1, sentence)) == [
        everything, [4], [4], everything
    ]  # fmt: skip
    assert allowed(rule.apply(values.clone(), 2, sentence)) == [everything] * 4
