"""An LSTM decoder with input feeding (Luong et al., 2015), with its backward pass written out.

At each position the first layer reads the embedding and the last output, each further layer the
one below, and the last layer's state s attends to the source: the output is
tanh(W [context, s]). Used by models/bilstm.py in teacher forcing.

Shapes: T target and S source positions, B sentences, D features of a layer, O of the output.
"""

# Only what hangs on the last output is computed in the loop: the embeddings' part of the gates
# comes computed for all positions, and the source comes as keys and values through which the
# projections of the query and of the context have been applied once, which is the same sum. The
# backward loop leaves the gradients of its products behind, and weights, keys and values get theirs
# from one product each over all positions. `bilstm` under training in benchmarks/results/
# cpu-1-thread.md is with this form.

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product, working_dtype
from nmtgrid.layers.recurrent.lstm import LayerTrace, affine, over_positions, squash


@dataclasses.dataclass(frozen=True)
class InputFeedingWeights:
    """The weights of the loop.

    joined: one [4 D, D' + D] for each layer, over its input (the last output, or the layer below)
    and its own state; biases: one [4 D] for each layer but the first; readout [O, D].
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

    inputs [T, B, 4 D] are the embeddings' part of the first layer's gates, biases included;
    keys [B, S, D] and values [B, S, O]; hide [B, 1, S] is added to the scores (None: nothing);
    `start` has each layer's states [B, D] before the first position.
    """
    hiddens, cells = zip(*start, strict=True)
    result: tuple[Tensor, Tensor] = _InputFeeding.apply(  # type: ignore[no-untyped-call]
        hide, masks, inputs, keys, values, weights.readout,
        *hiddens, *cells, *weights.joined, *weights.biases,
    )  # fmt: skip
    return result


@dataclasses.dataclass(frozen=True)
class _Trace:
    """All that the loop leaves for the backward pass.

    states [T, B, D] are the last layer's after dropout, attention [T, B, S], and outputs
    [T, B, O] before dropout. The first layer's inputs have the outputs after dropout.
    """

    layers: list[LayerTrace]
    states: Tensor
    attention: Tensor
    outputs: Tensor


class _InputFeeding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hide: Tensor | None, masks: InputFeedingMasks, inputs: Tensor, keys: Tensor,
        values: Tensor, readout: Tensor, *others: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        count = len(masks.layers)
        hiddens, cells = others[:count], others[count : 2 * count]
        low, size, width = working_dtype(readout), keys.shape[-1], readout.shape[0]
        ctx.dtypes = [tensor.dtype for tensor in (inputs, keys, values, readout, *others)]
        joined = [weight.to(low) for weight in others[2 * count : 3 * count]]
        biases = [bias.to(low) for bias in others[3 * count :]]
        layers = [LayerTrace.zeros(inputs, size, weight.shape[1], low) for weight in joined]
        for layer, hidden, cell in zip(layers, hiddens, cells, strict=True):
            layer.inputs[0, :, -size:], layer.cells[0] = hidden, cell
        # Attention stays in fp32: its products are too thin for bf16 to be faster.
        high = layers[0].cells.dtype
        keys, values, readout = keys.to(high), values.to(high), readout.to(low)
        steps = (*inputs.shape[:2],)
        trace = _Trace(
            layers,
            *(inputs.new_empty((*steps, n), dtype=high) for n in (size, keys.shape[1], width)),
        )
        with torch.autocast(inputs.device.type, enabled=False):
            for t in range(len(inputs)):
                below = [inputs[t], *biases]
                _forward_step(t, below, keys, values, hide, joined, readout, masks, trace)
        ctx.masks = masks
        ctx.save_for_backward(
            keys, values, readout, trace.states, trace.attention, trace.outputs, *joined,
            *(buffer for layer in layers for buffer in vars(layer).values()),
        )  # fmt: skip
        attention = trace.attention.transpose(0, 1)
        ctx.mark_non_differentiable(attention)
        return layers[0].inputs[1:, :, :width].contiguous(), attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        keys, values, readout, states, attention, outputs, *saved = ctx.saved_tensors
        count = len(ctx.masks.layers)
        joined, buffers = saved[:count], saved[count:]
        layers = [LayerTrace(*buffers[4 * n : 4 * n + 4]) for n in range(count)]
        trace = _Trace(layers, states, attention, outputs)
        gradients = _Gradients.of(trace, of_outputs)
        for t in reversed(range(len(of_outputs))):
            _backward_step(t, keys, values, joined, readout, ctx.masks, trace, gradients)
        low, high = readout.dtype, states.dtype
        of_raw, of_gates = gradients.outputs, gradients.gates
        of_joined = [
            over_positions(of_gate, layer.inputs[:-1])
            for of_gate, layer in zip(of_gates, layers, strict=True)
        ]
        of_inputs = [
            of_gates[0],
            torch.bmm(gradients.scores.permute(1, 2, 0), states.transpose(0, 1)),
            torch.bmm(attention.permute(1, 2, 0), of_raw.transpose(0, 1)),
            over_positions(of_raw.to(low), states.to(low)),
            *gradients.hiddens,
            *gradients.cells,
            *of_joined,
            *(of_gate.sum((0, 1), dtype=high) for of_gate in of_gates[1:]),
        ]
        cast = (tensor.to(dtype) for tensor, dtype in zip(of_inputs, ctx.dtypes, strict=True))
        return None, None, *cast


@dataclasses.dataclass(frozen=True)
class _Gradients:
    """Gradients that the backward loop writes for each position, and those that it carries.

    gates [T, B, 4 D], scores [T, B, S] and outputs [T, B, O], before the tanh; hiddens and cells
    [B, D] are carried; fed [T, B, O] are those of the outputs after dropout, to which each
    position adds what the next one read of them.
    """

    gates: list[Tensor]
    scores: Tensor
    outputs: Tensor
    hiddens: list[Tensor]
    cells: list[Tensor]
    fed: Tensor

    @classmethod
    def of(cls, trace: _Trace, of_outputs: Tensor) -> _Gradients:
        """Return empty buffers, the carried ones zero."""
        low, high = trace.layers[0].inputs.dtype, trace.states.dtype
        return cls(
            [torch.empty_like(layer.gates, dtype=low) for layer in trace.layers],
            torch.empty_like(trace.attention),
            torch.empty_like(trace.outputs),
            [torch.zeros_like(layer.cells[0]) for layer in trace.layers],
            [torch.zeros_like(layer.cells[0]) for layer in trace.layers],
            of_outputs.to(high, copy=True),
        )


def _forward_step(
    t: int, below: Sequence[Tensor], keys: Tensor, values: Tensor, hide: Tensor | None,
    joined: Sequence[Tensor], readout: Tensor, masks: InputFeedingMasks, trace: _Trace,
) -> None:  # fmt: skip
    size, state, layers = keys.shape[-1], trace.states[t], trace.layers
    for n, (layer, weight, mask) in enumerate(zip(layers, joined, masks.layers, strict=True)):
        hidden = layer.forward(t, below[n], weight)
        layer.inputs[t + 1, :, -size:] = hidden
        above = state if n == len(layers) - 1 else layers[n + 1].inputs[t, :, :size]
        if mask is None:
            above.copy_(hidden)
        else:
            torch.mul(hidden, mask[t], out=above)
    # Keys are projected already, so the state itself is the query.
    scores = torch.bmm(state[:, None], keys.transpose(1, 2))
    scores = scores if hide is None else scores.add_(hide)
    attention = torch.softmax(scores, -1, out=trace.attention[t][:, None])
    context = torch.bmm(attention, values)[:, 0]
    output, fed = trace.outputs[t], layers[0].inputs[t + 1, :, : readout.shape[0]]
    affine(context, state.to(readout.dtype), readout, output)
    squash(output, output)
    if masks.output is None:
        fed.copy_(output)
    else:
        torch.mul(output, masks.output[t], out=fed)


def _backward_step(
    t: int, keys: Tensor, values: Tensor, joined: Sequence[Tensor], readout: Tensor,
    masks: InputFeedingMasks, trace: _Trace, gradients: _Gradients,
) -> None:  # fmt: skip
    size, width = keys.shape[-1], readout.shape[0]
    of_fed = gradients.fed[t]
    of_output = of_fed if masks.output is None else of_fed * masks.output[t]
    of_raw = gradients.outputs[t]
    torch.ops.aten.tanh_backward.grad_input(of_output, trace.outputs[t], grad_input=of_raw)
    share, of_scores = trace.attention[t], gradients.scores[t]
    of_share = torch.bmm(of_raw[:, None], values.transpose(1, 2))[:, 0]
    of_scores.copy_(torch._softmax_backward_data(of_share, share, -1, share.dtype))
    above = torch.bmm(of_scores[:, None], keys)[:, 0]
    above.add_(product(of_raw.to(readout.dtype), readout.t()))
    for n in reversed(range(len(joined))):
        mask, carried = masks.layers[n], gradients.hiddens[n]
        if mask is None:
            carried.add_(above)
        else:
            carried.addcmul_(above.to(carried.dtype), mask[t])
        of_gates = trace.layers[n].backward(t, carried, gradients.cells[n], gradients.gates[n])
        of_inputs = product(of_gates, joined[n].t())
        carried.copy_(of_inputs[:, -size:])
        above = of_inputs[:, :-size]
    # The first layer read the output of the position before, after dropout.
    if t:
        gradients.fed[t - 1].add_(above[:, :width])
