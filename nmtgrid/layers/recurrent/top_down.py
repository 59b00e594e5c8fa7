"""Top-down attention over image regions (Anderson et al., 2018), with a hand-written backward pass.

At each position the attention LSTM reads [h2, word, mean region], its state h1 weights the regions
by additive attention, and the language LSTM reads [regions' weighted mean, h1], Eq. (2) to (6).
Used by models/captioning/top_down.py.

Shapes: T positions, B pictures, S regions, F features of a region, D of a state, H of attention.
"""

# Only what depends on the previous states is computed in the loop: the part of the gates from words
# and mean regions is computed beforehand for all positions. The backward loop stores the gradients
# of its products, and each weight gets its own from one product over all positions. No benchmark
# times captioning; the form is that of recurrent/input_feeding.py, which `bilstm` in
# benchmarks/results/cpu-1-thread.md justifies.

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product, working_dtype
from nmtgrid.layers.recurrent.lstm import (
    LayerTrace,
    States,
    cell_step,
    over_positions,
    squash,
)
from nmtgrid.layers.source_cache import SourceCache


def attend_additively(
    query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, hide: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the contexts [B, Q, F] of queries [B, Q, H], and the attention [B, Q, S].

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

    The compared features are recomputed: at each position they are as large as the values.
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
    """The weights that are applied at each position.

    attention [4 D, 2 D] for h2 and h1, query [H, D], score [H], language [4 D, F + 2 D] for the
    weighted mean, h1 and h2, and its bias [4 D].
    """

    attention: Tensor
    query: Tensor
    score: Tensor
    language: Tensor
    language_bias: Tensor

    def take_rows(self, rows: Tensor) -> TopDownWeights:
        return self

    def cast(self) -> TopDownWeights:
        """Return the weights in the precision of products, for a whole search."""
        low = working_dtype(self.attention)
        cast = {name: getattr(self, name).to(low) for name in ("attention", "query", "language")}
        return dataclasses.replace(self, **cast)

    def advance(self, below: Tensor, states: States, memory: SourceCache) -> tuple[States, Tensor]:
        """Return both LSTMs' new states and the attention [R, S], for `below` [R, 4 D].

        `memory` has keys and regions of each picture, which its rows share.
        """
        (first, first_cell), (second, second_cell) = states
        low = self.attention.dtype
        joined = torch.cat([second, first], 1).to(low)
        first, first_cell = cell_step(below, joined, self.attention, first_cell)
        query = product(first.to(low), self.query).to(first.dtype)
        hide = None if memory.mask is None else memory.mask[:, 0]
        keys, regions = (tensor[:, 0] for tensor in memory.pair(0))
        grouped = query.reshape(-1, memory.width, query.shape[1])
        context, shares = attend_additively(grouped, keys, regions, self.score, hide)
        joined = torch.cat([context.flatten(0, 1), first, second], 1).to(low)
        second, second_cell = cell_step(self.language_bias, joined, self.language, second_cell)
        return ((first, first_cell), (second, second_cell)), shares.flatten(0, 1)


def run_top_down(
    below: Tensor, memory: SourceCache, weights: TopDownWeights
) -> tuple[Tensor, Tensor]:
    """Return the language LSTM's states [T, B, D], and the attention [T, B, S], without gradient.

    below [T, B, 4 D] is the attention LSTM's part from words and mean regions, biases included;
    `memory` has the regions' keys [B, 1, S, H] and the regions [B, 1, S, F], which have no
    gradient. Both LSTMs begin at zero.
    """
    hide = None if memory.mask is None else memory.mask[:, 0]
    keys, regions = (tensor[:, 0] for tensor in memory.pair(0))
    result: tuple[Tensor, Tensor] = _TopDown.apply(  # type: ignore[no-untyped-call]
        below, keys, regions, hide, *vars(weights).values()
    )
    return result


class _TopDown(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, below: Tensor, keys: Tensor, regions: Tensor, hide: Tensor | None,
        attention: Tensor, query: Tensor, score: Tensor, language: Tensor, bias: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        low, size, wide = working_dtype(attention), query.shape[1], regions.shape[2]
        inputs = (below, keys, attention, query, score, language, bias)
        ctx.dtypes = [tensor.dtype for tensor in inputs]
        first = LayerTrace.zeros(below, size, 2 * size, low)
        second = LayerTrace.zeros(below, size, wide + 2 * size, low)
        high = first.cells.dtype
        queries = below.new_empty((*below.shape[:2], len(score)), dtype=high)
        shares = below.new_empty((*below.shape[:2], regions.shape[1]), dtype=high)
        # Attention stays in fp32: its products are too thin for bf16 to be faster.
        keys, regions, score = keys.to(high), regions.to(high), score.to(high)
        attention, query = attention.to(low), query.to(low)
        language, bias = language.to(low), bias.to(low)
        with torch.autocast(below.device.type, enabled=False):
            for t in range(len(below)):
                hidden = first.forward(t, below[t], attention)
                first.inputs[t + 1, :, size:] = hidden
                queries[t] = product(hidden.to(low), query)
                context, share = attend_additively(queries[t][:, None], keys, regions, score, hide)
                shares[t], second.inputs[t, :, :wide] = share[:, 0], context[:, 0]
                second.inputs[t, :, wide : wide + size] = hidden
                above = second.forward(t, bias, language)
                first.inputs[t + 1, :, :size] = above
                second.inputs[t + 1, :, wide + size :] = above
        ctx.save_for_backward(
            keys, regions, attention, query, score, language, queries, shares,
            *vars(first).values(), *vars(second).values(),
        )  # fmt: skip
        ctx.mark_non_differentiable(shares)
        return first.inputs[1:, :, :size].contiguous(), shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        keys, regions, attention, query, score, language, queries, shares, *saved = (
            ctx.saved_tensors
        )
        first, second = LayerTrace(*saved[:4]), LayerTrace(*saved[4:])
        size, wide, low = query.shape[1], regions.shape[2], attention.dtype
        of_first = torch.empty_like(first.gates, dtype=low)
        of_second = torch.empty_like(second.gates, dtype=low)
        of_queries = torch.zeros_like(queries)
        of_keys, of_score = torch.zeros_like(keys), torch.zeros_like(score)
        hidden, cell, above, above_cell = (torch.zeros_like(first.cells[0]) for _ in range(4))
        with torch.autocast(of_states.device.type, enabled=False):
            for t in reversed(range(len(of_states))):
                above = above + of_states[t]
                of_gates = second.backward(t, above, above_cell, of_second)
                of_inputs = product(of_gates, language.t()).to(above.dtype)
                of_query, of_key, of_weight = attend_additively_backward(
                    of_inputs[:, None, :wide], queries[t][:, None], keys, regions, score,
                    shares[t][:, None],
                )  # fmt: skip
                of_keys += of_key
                of_score += of_weight
                # h1 is used by the language LSTM, the query and the next position.
                of_queries[t] = of_query[:, 0]
                hidden = hidden + of_inputs[:, wide : wide + size]
                hidden = hidden + product(of_queries[t].to(low), query.t())
                of_gates = first.backward(t, hidden, cell, of_first)
                of_before = product(of_gates, attention.t()).to(above.dtype)
                above = of_inputs[:, wide + size :] + of_before[:, :size]
                hidden = of_before[:, size:]
        gradients = [
            of_first,
            of_keys,
            over_positions(of_first, first.inputs[:-1]),
            over_positions(of_queries.to(low), first.inputs[1:, :, size:]),
            of_score,
            over_positions(of_second, second.inputs[:-1]),
            of_second.sum((0, 1), dtype=first.cells.dtype),
        ]
        of_below, of_keys, *of_weights = (
            tensor.to(dtype) for tensor, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return of_below, of_keys, None, None, *of_weights
