"""Aggregates over every prefix of the source, for simultaneous models (section 4.2.3).

An aggregator (layers/grid/aggregation.py) computes one vector for a row of cells; its prefix form
computes one for each cell: the aggregate of that cell and all to its left, Eq. (4.21)-(4.23), so
that a prediction at any cell costs one look-up. Prefix forms also scan down the rows, for the areas
of fig. 4.4c. The aggregate of an area is kept as a partial result, a tuple of tensors that can be
combined with that of any other area. Besides tensors of the size of the grid there are only the
S x S weights of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.base.errors import ConfigError
from nmtgrid.layers.grid.aggregation import (
    LOWEST,
    Aggregator,
    AttentionPooling,
    AveragePooling,
    GatedMaxPooling,
    MaxAndAttention,
    MaxPooling,
    widened,
)
from nmtgrid.layers.kernels.linear import apply

Partial = tuple[Tensor, ...]
"""The partial aggregate of an area of cells: tensors [..., D] and, for attention, [...]."""


class PrefixMax:
    """Max over the cells so far, Eq. (4.21), of the transformed cells, Eq. (4.22).

    The other prefix forms have the same four methods.
    """

    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        self.transform = transform

    def scan_source(self, cells: Tensor) -> Partial:
        """Return the partials [..., S, .] of cells[..., :j + 1, :], for cells [..., S, D]."""
        return (prefix_max(self.transform(cells), -2),)

    def scan_target(self, partial: Partial) -> Partial:
        """Return the partials [..., T, S, .] of all rows so far, given those of each row."""
        return (prefix_max(partial[0], -3),)

    def combine(self, first: Partial, second: Partial) -> Partial:
        """Return the partial of two areas taken together."""
        return (torch.maximum(first[0], second[0]),)

    def finalize(self, partial: Partial, counts: Tensor) -> Tensor:
        """Return the aggregate [..., D'] of areas of counts [...] cells."""
        return partial[0]


class PrefixSum:
    """The sum over the cells so far, in fp32 at least, divided by the root of their number."""

    def scan_source(self, cells: Tensor) -> Partial:
        return (widened(cells).cumsum(-2),)

    def scan_target(self, partial: Partial) -> Partial:
        return (partial[0].cumsum(-3),)

    def combine(self, first: Partial, second: Partial) -> Partial:
        return (first[0] + second[0],)

    def finalize(self, partial: Partial, counts: Tensor) -> Tensor:
        """Return the scaled sums, Eq. (3.17)."""
        return partial[0] * counts.to(partial[0].dtype).rsqrt()[..., None]


class PrefixAttention:
    """The sum of the cells so far weighted by a softmax over them, Eq. (4.23).

    A partial is the weighted sum and the log-sum-exp of the scores, which is the score of the whole
    area: areas are weighted by it as cells are by their scores.
    """

    def __init__(self, scores: Callable[[Tensor], Tensor]) -> None:
        self.scores = scores

    def scan_source(self, cells: Tensor) -> Partial:
        return _prefix_attention(cells, self.scores(cells))

    def scan_target(self, partial: Partial) -> Partial:
        pooled, total = _prefix_attention(
            partial[0].transpose(-2, -3), partial[1].transpose(-1, -2)
        )
        return pooled.transpose(-2, -3), total.transpose(-1, -2)

    def combine(self, first: Partial, second: Partial) -> Partial:
        total = torch.logaddexp(first[1], second[1])
        shares = [(part[1] - total).exp().to(part[0].dtype)[..., None] for part in (first, second)]
        return first[0] * shares[0] + second[0] * shares[1], total

    def finalize(self, partial: Partial, counts: Tensor) -> Tensor:
        return partial[0]


class PrefixMaxAndAttention:
    """Prefix max and prefix attention, concatenated; the max is the first tensor of a partial."""

    def __init__(self, aggregator: MaxAndAttention, attention: AttentionPooling) -> None:
        self.pool = PrefixMax(aggregator.pool.transform)
        self.attention = PrefixAttention(attention.scores)

    def scan_source(self, cells: Tensor) -> Partial:
        return self.pool.scan_source(cells) + self.attention.scan_source(cells)

    def scan_target(self, partial: Partial) -> Partial:
        pooled = self.pool.scan_target(partial[:1])
        return pooled + self.attention.scan_target(partial[1:])

    def combine(self, first: Partial, second: Partial) -> Partial:
        pooled = self.pool.combine(first[:1], second[:1])
        return pooled + self.attention.combine(first[1:], second[1:])

    def finalize(self, partial: Partial, counts: Tensor) -> Tensor:
        return torch.cat([partial[0], partial[1].to(partial[0].dtype)], -1)


PrefixPooling = PrefixMax | PrefixSum | PrefixAttention | PrefixMaxAndAttention


def prefix_pooling(aggregator: Aggregator) -> PrefixPooling:
    """Return the prefix form of `aggregator`; a user-defined one has a method `prefix_form()`.

    Raises ConfigError for one that has none: a user-defined one without this method, the CoNLL
    paper's attention, and single cells.
    """
    if (own := getattr(aggregator, "prefix_form", None)) is not None:
        form: PrefixPooling = own()
        return form
    # Not by `isinstance`: a user-defined subclass may compute something else.
    if type(aggregator) is MaxPooling or type(aggregator) is GatedMaxPooling:
        return PrefixMax(aggregator.transform)
    if type(aggregator) is AveragePooling:
        return PrefixSum()
    if type(aggregator) is AttentionPooling:
        return PrefixAttention(aggregator.scores)
    if type(aggregator) is MaxAndAttention:
        attention = aggregator.attention
        if type(attention) is AttentionPooling:
            return PrefixMaxAndAttention(aggregator, attention)
    raise ConfigError(
        f"The aggregation `{type(aggregator).__name__}` cannot be computed for every prefix of the "
        "source, which simultaneous objectives and policies that look at predictions need.",
        "Give it a method `prefix_form()`, which returns an object with the methods of `PrefixMax` "
        "(nmtgrid/layers/grid/prefix_pooling.py).",
    )


def prefix_max(values: Tensor, dim: int) -> Tensor:
    """Return the maximum of all values so far along `dim`; the first of ties gets the gradient."""
    return apply(_PrefixMax, values, dim)


class _PrefixMax(torch.autograd.Function):
    # A loop of `torch.maximum` is ten times as fast as `cummax`, which stores indices. It runs at
    # every update of a grid model that is trained on paths.
    @staticmethod
    def forward(ctx: Any, values: Tensor, dim: int) -> Tensor:
        maxima = torch.empty_like(values)
        slices, running = values.unbind(dim), maxima.unbind(dim)
        running[0].copy_(slices[0])
        for index in range(1, len(slices)):
            torch.maximum(running[index - 1], slices[index], out=running[index])
        ctx.save_for_backward(values, maxima)
        ctx.dim = dim
        return maxima

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        values, maxima = ctx.saved_tensors
        of_values = torch.empty_like(values)
        slices, running, of_running, of_slices = (
            tensor.unbind(ctx.dim) for tensor in (values, maxima, gradient, of_values)
        )
        # A maximum passes its gradient back to the position where it was first reached.
        carried = torch.zeros_like(of_running[0])
        for index in range(len(slices) - 1, 0, -1):
            carried = carried + of_running[index]
            is_new = slices[index] > running[index - 1]
            torch.mul(carried, is_new, out=of_slices[index])
            carried = carried.masked_fill_(is_new, 0.0)
        torch.add(carried, of_running[0], out=of_slices[0])
        return of_values, None


def _prefix_attention(values: Tensor, scores: Tensor) -> Partial:
    """Return softmax-weighted sums [..., L, D] of values [..., L, D] up to each position.

    scores [..., L]; the second tensor [..., L] is the log-sum of their exponentials.
    """
    length = scores.shape[-1]
    is_later = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    masked = scores[..., None, :].masked_fill(is_later, LOWEST)
    total = masked.logsumexp(-1)
    weights = (masked - total[..., None]).exp()
    return torch.matmul(weights.to(values.dtype), values), total
