"""Monotonic multihead attention with infinite lookback (MMA-IL; Ma et al., ICLR 2020).

Each head of a decoder's attention over the source has a source position, moves forward until it
selects a position (Raffel et al., 2017), and attends to all source tokens up to this one
(Arivazhagan et al., 2019). `MonotonicHeads` computes the energies of selection, `MonotonicCache` is
the source cache of such heads: with expected alignments in training, else with hard choices. The
Transformer with `model.reader` monotonic is built from both.

Letters: B sentences, R rows, H heads, N blocks, T target positions, S columns of the source, d
features of a head.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from nmtgrid.layers.kernels.linear import apply
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.attention import SourceSelection

CHOSEN_FROM = 0.5
"""The default of the selection probability from which on a head chooses a position."""


def expected_alignment(probabilities: Tensor) -> Tensor:
    """Return alpha [..., T, S]: the probability of each position of a head when it writes.

    probabilities [..., T, S] are those of selecting a position once it is reached. The head starts
    at the first position, and for each further token at that of the previous token (Raffel et al.,
    2017): q_{i,j} = (1 - p_{i,j-1}) q_{i,j-1} + alpha_{i-1,j}, alpha_{i,j} = p_{i,j} q_{i,j}. A row
    sums to at most 1; the rest is the probability that no position is selected.

    Departs: The published form divides cumulative sums by cumulative products, which must be
    clipped to stay above 0. Here the recursion runs over the anti-diagonals i + j, one after the
    other (T + S - 1 steps), without a division, so nothing underflows or needs clipping.
    """
    return apply(_ExpectedAlignment, probabilities)


class _ExpectedAlignment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probabilities: Tensor) -> Tensor:
        select = _sheared(probabilities)
        reached = torch.zeros_like(select)
        reached[0, 0] = 1.0
        for step in range(1, select.shape[1]):
            before = reached[:, step - 1]
            written = select[:, step - 1] * before
            torch.sub(before, written, out=reached[:, step])
            reached[1:, step] += written[:-1]
        ctx.save_for_backward(select, reached)
        ctx.shape = probabilities.shape
        return _unsheared(select * reached, probabilities.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        select, reached = ctx.saved_tensors
        of_alpha = _sheared(gradient)
        # The gradient of a step's `reached` through all later ones, from the last step backwards.
        worth = torch.zeros_like(of_alpha[:, 0])
        for step in reversed(range(select.shape[1])):
            # A WRITE adds to alpha and to the next row, and subtracts from its own.
            of_written = of_alpha[:, step] - worth
            of_written[:-1] += worth[1:]
            worth = torch.addcmul(worth, select[:, step], of_written)
            of_alpha[:, step] = of_written
        return _unsheared(of_alpha.mul_(reached), ctx.shape)


def _sheared(values: Tensor) -> Tensor:
    """Return [T, T + S - 1, M] with values [..., T, S] at (i, i + j), 0 elsewhere."""
    rows, columns = values.shape[-2:]
    flat = values.reshape(-1, rows, columns)
    padded = flat.new_zeros(rows, columns + rows, len(flat))
    padded[:, :columns] = flat.permute(1, 2, 0)
    # Reading rows that are one shorter than in memory shifts each by one more column.
    return padded.flatten(0, 1)[: rows * (columns + rows - 1)].view(rows, -1, len(flat))


def _unsheared(sheared: Tensor, shape: Sequence[int]) -> Tensor:
    """Return [..., T, S] of `shape` from the result of `_sheared`."""
    rows, columns = shape[-2:]
    padded = pad(sheared.flatten(0, 1), (0, 0, 0, rows)).view(rows, columns + rows, -1)
    return padded[:, :columns].permute(2, 0, 1).reshape(shape)


def lookback_attention(alpha: Tensor, energies: Tensor) -> Tensor:
    """Return beta [..., T, S], the expected attention up to the position of a head.

    beta_{i,j} = sum over k >= j of alpha_{i,k} exp(e_{i,j}) / sum over l <= k of exp(e_{i,l})
    (Arivazhagan et al., 2019), for alpha and energies e [..., T, S]. Energies may be -inf only at
    the end of a row.

    Departs: The published form divides by cumulative sums of exp(e). Here the sum over k is
    computed from right to left, with the ratio of each cumulative sum to the next, so all
    intermediate values are between 0 and 1 whatever the energies.
    """
    norms = energies.logcumsumexp(-1)
    kept = pad((norms[..., :-1] - norms[..., 1:]).exp(), (1, 0))
    later = apply(_ScanBackwards, alpha.movedim(-1, 0), kept.movedim(-1, 0)).movedim(0, -1)
    return (energies - norms).exp() * later


class _ScanBackwards(torch.autograd.Function):
    """u_j = values_j + kept_{j+1} u_{j+1}, for values and kept [S, ...]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, kept: Tensor) -> Tensor:
        kept, sums = kept.contiguous(), values.clone(memory_format=torch.contiguous_format)
        for column in reversed(range(len(sums) - 1)):
            sums[column].addcmul_(kept[column + 1], sums[column + 1])
        ctx.save_for_backward(kept, sums)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        kept, sums = ctx.saved_tensors
        of_values = gradient.clone(memory_format=torch.contiguous_format)
        for column in range(1, len(sums)):
            of_values[column].addcmul_(kept[column], of_values[column - 1])
        of_kept = torch.zeros_like(kept)
        torch.mul(of_values[:-1], sums[1:], out=of_kept[1:])
        return of_values, of_kept


def hard_positions(selects: Tensor) -> Tensor:
    """Return [..., T] (int64): the columns of the heads, from 0, for selects [..., T, S].

    It is the first selected column from the head's position for the previous token on; each row
    must select its last visible column.
    """
    columns = torch.arange(selects.shape[-1], device=selects.device)
    # The next selected column from each one on, so that the loop below is one look-up per token.
    following = torch.where(selects, columns, selects.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    standing = columns.new_zeros(*selects.shape[:-2], 1)
    path = []
    for row in following.unbind(-2):
        standing = row.gather(-1, standing)
        path.append(standing)
    return torch.cat(path, -1)


class MonotonicHeads(SourceSelection):
    """The selection energies of the heads of all decoder blocks: e = q k / sqrt(d) + b.

    Queries q are those of decoder states, keys k those of source states, b [N, H] is a bias for
    each head.
    """

    vector_parameters = ("bias",)

    def __init__(
        self, size: int, heads: int, blocks: int, source_size: int, *, bias: float, noise: float
    ) -> None:
        """`bias` is the initial b, `noise` the standard deviation of energies' training noise."""
        super().__init__(size, heads, blocks, source_size)
        self.noise = noise
        self.bias = nn.Parameter(torch.full((blocks, heads), bias))

    def energies(self, block: int, features: Tensor, keys: Tensor) -> Tensor:
        """Return [B, H, T, S] in float32 at least, for features [B, T, D] and keys [B, H, S, d]."""
        query = self.queries(block, features)
        energies: Tensor = (query @ keys.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
        return energies + self.bias[block][:, None, None].to(energies.dtype)


@dataclasses.dataclass(frozen=True)
class HeadPositions:
    """Positions of the heads of a search's rows: `columns` [R, N, H] (int64), from 0.

    `proposed` [R, N, H] are their positions after the step in progress (None: there is none);
    `threshold` is the selection probability from which on they choose.
    """

    columns: Tensor
    proposed: Tensor | None = None
    threshold: float = CHOSEN_FROM

    @classmethod
    def at_start(cls, rows: int, heads: MonotonicHeads) -> HeadPositions:
        shape = rows, heads.blocks, heads.heads
        return cls(torch.zeros(shape, dtype=torch.long, device=heads.bias.device))

    def put(self, rows: Tensor, part: HeadPositions) -> HeadPositions:
        """Return the positions with the proposals of `part` for some rows [R']."""
        assert part.proposed is not None
        proposed = self.columns.clone() if self.proposed is None else self.proposed.clone()
        proposed[rows] = part.proposed
        return dataclasses.replace(self, proposed=proposed)

    def accepted(self) -> HeadPositions:
        """Return the positions after the step in progress."""
        assert self.proposed is not None
        return dataclasses.replace(self, columns=self.proposed, proposed=None)


@dataclasses.dataclass(frozen=True)
class Selection:
    """The selections of a block's heads, for target positions T (W in a step).

    Either alpha [B, H, T, S], expected alignments, or positions [B, H, T] and, in a step, readiness
    [B, H, W]: the largest selection probability from a head's position on, in the source read.
    """

    alpha: Tensor | None = None
    positions: Tensor | None = None
    readiness: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class MonotonicCache(SourceCache):
    """A source cache for monotonic heads, for one pass over the target or one step.

    Built from a cache with the keys of `heads` (`with_keys`).

    A head that selects nothing in the source read so far is placed at the last column read: at the
    end of the source, as in the published systems, but also in a proposal that could still read on
    (see `readiness`), and if something other than the heads decides on reading. The next token's
    search begins there. So predictions with limited reads are those for a source that is cut there,
    and training along fixed paths follows the same rule: p is 1 in the last column read.

    `is_expected` says whether heads use expected alignments; `start` [R, N, H] are their positions
    before a step (None outside of steps), which uses `threshold`. `selections` has those of the
    blocks.
    """

    heads: MonotonicHeads = dataclasses.field(kw_only=True)
    is_expected: bool = dataclasses.field(default=False, kw_only=True)
    start: Tensor | None = dataclasses.field(default=None, kw_only=True)
    threshold: float = dataclasses.field(default=CHOSEN_FROM, kw_only=True)
    selections: dict[int, Selection] = dataclasses.field(default_factory=dict, kw_only=True)

    def select(self, block: int, features: Tensor) -> None:
        """Compute the selections of `block`, for features [B, T, D], or [R, D] in a step."""
        heads, start = self.heads, self.start
        if start is not None:
            features = features.unflatten(0, (-1, self.width))
        energies = heads.energies(block, features, self.keys[heads.blocks + block])
        if self.is_expected and heads.noise:
            energies = energies + heads.noise * torch.randn_like(energies)
        probabilities = energies.sigmoid()
        columns = torch.arange(energies.shape[-1], device=energies.device)
        # The last visible column, [B, 1, T, 1] or broadcastable to it.
        last = columns[-1:]
        if self.mask is not None:
            last = torch.where(self.mask == 0, columns, 0).amax(-1, keepdim=True)
        is_last, is_unread = columns == last, columns > last
        if self.is_expected:
            limited = probabilities.masked_fill(is_last, 1.0).masked_fill(is_unread, 0.0)
            self.selections[block] = Selection(expected_alignment(limited))
            return
        selects = (probabilities >= self.threshold) | is_last
        if start is None:
            self.selections[block] = Selection(positions=hard_positions(selects))
            return
        # [R, H] -> [B, H, W]: the rows of a sentence take the place of target positions.
        before = start[:, block].unflatten(0, (-1, self.width)).transpose(1, 2)[..., None]
        is_ahead = columns >= before
        positions = torch.where(selects & is_ahead, columns, len(columns)).amin(-1)
        seen = probabilities.masked_fill(is_unread | ~is_ahead, 0.0)
        self.selections[block] = Selection(positions=positions, readiness=seen.amax(-1))

    def attend_all(self, block: int, query: Tensor, *, rate: float = 0.0) -> Tensor:
        if self.is_expected:
            return self._attend_unfused(block, query, rate)
        return super().attend_all(block, query, rate=rate)

    def _weights(self, block: int, query: Tensor, scale: float | None = None) -> Tensor:
        alpha = self.selections[block].alpha
        if alpha is None:
            return super()._weights(block, query, scale)
        keys, _ = self.pair(block)
        energies = (query @ keys.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        energies = energies.to(alpha.dtype)
        if self.mask is not None:
            energies = energies + self.mask.to(alpha.dtype)
        return lookback_attention(alpha, energies)

    def mask_for(self, block: int, like: Tensor) -> Tensor:
        """Return the additive mask [B, H, T, S] that hides columns after the heads' positions."""
        positions = self.selections[block].positions
        assert positions is not None
        columns = torch.arange(self.keys[block].shape[2], device=positions.device)
        is_ahead = columns > positions[..., None]
        mask = like.new_zeros(is_ahead.shape).masked_fill_(is_ahead, -math.inf)
        return mask if self.mask is None else mask + self.mask.to(mask.dtype)

    def delays(self) -> Tensor:
        """Return [B, N H, T]: how many source tokens each head has read, or is expected to have."""
        parts = []
        for block in range(self.heads.blocks):
            selection = self.selections[block]
            if selection.alpha is None:
                assert selection.positions is not None
                parts.append((selection.positions + 1 - self.lead).clamp(min=1).float())
            else:
                columns = torch.arange(selection.alpha.shape[-1], device=selection.alpha.device)
                reads = (columns + 1 - self.lead).clamp(min=1).to(selection.alpha.dtype)
                parts.append(selection.alpha @ reads)
        return torch.cat(parts, 1)

    def positions(self) -> Tensor:
        """Return the positions of the heads after a step [R, N, H]."""
        blocks = range(self.heads.blocks)
        return torch.stack([self._of_rows(block, "positions") for block in blocks], 1)

    def readiness(self) -> Tensor:
        """Return [R]: the minimum over heads of the largest selection probability within reach.

        It reaches the threshold exactly if every head has chosen. The heads of blocks after one
        that has not chosen count as 0: their queries depend on its choice, and are those of a cut
        source until then. So readiness does not decrease as reads grow.
        """
        total: Tensor | None = None
        for block in range(self.heads.blocks):
            least = self._of_rows(block, "readiness").amin(1)
            if total is not None:
                has_chosen = total >= self.threshold
                least = torch.where(has_chosen, torch.minimum(total, least), 0.0)
            total = least
        assert total is not None
        return total.float()

    def _of_rows(self, block: int, name: str) -> Tensor:
        """Return a field [B, H, W] of a block's selection as [R, H]."""
        values: Tensor = getattr(self.selections[block], name)
        return values.transpose(1, 2).flatten(0, 1)
