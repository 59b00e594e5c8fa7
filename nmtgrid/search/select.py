"""Selection of the next tokens: greedy, beam search, or sampling.

Rows come in groups of equal width: a group is a sentence with its beam, or one single row. Called
by the loop of engine.py.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import torch
from torch import Tensor

from nmtgrid.search.api import SearchPlan
from nmtgrid.text.vocabulary import END

_CHUNK = 128
"""Number of types in a chunk, among which the largest is found at once."""
_SMALL = 1 << 17
"""Number of values up to which torch finds the largest as fast without chunks."""
_FEW = 128
"""Number of values up to which sorting finds the largest with fewer kernels and is not slower."""


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The continuations that a selection picked, for R rows that give R' rows in G groups.

    tokens [R'], their parent rows [R'] and the log-probabilities [R'] of the whole rows, -inf for
    dead rows. For hypotheses that ended: end_parents [G, E] (rows) and end_log_probabilities
    [G, E], including the end symbol, -inf where there is none.
    """

    tokens: Tensor
    parents: Tensor
    log_probabilities: Tensor
    end_parents: Tensor
    end_log_probabilities: Tensor


class Select(Protocol):
    """Picks the continuations of each row."""

    width: int
    """Rows in a group after the first step; with one, rows never move."""

    def choose(
        self, log_probabilities: Tensor, totals: Tensor, keys: Tensor, step: int | Tensor
    ) -> Candidates:
        """Pick from next-token log-probabilities [R, V] for rows with log-probabilities totals [R].

        `keys` [G] (int64) identify the groups; `step` (possibly a tensor [1]) is the number of
        tokens written before.
        """


def is_on_cpu(tensor: Tensor) -> bool:
    """Return whether reading `tensor` is free; on other devices it would synchronise."""
    return tensor.device.type == "cpu"


def stable_topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row of `values` [R, N] (float32) and their indices.

    Among equals the lowest index wins, on every device and regardless of the other rows.
    """
    if values.shape[1] <= _FEW:
        tops, indices = values.sort(dim=1, descending=True, stable=True)
        return tops[:, :count], indices[:, :count]
    if not is_on_cpu(values) or count >= values.shape[1]:
        return _topk_by_keys(values, count)
    tops, indices = values.topk(count + 1, dim=1)
    last = tops[:, count - 1]
    # topk may take any of several equals, which matters only at the border: redo those rows.
    tied = ((last == tops[:, count]) & (last > -math.inf)).nonzero()[:, 0]
    indices, order = indices[:, :count].sort(dim=1)
    tops, ranks = tops[:, :count].gather(1, order).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, ranks)
    if len(tied):
        tops[tied], indices[tied] = _topk_by_keys(values[tied], count)
    return tops, indices


def _topk_by_keys(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the same as `stable_topk`, using int64 keys that are unique for each index."""
    bits = values.contiguous().view(torch.int32)
    # As integers, the bits of negative floats are in reverse order, so they are flipped.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    indices = torch.arange(values.shape[1], device=values.device)
    keys = ordered.long().bitwise_left_shift_(32).sub_(indices)
    top = keys.topk(count, dim=1).indices
    return values.gather(1, top), top


def stable_max(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest of each row of `values` [R, N] and its index, the lowest among equals."""
    count = values.shape[1]
    if not is_on_cpu(values) or count < 4 * _CHUNK or values.numel() < _SMALL:
        return values.max(1)
    # On a CPU finding the largest value is many times faster without its index, so the chunk is
    # found first. `benchmarks/decoding_speed.py` times greedy search, which selects tokens here.
    value, chunk = _chunk_tops(values).max(1)
    indices = chunk[:, None] * _CHUNK + torch.arange(_CHUNK)
    is_top = values.gather(1, indices.clamp_(max=count - 1)) == value[:, None]
    return value, indices.gather(1, is_top.to(torch.int8).argmax(1, keepdim=True))[:, 0]


def _chunk_tops(values: Tensor) -> Tensor:
    """Return the largest of each chunk of each row of `values` [R, N]; the last may be shorter."""
    count = values.shape[1]
    whole = count - count % _CHUNK
    tops: Tensor = values[:, :whole].unflatten(1, (-1, _CHUNK)).amax(2)
    if whole < count:
        tops = torch.cat([tops, values[:, whole:].amax(1, keepdim=True)], 1)
    return tops


def _continue_rows(token: Tensor, total: Tensor) -> Candidates:
    """Return the continuation of each row by one token; each row is a separate group."""
    is_end, rows = token == END, torch.arange(len(token), device=token.device)
    return Candidates(
        token,
        rows,
        total.masked_fill(is_end, -math.inf),
        rows[:, None],
        total.masked_fill(~is_end, -math.inf)[:, None],
    )


class Greedy:
    """Takes the most probable token of each row."""

    width = 1

    def choose(
        self, log_probabilities: Tensor, totals: Tensor, keys: Tensor, step: int | Tensor
    ) -> Candidates:
        value, token = stable_max(log_probabilities)
        return _continue_rows(token, totals + value)


@dataclasses.dataclass
class Sample:
    """Draws each row's token from the model's distribution, sharpened and cut as the plan says.

    The random numbers depend only on the seed, the row's key and the step, so that a draw does not
    depend on the other sentences of a batch. The log-probabilities remain those of the model.
    """

    plan: SearchPlan
    width = 1

    def choose(
        self, log_probabilities: Tensor, totals: Tensor, keys: Tensor, step: int | Tensor
    ) -> Candidates:
        plan = self.plan
        shares = (log_probabilities / plan.temperature).softmax(1)
        if plan.top_k and plan.top_k < shares.shape[1]:
            value, token = stable_topk(shares, plan.top_k)
            shares = torch.zeros_like(shares).scatter_(1, token, value)
        if plan.top_p < 1:
            value, token = shares.sort(dim=1, descending=True, stable=True)
            # The sum before a type must be below top_p, so the most probable one always remains.
            before = value.cumsum(1) - value
            value = value.masked_fill(before >= plan.top_p * value.sum(1, keepdim=True), 0.0)
            shares = torch.zeros_like(shares).scatter_(1, token, value)
        # In double precision: in float32 the last of many thousand types would get no share.
        cumulative = shares.double().cumsum(1)
        threshold = uniform(plan.seed, keys, step)[:, None] * cumulative[:, -1:]
        # The first type whose cumulative share is above the threshold; rounding may find none.
        token = (cumulative <= threshold).sum(1).clamp(max=shares.shape[1] - 1)
        value = log_probabilities.gather(1, token[:, None])[:, 0]
        return _continue_rows(token, totals + value)


@dataclasses.dataclass
class Beam:
    """Keeps the `width` best of all continuations of a sentence's rows.

    An ended hypothesis counts only if it is among the `width` best continuations; the live rows are
    the `width` best continuations that do not end.
    """

    width: int

    def choose(
        self, log_probabilities: Tensor, totals: Tensor, keys: Tensor, step: int | Tensor
    ) -> Candidates:
        # At most one continuation of each row ends, so 2 x width include enough that do not end.
        value, token, parent = _best_of_groups(log_probabilities, totals, len(keys), 2 * self.width)
        is_end = token == END
        # A stable sort of the flags puts those that do not end first and keeps their order.
        goes_on = is_end.to(torch.int8).sort(dim=1, stable=True).indices[:, : self.width]
        ended = value.masked_fill(~is_end, -math.inf)[:, : self.width]
        return Candidates(
            token.gather(1, goes_on).flatten(),
            parent.gather(1, goes_on).flatten(),
            value.gather(1, goes_on).flatten(),
            parent[:, : self.width],
            ended,
        )


def _best_of_groups(
    log_probabilities: Tensor, totals: Tensor, groups: int, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` best sums [G, count] of each group, their tokens and their rows.

    A sum is an entry of log_probabilities [R, V] plus its row's total [R].
    """
    rows, types = log_probabilities.shape
    first = torch.arange(0, rows, rows // groups, device=totals.device)[:, None]
    if is_on_cpu(totals) and types >= 4 * _CHUNK:
        # As in `stable_max`, chunks are found first: a chunk after `count` better ones has none
        # of the best sums.
        tops = (_chunk_tops(log_probabilities) + totals[:, None]).view(groups, -1)
        chunk = stable_topk(tops, min(count, tops.shape[1]))[1].sort(dim=1).values
        chunks = -(-types // _CHUNK)
        parent = first + chunk // chunks
        token = (chunk % chunks * _CHUNK)[..., None] + torch.arange(_CHUNK)
        index = (parent[..., None] * types + token).clamp_(max=rows * types - 1)
        value = log_probabilities.flatten().index_select(0, index.flatten()).view_as(index)
        value = (value + totals[parent][..., None]).masked_fill_(token >= types, -math.inf)
        # A wide beam may need more candidates than its first row has.
        value, token = _filled_up(value.flatten(1), token.flatten(1), count)
        value, index = stable_topk(value, count)
        chunk = (index // _CHUNK).clamp_(max=parent.shape[1] - 1)
        return value, token.gather(1, index), parent.gather(1, chunk)
    value, token = stable_topk(log_probabilities, min(count, types))
    per_row = value.shape[1]
    value = (value + totals[:, None]).view(groups, -1)
    # In the first step a group is one row, which may have too few types.
    value, token = _filled_up(value, token.reshape(groups, -1), count)
    value, index = stable_topk(value, count)
    parent = first + (index // per_row).clamp(max=rows // groups - 1)
    return value, token.gather(1, index), parent


def _filled_up(values: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values and tokens [G, N], padded with dead ones if N is below `count`."""
    missing = max(0, count - values.shape[1])
    pad = torch.nn.functional.pad
    return pad(values, (0, missing), value=-math.inf), pad(tokens, (0, missing))


_STRIDE = 0x9E3779B97F4A7C15


def uniform(seed: int, keys: Tensor, step: int | Tensor) -> Tensor:
    """Return numbers in [0, 1) (float64) that depend on seed, keys [R] and step (splitmix64)."""
    # Products of tensors are modulo 2^64 already.
    if isinstance(step, Tensor):
        strides: int | Tensor = step * _signed(_STRIDE)
    else:
        strides = _signed(step * _STRIDE)
    mixed = _mix(_mix(keys + _signed(seed * _STRIDE)) + strides)
    return ((mixed >> 11) & ((1 << 53) - 1)).double() / (1 << 53)


def _signed(value: int) -> int:
    """Return `value` modulo 2^64 as torch's int64 represents it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(value: Tensor) -> Tensor:
    # torch shifts int64 with the sign: the masks make the shifts those of unsigned numbers.
    value = value + _signed(_STRIDE)
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return value ^ ((value >> 31) & ((1 << 33) - 1))
