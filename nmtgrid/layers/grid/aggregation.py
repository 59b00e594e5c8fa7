"""Aggregation of a row of grid cells into one vector per target position (section 3.2.5).

Each aggregator maps cells [..., S, D] and `is_source` [..., S] (True on real source tokens; None
when all are) to [..., output_size]; padded columns never count. `weights` gives the by-product
alignment, `contributions` the energies of the CoNLL paper, Eq. (5)-(7). Used by models/pervasive;
layers/grid/prefix_pooling.py has the forms for prefixes of the source.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.layers.kernels.linear import Projection

Aggregation = Literal["max", "average", "attention", "gated-max", "max-attention"]

LOWEST = -1e30
"""The score of masked cells: finite, so that the softmax is finite too."""


class _Pooling(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.output_size = size


class MaxPooling(_Pooling):
    """Max over the source for each channel, Eq. (3.16)."""

    def transform(self, cells: Tensor) -> Tensor:
        """Return the cells [..., S, D] to be pooled, here unchanged."""
        return cells

    def forward(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        return self._visible(cells, is_source).amax(-2)

    def weights(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        """Return [..., S]: the share of channels that chose each source token, Eq. (3.23)."""
        winners = self._visible(cells, is_source).argmax(-2)
        # In fp32, because bf16 represents all whole numbers only up to 256.
        votes = torch.zeros(cells.shape[:-1], device=cells.device)
        vote = torch.ones((), device=cells.device).expand(winners.shape)
        return votes.scatter_add(-1, winners, vote) / cells.shape[-1]

    def contributions(self, cells: Tensor, is_source: Tensor | None, readout: Tensor) -> Tensor:
        """Return [..., S]: the part of the output's energy due to each source token, Eq. (7).

        readout [..., D] is the classifier's row for the written token.
        """
        highest, winners = self._visible(cells, is_source).max(-2)
        energies = torch.zeros(cells.shape[:-1], device=cells.device, dtype=readout.dtype)
        return energies.scatter_add(-1, winners, highest.to(readout.dtype) * readout)

    def _visible(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        cells = self.transform(cells)
        if is_source is None:
            return cells
        # Finite, unlike -inf: a row without source tokens must not make gradients NaN.
        return cells.masked_fill(~is_source[..., None], torch.finfo(cells.dtype).min)


class GatedMaxPooling(MaxPooling):
    """Max over the source of a gated linear unit of the cells, Eq. (3.19).

    Departs: The print has no bias in the gated linear unit. Here it has one, initialised to zero.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.gate = Projection(size, 2 * size)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def transform(self, cells: Tensor) -> Tensor:
        return nn.functional.glu(self.gate(cells), -1)


class AveragePooling(_Pooling):
    """The sum over the source divided by sqrt(|x|), Eq. (3.17).

    Departs: The text describes an average scaled by 1/sqrt(|x|), but the formula is a sum scaled by
    it. This follows the formula.
    """

    def forward(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        return (cells * self._scale(cells, is_source)[..., None]).sum(-2)

    def weights(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        """Return [..., S]: the uniform weights; an average prefers no source token."""
        scale = self._scale(cells, is_source).float()
        return (scale / scale.sum(-1, keepdim=True)).expand(cells.shape[:-1])

    def contributions(self, cells: Tensor, is_source: Tensor | None, readout: Tensor) -> Tensor:
        weighted = cells * self._scale(cells, is_source)[..., None]
        return (weighted.to(readout.dtype) @ readout[..., None])[..., 0]

    def _scale(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        if is_source is None:
            return cells.new_full((cells.shape[-2],), cells.shape[-2] ** -0.5)
        # A row of no source tokens must not divide by zero.
        count = is_source.sum(-1, keepdim=True).clamp(min=1)
        return is_source.to(cells.dtype) * count.to(cells.dtype).rsqrt()


class _WeightedPooling(_Pooling):
    """Aggregators that multiply each cell by one weight, the same for all features."""

    def weights(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        """Return the alignment [..., S]."""
        raise NotImplementedError

    def factors(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        """Return the weights [..., S] that multiply the cells, here those of the alignment."""
        return self.weights(cells, is_source)

    def forward(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        # A product with the weights as one row, so that weighted cells are never stored.
        factors = self.factors(cells, is_source).to(cells.dtype)
        return torch.matmul(factors[..., None, :], cells)[..., 0, :]

    def contributions(self, cells: Tensor, is_source: Tensor | None, readout: Tensor) -> Tensor:
        energies = (cells.to(readout.dtype) @ readout[..., None])[..., 0]
        return self.factors(cells, is_source).to(readout.dtype) * energies


class AttentionPooling(_WeightedPooling):
    """The sum of the cells weighted by a softmax over the source, Eq. (3.18) and (3.22).

    As printed there is no non-linearity between W_1 and w_2, so that both amount to one vector;
    `activation="tanh"` adds one.
    """

    def __init__(self, size: int, activation: Literal["none", "tanh"]) -> None:
        super().__init__(size)
        self.map = nn.Linear(size, size, bias=False)
        self.vector = nn.Parameter(torch.empty(size))
        self.activation = activation
        nn.init.xavier_uniform_(self.map.weight)
        nn.init.normal_(self.vector, std=size**-0.5)

    def weights(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        return _masked_softmax(self.scores(cells), is_source)

    def scores(self, cells: Tensor) -> Tensor:
        """Return [..., S], in fp32 at least: the scores before the softmax."""
        # The name `map` is that in the state dicts of published models.
        hidden: Tensor = self.map(cells)
        if self.activation == "tanh":
            hidden = hidden.tanh()
        return widened(hidden @ self.vector.to(hidden.dtype))


class ScaledAttentionPooling(_WeightedPooling):
    """The softmax-weighted sum of the cells times sqrt(|s|): CoNLL Eq. (8)-(9).

    Departs: Eq. (8) adds a bias b to all scores. It is omitted, because the softmax cancels it.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.vector = nn.Parameter(torch.empty(size))
        nn.init.normal_(self.vector, std=size**-0.5)

    def weights(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        """Return the attention [..., S], Eq. (8), in fp32 at least."""
        return _masked_softmax(widened(cells @ self.vector.to(cells.dtype)), is_source)

    def factors(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        """Return the attention times sqrt(|s|), Eq. (9)."""
        weights = self.weights(cells, is_source)
        if is_source is None:
            return weights * float(cells.shape[-2] ** 0.5)
        return weights * is_source.sum(-1, keepdim=True).to(weights.dtype).sqrt()


class LastCell(_WeightedPooling):
    """No aggregation: only the cell of the last token read (fig. 4.4a)."""

    def forward(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        # Without padding the last column is the same for all rows: a view, no gather.
        if is_source is None:
            return cells[..., -1, :]
        last = (is_source.sum(-1) - 1).expand(cells.shape[:-2])[..., None, None]
        return cells.gather(-2, last.expand(*last.shape[:-1], cells.shape[-1]))[..., 0, :]

    def weights(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        is_read = cells.new_ones(cells.shape[:-1], dtype=torch.bool)
        is_read = is_read if is_source is None else is_read & is_source
        return nn.functional.one_hot(is_read.sum(-1) - 1, cells.shape[-2]).float()


class MaxAndAttention(nn.Module):
    """Max-pooled and attended features side by side: [Max, Attn] of CoNLL table 1."""

    def __init__(self, size: int, attention: AttentionPooling | ScaledAttentionPooling) -> None:
        super().__init__()
        self.output_size, self.size = 2 * size, size
        self.pool = MaxPooling(size)
        self.attention = attention

    def forward(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        return torch.cat([self.pool(cells, is_source), self.attention(cells, is_source)], -1)

    def weights(self, cells: Tensor, is_source: Tensor | None) -> Tensor:
        return self.attention.weights(cells, is_source)

    def contributions(self, cells: Tensor, is_source: Tensor | None, readout: Tensor) -> Tensor:
        for_pool, for_attention = readout.split(self.size, -1)
        pooled = self.pool.contributions(cells, is_source, for_pool)
        return pooled + self.attention.contributions(cells, is_source, for_attention)


Aggregator = (
    MaxPooling
    | LastCell
    | AveragePooling
    | AttentionPooling
    | ScaledAttentionPooling
    | MaxAndAttention
)


def aggregator(
    kind: Aggregation, size: int, attention_activation: Literal["none", "tanh"]
) -> Aggregator:
    """Return the aggregator of this kind for cells of `size` features."""
    if kind == "max":
        return MaxPooling(size)
    if kind == "average":
        return AveragePooling(size)
    if kind == "gated-max":
        return GatedMaxPooling(size)
    attention = AttentionPooling(size, attention_activation)
    return attention if kind == "attention" else MaxAndAttention(size, attention)


def scaled_aggregator(kind: Aggregation, size: int) -> Aggregator:
    """Return the aggregator of this kind with the attention of the CoNLL paper, Eq. (8)-(9)."""
    if kind not in ("attention", "max-attention"):
        return aggregator(kind, size, "none")
    attention = ScaledAttentionPooling(size)
    return attention if kind == "attention" else MaxAndAttention(size, attention)


def widened(values: Tensor) -> Tensor:
    """Return `values` in fp32 at least: long sums, as in a softmax, are too inexact in bf16."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _masked_softmax(scores: Tensor, is_source: Tensor | None) -> Tensor:
    if is_source is not None:
        scores = scores.masked_fill(~is_source, LOWEST)
    return scores.softmax(-1)
