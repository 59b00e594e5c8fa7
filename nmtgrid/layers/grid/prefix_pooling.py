"""Aggregates of every part of the source that can have been read, for models that go online.

Where an aggregator (layers/grid/aggregation.py) makes one vector of a row of cells, its running
form makes one for each cell: the aggregate of that cell and all to its left, Eq. (4.21)-(4.23), so
that a prediction anywhere costs one look-up. Running forms go down the rows too, for the areas of
fig. 4.4c. What is kept of an area is a tuple of tensors ("parts"); two areas merge into one,
however they were cut. Nothing is larger than the grid for each feature: attention holds S x S
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.grid.aggregation import (
    LOWEST,
    Aggregator,
    AveragePooling,
    GatedMaxPooling,
    MaxAndAttention,
    MaxPooling,
    SourceAttention,
)

Parts = tuple[Tensor, ...]


class PrefixPooling(Protocol):
    """The running form of an aggregator."""

    def scan(self, cells: Tensor) -> Parts:
        """Return the parts [..., S, .] of the areas cells[..., :j + 1, :] for cells [..., S, D]."""
        ...

    def down(self, parts: Parts) -> Parts:
        """Return the parts [..., T, S, .] of all rows so far, given those of each row."""
        ...

    def merge(self, first: Parts, second: Parts) -> Parts:
        """Return the parts of two areas taken together."""
        ...

    def read(self, parts: Parts, counts: Tensor) -> Tensor:
        """Return the aggregate [..., D'] of areas of counts [...] cells."""
        ...


class PrefixMax:
    """Max over the cells so far, Eq. (4.21), of what `lift` makes of each, Eq. (4.22)."""

    def __init__(self, lift: Callable[[Tensor], Tensor]) -> None:
        self.lift = lift

    def scan(self, cells: Tensor) -> Parts:
        """Return the maxima along the source."""
        return (prefix_max(self.lift(cells), -2),)

    def down(self, parts: Parts) -> Parts:
        """Return the maxima along the target."""
        return (prefix_max(parts[0], -3),)

    def merge(self, first: Parts, second: Parts) -> Parts:
        """Return the larger of each."""
        return (torch.maximum(first[0], second[0]),)

    def read(self, parts: Parts, counts: Tensor) -> Tensor:
        """Return the maxima."""
        return parts[0]


class PrefixSum:
    """The sum over the cells so far, in fp32 at least, divided by the root of their number."""

    def scan(self, cells: Tensor) -> Parts:
        """Return the sums along the source."""
        return (cells.to(torch.promote_types(cells.dtype, torch.float32)).cumsum(-2),)

    def down(self, parts: Parts) -> Parts:
        """Return the sums along the target."""
        return (parts[0].cumsum(-3),)

    def merge(self, first: Parts, second: Parts) -> Parts:
        """Return the sum of both."""
        return (first[0] + second[0],)

    def read(self, parts: Parts, counts: Tensor) -> Tensor:
        """Return the scaled sums, Eq. (3.17)."""
        return parts[0] * counts.to(parts[0].dtype).rsqrt()[..., None]


class PrefixAttention:
    """A softmax over the cells so far weights them, Eq. (4.23).

    The parts are what was read and the logarithm of the sum of exponentials, which is the score of
    that as a whole: rows are weighted by it as cells are by theirs.
    """

    def __init__(self, scores: Callable[[Tensor], Tensor]) -> None:
        self.scores = scores

    def scan(self, cells: Tensor) -> Parts:
        """Return what is read along the source."""
        return _read_so_far(cells, self.scores(cells))

    def down(self, parts: Parts) -> Parts:
        """Return what is read along the target."""
        read, total = _read_so_far(parts[0].transpose(-2, -3), parts[1].transpose(-1, -2))
        return read.transpose(-2, -3), total.transpose(-1, -2)

    def merge(self, first: Parts, second: Parts) -> Parts:
        """Return what is read from both."""
        total = torch.logaddexp(first[1], second[1])
        shares = [(part[1] - total).exp().to(part[0].dtype)[..., None] for part in (first, second)]
        return first[0] * shares[0] + second[0] * shares[1], total

    def read(self, parts: Parts, counts: Tensor) -> Tensor:
        """Return what was read."""
        return parts[0]


class PrefixMaxAndAttention:
    """The running max beside the running attention."""

    def __init__(self, pool: PrefixMax, attention: PrefixAttention) -> None:
        self.pool, self.attention = pool, attention

    def scan(self, cells: Tensor) -> Parts:
        """Return both along the source."""
        return self.pool.scan(cells) + self.attention.scan(cells)

    def down(self, parts: Parts) -> Parts:
        """Return both along the target."""
        return self.pool.down(parts[:1]) + self.attention.down(parts[1:])

    def merge(self, first: Parts, second: Parts) -> Parts:
        """Return both for both areas."""
        pooled = self.pool.merge(first[:1], second[:1])
        return pooled + self.attention.merge(first[1:], second[1:])

    def read(self, parts: Parts, counts: Tensor) -> Tensor:
        """Return [..., 2 D]."""
        return torch.cat([parts[0], parts[1].to(parts[0].dtype)], -1)


def prefix_pooling(aggregator: Aggregator) -> PrefixPooling:
    """Return the running form of `aggregator`.

    Raises TypeError for one that has none: the CoNLL paper's attention, and single cells.
    """
    if isinstance(aggregator, MaxPooling):
        return PrefixMax(lambda cells: cells)
    if isinstance(aggregator, GatedMaxPooling):
        return PrefixMax(aggregator.gated)
    if isinstance(aggregator, AveragePooling):
        return PrefixSum()
    if isinstance(aggregator, SourceAttention):
        return PrefixAttention(aggregator.scores)
    if isinstance(aggregator, MaxAndAttention) and isinstance(
        aggregator.attention, SourceAttention
    ):
        return PrefixMaxAndAttention(
            PrefixMax(lambda cells: cells), PrefixAttention(aggregator.attention.scores)
        )
    raise TypeError(f"{type(aggregator).__name__} has no running form")


def prefix_max(values: Tensor, dim: int) -> Tensor:
    """Return the maximum of each value and those before it along `dim`; the first of equals wins.

    A loop over `dim` is ten times faster than `cummax`, which keeps indices.
    """
    found: Tensor = _RunningMax.apply(values, dim)  # type: ignore[no-untyped-call]
    return found


class _RunningMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dim: int) -> Tensor:
        highest = torch.empty_like(values)
        given, kept = values.unbind(dim), highest.unbind(dim)
        kept[0].copy_(given[0])
        for place in range(1, len(given)):
            torch.maximum(kept[place - 1], given[place], out=kept[place])
        ctx.save_for_backward(values, highest)
        ctx.dim = dim
        return highest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        values, highest = ctx.saved_tensors
        result = torch.empty_like(values)
        given, kept, above, below = (
            tensor.unbind(ctx.dim) for tensor in (values, highest, gradient, result)
        )
        carried = torch.zeros_like(above[0])
        for place in range(len(given) - 1, 0, -1):
            carried = carried + above[place]
            is_new = given[place] > kept[place - 1]
            torch.mul(carried, is_new, out=below[place])
            carried = carried.masked_fill_(is_new, 0.0)
        torch.add(carried, above[0], out=below[0])
        return result, None


def _read_so_far(values: Tensor, scores: Tensor) -> Parts:
    """Return softmax-weighted sums [..., L, D] of values [..., L, D] up to each place.

    scores [..., L]; the second part [..., L] is the log-sum of their exponentials.
    """
    length = scores.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    spread = scores[..., None, :].masked_fill(later, LOWEST)
    total = spread.logsumexp(-1)
    weights = (spread - total[..., None]).exp()
    return torch.matmul(weights.to(values.dtype), values), total
