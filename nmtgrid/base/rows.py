"""One way to reorder, drop and repeat the rows of any state.

A state is a frozen dataclass (or tuple, list, dict) whose tensors all put rows first; rows are
sentences x beam. Numbers, strings and None pass through. A value with its own method
`take_rows(index)` is asked instead, so that a cache can copy only what is alive in it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


def take(state: State, rows: Tensor) -> State:
    """Return `state` with the given `rows` [R'] (int64), in that order; repeats are allowed."""
    taken: State = _map(state, rows)
    return taken


def repeat(state: State, times: int) -> State:
    """Return `state` with each row repeated `times` times, copies side by side."""
    if times == 1:
        return state
    count = count_rows(state)
    device = _first_tensor(state).device
    return take(state, torch.arange(count, device=device).repeat_interleave(times))


def count_rows(state: object) -> int:
    """Return the number of rows of `state`."""
    return _first_tensor(state).shape[0]


def _map(value: Any, rows: Tensor) -> Any:
    if hasattr(value, "take_rows"):
        return value.take_rows(rows)
    if isinstance(value, Tensor):
        return value.index_select(0, rows)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _map(getattr(value, f.name), rows) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(_map(item, rows) for item in value)
    if isinstance(value, list):
        return [_map(item, rows) for item in value]
    if isinstance(value, dict):
        return {name: _map(item, rows) for name, item in value.items()}
    return value


def _find_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif isinstance(value, (tuple, list)):
        items = list(value)
    elif isinstance(value, dict):
        items = list(value.values())
    else:
        items = []
    for item in items:
        found = _find_tensor(item)
        if found is not None:
            return found
    return None


def _first_tensor(value: Any) -> Tensor:
    found = _find_tensor(value)
    if found is None:
        raise TypeError("a state without tensors has no rows")
    return found
