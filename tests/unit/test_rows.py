"""Rows of nested states: taken, dropped and repeated together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.masks import is_padding, is_token
from nmtgrid.base.registry import Registry
from nmtgrid.base.rows import count_rows, repeat, take
from nmtgrid.layers.grid.convolution import RowCache


@dataclasses.dataclass(frozen=True)
class State:
    a: Tensor
    rest: tuple[Tensor, None, int]
    table: dict[str, list[Tensor]]


def example() -> State:
    column = torch.arange(3)
    return State(column, (column[:, None] * 10, None, 4), {"x": [column * 2.0]})


def test_take_reorders_drops_and_duplicates_everything() -> None:
    taken = take(example(), torch.tensor([2, 0, 2, 1]))
    assert taken.a.tolist() == [2, 0, 2, 1]
    assert taken.rest[0].tolist() == [[20], [0], [20], [10]]
    assert taken.rest[1:] == (None, 4)
    assert taken.table["x"][0].tolist() == [4, 0, 4, 2]


def test_repeat_puts_copies_side_by_side() -> None:
    assert repeat(example(), 2).a.tolist() == [0, 0, 1, 1, 2, 2]
    assert count_rows(repeat(example(), 3)) == 9


def test_row_cache_keeps_the_last_rows_through_growth_and_reordering() -> None:
    """Against a plain list of rows, over more pushes than the buffer holds."""
    span, width, size = 3, 2, 4
    cache = RowCache.empty(torch.zeros(2, width, size), span, spare=2)
    history = [torch.zeros(2, width, size) for _ in range(span - 1)]
    generator = torch.Generator().manual_seed(1)
    for number in range(11):
        row = torch.randn(2, width, size, generator=generator)
        history.append(row)
        torch.testing.assert_close(cache.push(row), torch.stack(history[-span:], 1))
        if number % 3 == 2:
            order = torch.tensor([1, 0])
            cache = cache.take_rows(order)
            history = [old[order] for old in history]


def test_masks() -> None:
    assert is_token(torch.tensor([2, 0, 3]), 3).tolist() == [
        [True, True, False], [False, False, False], [True, True, True],
    ]  # fmt: skip
    assert is_padding(torch.tensor([1]), 2).tolist() == [[False, True]]


def test_registry_names_the_nearest() -> None:
    registry: Registry[int] = Registry("colour")
    registry.add("green", 1)
    assert registry.get("green") == 1 and "green" in registry and list(registry) == ["green"]
    with pytest.raises(ConfigError, match=r"no colour `gren`.*Did you mean `green`"):
        registry.get("gren")
    with pytest.raises(ValueError, match="twice"):
        registry.add("green", 2)
