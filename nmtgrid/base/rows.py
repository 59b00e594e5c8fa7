"""Rows of batches and states: lengths and masks; reordering, dropping and repeating rows.

A state is a frozen dataclass (or tuple, list, dict) whose tensors all put rows first; rows are
sentences x beam. Numbers, strings and None pass through. A value with its own method
`take_rows(index)` reorders itself, so that a cache can copy only the part in use.
Search reorders beams with `take`; batches select the sentences of shared sources with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

State = TypeVar("State")

_VALUES: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Values known on the host: of lengths and indices as lists, of masks whether all are True."""


def cache_on_host(tensor: Tensor, values: list[int]) -> Tensor:
    """Return `tensor` [B] of lengths or indices after storing its `values` for `host_values`.

    The tensor must not be changed afterwards.
    """
    if tensor.device.type != "cpu":
        _VALUES[tensor] = values
    return tensor


def host_values(tensor: Tensor) -> list[int]:
    """Return the values of a tensor [B], without synchronisation if `cache_on_host` has them."""
    values: list[int] | None = _VALUES.get(tensor)
    return tensor.tolist() if values is None else values


def is_true_everywhere(mask: Tensor) -> bool:
    """Return whether all of `mask` is True, without synchronisation if `is_token` stored it."""
    value: bool | None = _VALUES.get(mask)
    return bool(mask.all()) if value is None else value


def is_token(lengths: Tensor, size: int) -> Tensor:
    """Return [B, size], True where a position is below the sentence's length [B]."""
    mask = torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]
    if lengths in _VALUES:
        _VALUES[mask] = min(_VALUES[lengths]) >= size
    return mask


def is_padding(lengths: Tensor, size: int) -> Tensor:
    """Return [B, size], True at and after the sentence's length [B]."""
    return ~is_token(lengths, size)


def ragged_positions(lengths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return (row, position), each [total], of all elements of rows with `lengths` [B], in order.

    `total` is the sum of the lengths; passing it avoids synchronising with the device.
    """
    numbers = torch.arange(len(lengths), device=lengths.device)
    row = numbers.repeat_interleave(lengths, output_size=total)
    starts = lengths.cumsum(0) - lengths
    return row, torch.arange(total, device=lengths.device) - starts[row]


def take(state: State, rows: Tensor) -> State:
    """Return `state` with the given `rows` [R'] (int64), in that order; repeats are allowed."""
    value: Any = state
    # First: caches that reorder themselves are dataclasses too.
    if hasattr(value, "take_rows"):
        value = value.take_rows(rows)
    elif isinstance(value, Tensor):
        value = value.index_select(0, rows)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: take(getattr(value, f.name), rows) for f in dataclasses.fields(value)}
        value = dataclasses.replace(value, **fields)
    elif isinstance(value, tuple):
        value = tuple(take(item, rows) for item in value)
    elif isinstance(value, list):
        value = [take(item, rows) for item in value]
    elif isinstance(value, dict):
        value = {name: take(item, rows) for name, item in value.items()}
    taken: State = value
    return taken


def repeat(state: State, times: int) -> State:
    """Return `state` with each row repeated `times` times, copies side by side."""
    if times == 1:
        return state
    first = next(_tensors(state))
    return take(state, torch.arange(len(first), device=first.device).repeat_interleave(times))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
