"""Constraints strike out exactly what they should."""

from __future__ import annotations

import math

import torch

from nmtgrid.search.constraints import Banned, ForcedPrefix, MinLength
from nmtgrid.text.vocabulary import END

ROWS = torch.arange(3)


def allowed(values: torch.Tensor) -> list[list[int]]:
    return [(row > -math.inf).nonzero()[:, 0].tolist() for row in values]


def test_banned() -> None:
    assert allowed(Banned((1, 3)).apply(torch.zeros(2, 5), 0, ROWS[:2])) == [[0, 2, 4]] * 2


def test_min_length() -> None:
    rule = MinLength(2)
    everything = list(range(5))
    without_end = [token for token in everything if token != END]
    for step, expected in ((0, without_end), (1, without_end), (2, everything)):
        assert allowed(rule.apply(torch.zeros(1, 5), step, ROWS[:1])) == [expected]


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
