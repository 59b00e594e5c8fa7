"""Rows of nested states and of caches, taken and repeated together; tables of names."""

import dataclasses

import pytest
import torch
from torch import Tensor

from nmtgrid.base.config import Registry
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_padding, is_token, repeat, take
from nmtgrid.layers.grid.convolution import RowCache
from nmtgrid.layers.transformer.kv_cache import KVCache


@dataclasses.dataclass(frozen=True)
class State:
    a: Tensor
    rest: tuple[Tensor, None, int]
    table: dict[str, list[Tensor]]


def example() -> State:
    column = torch.arange(3)
    return State(column, (column[:, None] * 10, None, 4), {"x": [column * 2.0]})


def test_take_and_repeat() -> None:
    taken = take(example(), torch.tensor([2, 0, 2, 1]))
    assert taken.a.tolist() == [2, 0, 2, 1]
    assert taken.rest[0].tolist() == [[20], [0], [20], [10]]
    assert taken.rest[1:] == (None, 4)
    assert taken.table["x"][0].tolist() == [4, 0, 4, 2]
    assert repeat(example(), 2).a.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(repeat(example(), 3).a) == 9
    assert is_token(torch.tensor([2, 0, 3]), 3).tolist() == [
        [True, True, False], [False, False, False], [True, True, True],
    ]  # fmt: skip
    assert is_padding(torch.tensor([1]), 2).tolist() == [[False, True]]


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


def test_names_in_a_registry() -> None:
    """Their order, and so references, cannot hang on which module was imported first."""
    things: Registry[int] = Registry("thing")
    for number, name in enumerate(("middle", "last", "first")):
        things.add(name, number)
    assert list(things) == ["first", "last", "middle"]
    assert [things.get(name) for name in things] == [2, 1, 0]
    with pytest.raises(ValueError, match="thing 'first' is registered twice"):
        things.add("first", 2)
    assert "first" in things and "frst" not in things and things.get("first") == 2
    with pytest.raises(ConfigError, match=r"There is no thing `frst`.*Did you mean `first`"):
        things.get("frst")


ROWS, HEADS, SIZE = 3, 2, 4


def drawn(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, HEADS, SIZE)


def filled(tokens: int, blocks: int = 2) -> tuple[KVCache, list[list[tuple[Tensor, Tensor]]]]:
    """Return a cache of so many tokens and what was pushed, by token and block."""
    torch.manual_seed(0)
    cache, pushed = KVCache(blocks, capacity=4), []
    for _ in range(tokens):
        pushed.append([(drawn(), drawn()) for _ in range(blocks)])
        for block, (keys, values) in enumerate(pushed[-1]):
            cache.push(block, keys, values)
        cache.advance()
    return cache, pushed


def stacked(pushed: list[list[tuple[Tensor, Tensor]]], block: int, kind: int) -> Tensor:
    return torch.stack([token[block][kind] for token in pushed], 2)


def test_all_tokens_come_back_however_many() -> None:
    cache, pushed = filled(10)
    for block in range(2):
        newest = (drawn(), drawn())
        pair = cache.push(block, *newest)
        for kind in range(2):
            expected = torch.cat([stacked(pushed, block, kind), newest[kind][:, :, None]], 2)
            assert torch.equal(pair[kind], expected)


def test_taken_rows_go_on_apart() -> None:
    """A reused buffer is one that nobody can read: all earlier caches keep their values."""
    cache, pushed = filled(3)
    orders = ([2, 0, 1], [1, 1, 0], [0, 2, 2], [2, 1, 0])
    caches, chain, rows = [], cache, torch.arange(ROWS)
    for order in orders:
        index = torch.tensor(order)
        chain, rows = chain.take_rows(index), rows[index]
        caches.append((chain, rows))
    caches.append((cache, torch.arange(ROWS)))
    for taken, mine in caches:
        keys, _ = taken.push(1, drawn(), drawn())
        assert torch.equal(keys[:, :, :3], stacked(pushed, 1, 0)[mine])


def test_a_chain_of_takes_uses_two_buffers() -> None:
    cache, pushed = filled(3)
    places = set()
    for _ in range(6):
        cache = cache.take_rows(torch.tensor([1, 2, 0]))
        assert cache.buffer is not None
        places.add(cache.buffer.data_ptr())
    assert len(places) == 2
    keys, _ = cache.push(0, drawn(), drawn())
    assert torch.equal(keys[:, :, :3], stacked(pushed, 0, 0))  # six turns of three rows
    assert KVCache(2).take_rows(torch.tensor([0, 0, 1])).buffer is None
