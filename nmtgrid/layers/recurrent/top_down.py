"""The two LSTMs of top-down attention over whole captions, with their backward pass written out.

At each position the attention LSTM reads [h2, word, mean region], its state h1 weighs the regions
by additive attention, and the language LSTM reads [regions' weighted mean, h1] (Anderson et al.,
2018, Eq. (2) to (6)). Only what hangs on the last states is computed in the loop: the words' and
the mean region's part of the gates comes ready for all positions. The backward loop leaves the
gradients of its products behind, and each weight gets its own from one product over all positions.

Shapes: T positions, B pictures, S regions, F features of a region, D of a state, H compared.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.recurrent.lstm import (
    States,
    affine,
    cell_backward,
    cell_forward,
    over_positions,
    squash,
    working_dtype,
)
from nmtgrid.layers.source_cache import SourceCache


def attend_additively(
    query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, hide: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what queries [B, Q, H] read [B, Q, F], and the shares [B, Q, S].

    keys [B, S, H], values [B, S, F], weight [H]; hide [B, 1, S] is added to the scores (None:
    nothing).
    """
    scores = _mixed(query, keys) @ weight
    shares = (scores if hide is None else scores + hide).softmax(-1)
    return torch.bmm(shares, values), shares


def attend_additively_backward(
    of_read: Tensor, query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries [B, Q, H], keys [B, S, H] and weight [H]; values have none.

    What is compared is computed again: kept, it would be as large as the values at each position.
    """
    mixed = _mixed(query, keys)
    of_shares = torch.bmm(of_read, values.transpose(1, 2))
    of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype)
    of_weight = of_scores.flatten() @ mixed.flatten(0, 2)
    of_mixed = torch.ops.aten.tanh_backward(of_scores[..., None] * weight, mixed)
    return of_mixed.sum(2), of_mixed.sum(1), of_weight


def _mixed(query: Tensor, keys: Tensor) -> Tensor:
    """Return tanh(W_k k + W_q q) [B, Q, S, H]."""
    mixed = query[:, :, None] + keys[:, None]
    squash(mixed, mixed)
    return mixed


@dataclasses.dataclass(frozen=True)
class TopDownWeights:
    """What each position multiplies with.

    attention [4 D, 2 D] over h2 and h1, query [H, D], score [H], language [4 D, F + 2 D] over the
    weighted mean, h1 and h2, and its bias [4 D].
    """

    attention: Tensor
    query: Tensor
    score: Tensor
    language: Tensor
    language_bias: Tensor

    def take_rows(self, rows: Tensor) -> TopDownWeights:
        """Return the same weights: they have no rows."""
        return self

    def ready(self) -> TopDownWeights:
        """Return the weights in the precision of products, for a whole search."""
        low = working_dtype(self.attention)
        attention, query, language = (
            held.to(low) for held in (self.attention, self.query, self.language)
        )
        return TopDownWeights(attention, query, self.score, language, self.language_bias)

    def advance(self, below: Tensor, states: States, memory: SourceCache) -> tuple[States, Tensor]:
        """Return both LSTMs' new states and the shares [R, S], for `below` [R, 4 D].

        `memory` holds keys and regions of each picture, which its rows share.
        """
        (first, first_cell), (second, second_cell) = states
        low = self.attention.dtype
        read = torch.cat([second, first], 1).to(low)
        first, first_cell = _advanced(below, read, self.attention, first_cell)
        query = product(first.to(low), self.query).to(first.dtype)
        hide = None if memory.mask is None else memory.mask[:, 0]
        keys, regions = (tensor[:, 0] for tensor in memory.pair(0))
        grouped = query.reshape(-1, memory.width, query.shape[1])
        seen, shares = attend_additively(grouped, keys, regions, self.score, hide)
        read = torch.cat([seen.flatten(0, 1), first, second], 1).to(low)
        second, second_cell = _advanced(self.language_bias, read, self.language, second_cell)
        return ((first, first_cell), (second, second_cell)), shares.flatten(0, 1)


def run_top_down(
    below: Tensor, memory: SourceCache, weights: TopDownWeights
) -> tuple[Tensor, Tensor]:
    """Return the language LSTM's states [T, B, D], and the shares [T, B, S], without gradient.

    below [T, B, 4 D] is the attention LSTM's part from words and mean regions, biases included;
    `memory` holds the regions' keys [B, 1, S, H] and the regions [B, 1, S, F], which have no
    gradient. Both LSTMs begin at zero.
    """
    hide = None if memory.mask is None else memory.mask[:, 0]
    held = [getattr(weights, field.name) for field in dataclasses.fields(weights)]
    found: tuple[Tensor, Tensor] = _TopDown.apply(  # type: ignore[no-untyped-call]
        below, *(tensor[:, 0] for tensor in memory.pair(0)), hide, *held
    )
    return found


def _advanced(below: Tensor, read: Tensor, weight: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return an LSTM's new hidden state and cell [R, D]."""
    gates = cell.new_empty(cell.shape[0], weight.shape[0])
    affine(below, read, weight, gates)
    new_cell, squashed = torch.empty_like(cell), torch.empty_like(cell)
    return cell_forward(gates, cell, new_cell, squashed) * squashed, new_cell


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What a position of an LSTM leaves; slot t of `reads` and `cells` is what position t finds."""

    reads: Tensor
    gates: Tensor
    cells: Tensor
    squashed: Tensor

    @classmethod
    def make(cls, like: Tensor, size: int, width: int, low: torch.dtype) -> _Layer:
        """Return empty buffers for [T, B] of `like`; the first states are zero."""
        (length, count), high = like.shape[:2], torch.promote_types(low, torch.float32)
        reads = like.new_zeros((length + 1, count, width), dtype=low)
        gates = like.new_empty((length, count, 4 * size), dtype=high)
        cells = like.new_zeros((length + 1, count, size), dtype=high)
        return cls(reads, gates, cells, like.new_empty((length, count, size), dtype=high))

    def forward(self, t: int, below: Tensor, weight: Tensor) -> Tensor:
        """Return the hidden state [B, D] of position t."""
        gates, squashed = self.gates[t], self.squashed[t]
        affine(below, self.reads[t], weight, gates)
        return cell_forward(gates, self.cells[t], self.cells[t + 1], squashed) * squashed

    def backward(self, t: int, of_hidden: Tensor, of_cell: Tensor, of_gates: Tensor) -> None:
        """Write the gradient of position t's gates; `of_cell` becomes that of the cell before."""
        out = of_gates[t]
        kept = out if out.dtype == of_cell.dtype else torch.empty_like(out, dtype=of_cell.dtype)
        cell_backward(of_hidden, of_cell, self.gates[t], self.cells[t], self.squashed[t], kept)
        if kept is not out:
            out.copy_(kept)


class _TopDown(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, below: Tensor, keys: Tensor, regions: Tensor, hide: Tensor | None,
        attention: Tensor, query: Tensor, score: Tensor, language: Tensor, bias: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        low, size, wide = working_dtype(attention), query.shape[1], regions.shape[2]
        ctx.kinds = [held.dtype for held in (below, keys, attention, query, score, language, bias)]
        first = _Layer.make(below, size, 2 * size, low)
        second = _Layer.make(below, size, wide + 2 * size, low)
        high = first.cells.dtype
        asked = below.new_empty((*below.shape[:2], len(score)), dtype=high)
        shares = below.new_empty((*below.shape[:2], regions.shape[1]), dtype=high)
        # Attention stays in fp32: its products are too thin for bf16 to be faster.
        keys, seen, score = keys.to(high), regions.to(high), score.to(high)
        attention, query, language, bias = (
            held.to(low) for held in (attention, query, language, bias)
        )
        with torch.autocast(below.device.type, enabled=False):
            for t in range(len(below)):
                hidden = first.forward(t, below[t], attention)
                first.reads[t + 1, :, size:] = hidden
                asked[t] = product(hidden.to(low), query)
                read, share = attend_additively(asked[t][:, None], keys, seen, score, hide)
                shares[t], second.reads[t, :, :wide] = share[:, 0], read[:, 0]
                second.reads[t, :, wide : wide + size] = hidden
                above = second.forward(t, bias, language)
                first.reads[t + 1, :, :size] = above
                second.reads[t + 1, :, wide + size :] = above
        ctx.save_for_backward(
            keys, seen, attention, query, score, language, asked, shares,
            *vars(first).values(), *vars(second).values(),
        )  # fmt: skip
        ctx.mark_non_differentiable(shares)
        return first.reads[1:, :, :size].contiguous(), shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        keys, seen, attention, query, score, language, asked, shares, *saved = ctx.saved_tensors
        first, second = _Layer(*saved[:4]), _Layer(*saved[4:])
        size, wide, low = query.shape[1], seen.shape[2], attention.dtype
        of_first, of_second = (torch.empty_like(one.gates, dtype=low) for one in (first, second))
        of_asked, of_keys, of_score = (torch.zeros_like(held) for held in (asked, keys, score))
        hidden, cell, above, above_cell = (torch.zeros_like(first.cells[0]) for _ in range(4))
        with torch.autocast(of_states.device.type, enabled=False):
            for t in reversed(range(len(of_states))):
                above = above + of_states[t]
                second.backward(t, above, above_cell, of_second)
                of_reads = product(of_second[t], language.t()).to(above.dtype)
                of_query, of_key, of_weight = attend_additively_backward(
                    of_reads[:, None, :wide], asked[t][:, None], keys, seen, score,
                    shares[t][:, None],
                )  # fmt: skip
                of_keys += of_key
                of_score += of_weight
                of_asked[t] = of_query[:, 0]
                hidden = hidden + of_reads[:, wide : wide + size]
                hidden = hidden + product(of_asked[t].to(low), query.t())
                first.backward(t, hidden, cell, of_first)
                of_states_before = product(of_first[t], attention.t()).to(above.dtype)
                above = of_reads[:, wide + size :] + of_states_before[:, :size]
                hidden = of_states_before[:, size:]
        found = [
            of_first,
            of_keys,
            over_positions(of_first, first.reads[:-1]),
            over_positions(of_asked.to(low), first.reads[1:, :, size:]),
            of_score,
            over_positions(of_second, second.reads[:-1]),
            of_second.sum((0, 1), dtype=first.cells.dtype),
        ]
        given = [held.to(kind) for held, kind in zip(found, ctx.kinds, strict=True)]
        return given[0], given[1], None, None, *given[2:]
