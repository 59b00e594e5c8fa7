"""Reorders, drops and repeats the rows of any state, whatever the architecture.

A state is a frozen dataclass (or tuple, list, dict) whose tensors all put rows first; rows are
sentences x beam. Numbers, strings and None pass through. A value with a method
`take_rows(index)` of its own reorders itself, so that a cache can copy only what is alive in it.
Search reorders beams with `take`; batches select the sentences of shared sources with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


def take(state: State, rows: Tensor) -> State:
    """Return `state` with the given `rows` [R'] (int64), in that order; repeats are allowed."""
    taken: State = _take(state, rows)
    return taken


def repeat(state: State, times: int) -> State:
    """Return `state` with each row repeated `times` times, copies side by side."""
    if times == 1:
        return state
    first = _first_tensor(state)
    return take(state, torch.arange(len(first), device=first.device).repeat_interleave(times))


def count_rows(state: object) -> int:
    """Return the number of rows of `state`."""
    return len(_first_tensor(state))


def _take(value: Any, rows: Tensor) -> Any:
    # First: caches that reorder themselves are dataclasses too.
    if hasattr(value, "take_rows"):
        return value.take_rows(rows)
    if isinstance(value, Tensor):
        return value.index_select(0, rows)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _take(getattr(value, f.name), rows) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(_take(item, rows) for item in value)
    if isinstance(value, list):
        return [_take(item, rows) for item in value]
    if isinstance(value, dict):
        return {name: _take(item, rows) for name, item in value.items()}
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _first_tensor(state: object) -> Tensor:
    for tensor in _tensors(state):
        return tensor
    raise TypeError("a state without tensors has no rows")
