"""The cache of keys and values: growing, taking rows, and sharing memory safely."""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.layers.transformer.kv_cache import KVCache

ROWS, HEADS, SIZE = 3, 2, 4


def drawn(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, HEADS, SIZE)


def filled(tokens: int, blocks: int = 2) -> tuple[KVCache, list[list[tuple[Tensor, Tensor]]]]:
    """Return a cache of so many tokens and what was pushed, by token and block."""
    torch.manual_seed(0)
    cache, pushed = KVCache(blocks, capacity=4), []
    for _ in range(tokens):
        pushed.append([(drawn(), drawn()) for _ in range(blocks)])
        for place, (keys, values) in enumerate(pushed[-1]):
            cache.push(place, keys, values)
        cache.advance()
    return cache, pushed


def stacked(pushed: list[list[tuple[Tensor, Tensor]]], place: int, kind: int) -> Tensor:
    return torch.stack([token[place][kind] for token in pushed], 2)


def test_all_tokens_come_back_however_many() -> None:
    cache, pushed = filled(10)
    for place in range(2):
        newest = (drawn(), drawn())
        found = cache.push(place, *newest)
        for kind in range(2):
            wanted = torch.cat([stacked(pushed, place, kind), newest[kind][:, :, None]], 2)
            assert torch.equal(found[kind], wanted)


def test_taken_rows_go_on_apart() -> None:
    """A reused buffer is one that nobody can read: all earlier caches keep their values."""
    cache, pushed = filled(3)
    orders = ([2, 0, 1], [1, 1, 0], [0, 2, 2], [2, 1, 0])
    held, chain, rows = [], cache, torch.arange(ROWS)
    for order in orders:
        index = torch.tensor(order)
        chain, rows = chain.take_rows(index), rows[index]
        held.append((chain, rows))
    held.append((cache, torch.arange(ROWS)))
    for taken, mine in held:
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


def test_an_empty_cache_has_no_rows_to_take() -> None:
    assert KVCache(2).take_rows(torch.tensor([0, 0, 1])).buffer is None
