"""A decoder of LSTM layers whose attention output is fed back, with its backward pass written out.

At each position the first layer reads the embedding and the last output, each further layer the
one below, and the last layer's state s attends to the source: the output is
tanh(W [context, s]). Only what hangs on the last output is computed in the loop: the embeddings'
part of the gates comes ready for all positions, and the source comes as keys and values through
which the maps of the query and of the context have been applied once, which is the same sum. The
backward loop leaves the gradients of its products behind, and weights, keys and values get theirs
from one product each over all positions.

Shapes: T target and S source positions, B sentences, D features of a layer, O of the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.recurrent.lstm import (
    affine,
    cell_backward,
    cell_forward,
    over_positions,
    squash,
    working_dtype,
)


@dataclasses.dataclass(frozen=True)
class InputFeedingWeights:
    """What the loop multiplies with.

    joined: one [4 D, D' + D] for each layer, over what it reads (the last output, or the layer
    below) and its own state; biases: one [4 D] for each layer but the first; readout [O, D].
    """

    joined: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    readout: Tensor


@dataclasses.dataclass(frozen=True)
class InputFeedingMasks:
    """Scaled dropout masks (or None): of each layer [T, B, D] and of the outputs [T, B, O]."""

    layers: tuple[Tensor | None, ...]
    output: Tensor | None


def run_input_feeding(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    hide: Tensor | None,
    start: Sequence[tuple[Tensor, Tensor]],
    weights: InputFeedingWeights,
    masks: InputFeedingMasks,
) -> tuple[Tensor, Tensor]:
    """Return outputs [T, B, O] after dropout, and the attention [B, T, S], which has no gradient.

    inputs [T, B, 4 D] are what the first layer's gates get from the embeddings, biases included;
    keys [B, S, D] and values [B, S, O]; hide [B, 1, S] is added to the scores (None: nothing);
    `start` holds each layer's states [B, D] before the first position.
    """
    hiddens, cells = (list(pair) for pair in zip(*start, strict=True))
    layers = len(start)
    result: tuple[Tensor, Tensor] = _Feeding.apply(  # type: ignore[no-untyped-call]
        inputs, keys, values, weights.readout, *hiddens, *cells, *weights.joined, *weights.biases,
        layers, hide, masks,
    )  # fmt: skip
    return result


@dataclasses.dataclass(frozen=True)
class _Trace:
    """All that the loop leaves; slot t of `reads` and `cells` is what position t finds."""

    reads: list[Tensor]
    """[T + 1, B, D' + D] for each layer: what it reads and its own state."""
    gates: list[Tensor]
    cells: list[Tensor]
    squashed: list[Tensor]
    states: Tensor
    """[T, B, D]: the last layer's states after dropout."""
    attention: Tensor
    """[T, B, S]."""
    outputs: Tensor
    """[T, B, O] before dropout."""


class _Feeding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, keys: Tensor, values: Tensor, readout: Tensor, *others: Any
    ) -> tuple[Tensor, Tensor]:
        *tensors, layers, hide, masks = others
        start = tensors[: 2 * layers]
        joined, biases = tensors[2 * layers : 3 * layers], tensors[3 * layers :]
        low = working_dtype(readout)
        trace = _empty_trace(inputs, keys, values, joined, low)
        for n in range(layers):
            trace.reads[n][0, :, -keys.shape[-1] :] = start[n]
            trace.cells[n][0] = start[layers + n]
        trace.reads[0][0, :, : readout.shape[0]] = 0
        ctx.kinds = [t.dtype for t in (inputs, keys, values, readout, *tensors)]
        # Attention stays in fp32: its products are too thin for bf16 to be faster.
        keys, values = keys.to(trace.states.dtype), values.to(trace.states.dtype)
        readout = readout.to(low)
        joined, biases = [w.to(low) for w in joined], [b.to(low) for b in biases]
        with torch.autocast(inputs.device.type, enabled=False):
            for t in range(inputs.shape[0]):
                below = [inputs[t], *biases]
                _forward_step(t, below, keys, values, hide, joined, readout, masks, trace)
        ctx.masks, ctx.layers = masks, layers
        ctx.save_for_backward(
            keys, values, readout, *joined, *trace.reads, *trace.gates, *trace.cells,
            *trace.squashed, trace.states, trace.attention, trace.outputs,
        )  # fmt: skip
        attention = trace.attention.transpose(0, 1)
        ctx.mark_non_differentiable(attention)
        return trace.reads[0][1:, :, : readout.shape[0]].contiguous(), attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        keys, values, readout, *saved = ctx.saved_tensors
        groups = [saved[k * ctx.layers : (k + 1) * ctx.layers] for k in range(5)]
        joined, trace = groups[0], _Trace(*groups[1:], *saved[5 * ctx.layers :])
        grown = _Gradients.make(trace, of_outputs)
        for t in reversed(range(of_outputs.shape[0])):
            _backward_step(t, keys, values, joined, readout, ctx.masks, trace, grown)
        low = grown.gates[0].dtype
        found = [
            grown.gates[0],
            torch.bmm(grown.scores.permute(1, 2, 0), trace.states.transpose(0, 1)),
            torch.bmm(trace.attention.permute(1, 2, 0), grown.outputs.transpose(0, 1)),
            over_positions(grown.outputs.to(low), trace.states.to(low)),
            *grown.hiddens,
            *grown.cells,
            *(over_positions(d, r[:-1]) for d, r in zip(grown.gates, trace.reads, strict=True)),
            *(d.sum((0, 1), dtype=trace.cells[0].dtype) for d in grown.gates[1:]),
        ]
        given = [g.to(kind) for g, kind in zip(found, ctx.kinds, strict=True)]
        return (*given, None, None, None)


@dataclasses.dataclass(frozen=True)
class _Gradients:
    """What the backward loop writes: carried states, and per position what products need."""

    gates: list[Tensor]
    scores: Tensor
    outputs: Tensor
    """[T, B, O], before the tanh."""
    hiddens: list[Tensor]
    cells: list[Tensor]
    fed: Tensor
    """[T, B, O] of the outputs after dropout; the fed part is added on the way."""
    scratch: Tensor

    @classmethod
    def make(cls, trace: _Trace, of_outputs: Tensor) -> _Gradients:
        """Return empty buffers, the carried ones zero."""
        low, high = trace.reads[0].dtype, trace.cells[0].dtype
        return cls(
            [torch.empty_like(g, dtype=low) for g in trace.gates],
            torch.empty_like(trace.attention),
            torch.empty_like(trace.outputs),
            [torch.zeros_like(c[0]) for c in trace.cells],
            [torch.zeros_like(c[0]) for c in trace.cells],
            of_outputs.to(high, copy=True),
            torch.empty_like(trace.gates[0][0]),
        )


def _empty_trace(
    inputs: Tensor, keys: Tensor, values: Tensor, joined: Sequence[Tensor], low: torch.dtype
) -> _Trace:
    (length, count), size = inputs.shape[:2], keys.shape[-1]
    high = torch.promote_types(low, torch.float32)

    def empty(positions: int, features: int, dtype: torch.dtype) -> Tensor:
        return inputs.new_empty((positions, count, features), dtype=dtype)

    return _Trace(
        [empty(length + 1, w.shape[1], low) for w in joined],
        [empty(length, 4 * size, high) for _ in joined],
        [empty(length + 1, size, high) for _ in joined],
        [empty(length, size, high) for _ in joined],
        empty(length, size, high),
        empty(length, keys.shape[1], high),
        empty(length, values.shape[-1], high),
    )


def _forward_step(
    t: int, below: Sequence[Tensor], keys: Tensor, values: Tensor, hide: Tensor | None,
    joined: Sequence[Tensor], readout: Tensor, masks: InputFeedingMasks, trace: _Trace,
) -> None:  # fmt: skip
    size, last = keys.shape[-1], len(joined) - 1
    for n, weight in enumerate(joined):
        gates, squashed = trace.gates[n][t], trace.squashed[n][t]
        affine(below[n], trace.reads[n][t], weight, gates)
        output = cell_forward(gates, trace.cells[n][t], trace.cells[n][t + 1], squashed)
        hidden = output * squashed
        trace.reads[n][t + 1, :, -size:] = hidden
        above = trace.states[t] if n == last else trace.reads[n + 1][t, :, :size]
        mask = masks.layers[n]
        if mask is None:
            above.copy_(hidden)
        else:
            torch.mul(hidden, mask[t], out=above)
    state = trace.states[t]
    scores = torch.bmm(state[:, None], keys.transpose(1, 2))
    scores = scores if hide is None else scores.add_(hide)
    attention = torch.softmax(scores, -1, out=trace.attention[t][:, None])
    context = torch.bmm(attention, values)[:, 0]
    output, fed = trace.outputs[t], trace.reads[0][t + 1, :, : readout.shape[0]]
    affine(context, state.to(readout.dtype), readout, output)
    squash(output, output)
    if masks.output is None:
        fed.copy_(output)
    else:
        torch.mul(output, masks.output[t], out=fed)


def _backward_step(
    t: int, keys: Tensor, values: Tensor, joined: Sequence[Tensor], readout: Tensor,
    masks: InputFeedingMasks, trace: _Trace, grown: _Gradients,
) -> None:  # fmt: skip
    size, width = keys.shape[-1], readout.shape[0]
    of_output = grown.fed[t] if masks.output is None else grown.fed[t] * masks.output[t]
    before = grown.outputs[t]
    torch.ops.aten.tanh_backward.grad_input(of_output, trace.outputs[t], grad_input=before)
    share, of_scores = trace.attention[t], grown.scores[t]
    of_share = torch.bmm(before[:, None], values.transpose(1, 2))[:, 0]
    of_scores.copy_(torch._softmax_backward_data(of_share, share, -1, share.dtype))
    above = torch.bmm(of_scores[:, None], keys)[:, 0]
    above.add_(product(before.to(readout.dtype), readout.t()))
    for n in reversed(range(len(joined))):
        mask, carried = masks.layers[n], grown.hiddens[n]
        if mask is None:
            carried.add_(above)
        else:
            carried.addcmul_(above.to(carried.dtype), mask[t])
        of_gates = grown.gates[n][t]
        out = of_gates if of_gates.dtype == carried.dtype else grown.scratch
        cell_backward(
            carried, grown.cells[n], trace.gates[n][t], trace.cells[n][t],
            trace.squashed[n][t], out,
        )  # fmt: skip
        if out is not of_gates:
            of_gates.copy_(out)
        of_reads = product(of_gates, joined[n].t())
        carried.copy_(of_reads[:, -size:])
        above = of_reads[:, :-size]
    if t:
        grown.fed[t - 1].add_(above[:, :width])
