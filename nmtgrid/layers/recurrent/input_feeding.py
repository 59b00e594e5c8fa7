"""An LSTM decoder with input feeding (Luong et al., 2015), with its backward pass written out.

At each position the first layer reads the embedding and the previous output, each further layer
the one below, and the last layer's state s attends to the source: the output is
tanh(W [context, s]). Used by models/bilstm.py in teacher forcing.

Shapes: T target and S source positions, B sentences, D features of a layer, O of the output.
"""

# Only what depends on the previous output is computed in the loop. The embeddings' part of the
# gates is computed beforehand for all positions, and the projections of query and context have been
# applied to the source's keys and values once, which gives the same sum. The backward loop stores
# the gradients of its products; those of weights, keys and values then take one product each over
# all positions. `bilstm` under training in benchmarks/results/cpu-1-thread.md uses this form.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product, working_dtype
from nmtgrid.layers.recurrent.lstm import (
    CellWeights,
    LayerTrace,
    affine,
    over_positions,
    squash,
)

Masks = Sequence[Tensor | None]


def run_input_feeding(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    hide: Tensor | None,
    start: Sequence[tuple[Tensor, Tensor]],
    weights: CellWeights,
    masks: Masks,
) -> tuple[Tensor, Tensor]:
    """Return outputs [T, B, O] after dropout, and the attention [B, T, S], which has no gradient.

    inputs [T, B, 4 D] are the embeddings' part of the first layer's gates, biases included;
    keys [B, S, D] and values [B, S, O]; hide [B, 1, S] is added to the scores (None: nothing);
    `start` has each layer's states [B, D] before the first position. The first layer of `weights`
    reads the previous output and its own state, and `biases` are those of the layers above it.
    masks: scaled dropout masks (or None) of each layer [T, B, D] and, last, the outputs [T, B, O].
    """
    hiddens, cells = zip(*start, strict=True)
    result: tuple[Tensor, Tensor] = _InputFeeding.apply(  # type: ignore[no-untyped-call]
        hide, masks, inputs, keys, values, weights.readout,
        *hiddens, *cells, *weights.joined, *weights.biases,
    )  # fmt: skip
    return result


class _InputFeeding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hide: Tensor | None, masks: Masks, inputs: Tensor, keys: Tensor, values: Tensor,
        readout: Tensor, *others: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        count, steps = len(masks) - 1, inputs.shape[:2]
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
        # The last layer's states after dropout, the attention, and the outputs before dropout; the
        # outputs after dropout are in the first layer's inputs.
        states, attention, outputs = (
            inputs.new_empty((*steps, n), dtype=high) for n in (size, keys.shape[1], width)
        )
        with torch.autocast(inputs.device.type, enabled=False):
            for t in range(len(inputs)):
                for n, (layer, weight) in enumerate(zip(layers, joined, strict=True)):
                    hidden = layer.forward(t, biases[n - 1] if n else inputs[t], weight)
                    layer.inputs[t + 1, :, -size:] = hidden
                    above = layers[n + 1].inputs[t, :, :size] if n + 1 < count else states[t]
                    _drop(hidden, masks[n], t, above)
                # Keys are projected already, so the state itself is the query.
                scores = torch.bmm(states[t][:, None], keys.transpose(1, 2))
                scores = scores if hide is None else scores.add_(hide)
                shares = torch.softmax(scores, -1, out=attention[t][:, None])
                context = torch.bmm(shares, values)[:, 0]
                affine(context, states[t].to(low), readout, outputs[t])
                squash(outputs[t], outputs[t])
                _drop(outputs[t], masks[-1], t, layers[0].inputs[t + 1, :, :width])
        ctx.masks = masks
        ctx.save_for_backward(
            keys, values, readout, states, attention, outputs, *joined,
            *(buffer for layer in layers for buffer in vars(layer).values()),
        )  # fmt: skip
        attention = attention.transpose(0, 1)
        ctx.mark_non_differentiable(attention)
        return layers[0].inputs[1:, :, :width].contiguous(), attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        keys, values, readout, states, attention, outputs, *saved = ctx.saved_tensors
        masks, count, size, width = ctx.masks, len(ctx.masks) - 1, keys.shape[-1], len(readout)
        joined, buffers = saved[:count], saved[count:]
        layers = [LayerTrace(*buffers[4 * n : 4 * n + 4]) for n in range(count)]
        low, high = readout.dtype, states.dtype
        # Gradients of the outputs after dropout; each position adds to that of the one before it.
        of_fed = of_outputs.to(high, copy=True)
        of_gates = [torch.empty_like(layer.gates, dtype=low) for layer in layers]
        of_scores, of_raw = torch.empty_like(attention), torch.empty_like(outputs)
        hiddens = [torch.zeros_like(layer.cells[0]) for layer in layers]
        cells = [torch.zeros_like(layer.cells[0]) for layer in layers]
        for t in reversed(range(len(of_outputs))):
            of_output = of_fed[t] if masks[-1] is None else of_fed[t] * masks[-1][t]
            torch.ops.aten.tanh_backward.grad_input(of_output, outputs[t], grad_input=of_raw[t])
            share = attention[t]
            of_share = torch.bmm(of_raw[t][:, None], values.transpose(1, 2))[:, 0]
            of_scores[t] = torch._softmax_backward_data(of_share, share, -1, share.dtype)
            above = torch.bmm(of_scores[t][:, None], keys)[:, 0]
            above.add_(product(of_raw[t].to(low), readout.t()))
            for n in reversed(range(count)):
                mask, carried = masks[n], hiddens[n]
                if mask is None:
                    carried.add_(above)
                else:
                    carried.addcmul_(above.to(carried.dtype), mask[t])
                gates = layers[n].backward(t, carried, cells[n], of_gates[n])
                of_inputs = product(gates, joined[n].t())
                carried.copy_(of_inputs[:, -size:])
                above = of_inputs[:, :-size]
            # The first layer read the output of the position before, after dropout.
            if t:
                of_fed[t - 1].add_(above[:, :width])
        gradients = [
            of_gates[0],
            torch.bmm(of_scores.permute(1, 2, 0), states.transpose(0, 1)),
            torch.bmm(attention.permute(1, 2, 0), of_raw.transpose(0, 1)),
            over_positions(of_raw.to(low), states.to(low)),
            *hiddens,
            *cells,
            *(over_positions(of_gates[n], layer.inputs[:-1]) for n, layer in enumerate(layers)),
            *(of_gate.sum((0, 1), dtype=high) for of_gate in of_gates[1:]),
        ]
        cast = (tensor.to(dtype) for tensor, dtype in zip(gradients, ctx.dtypes, strict=True))
        return None, None, *cast


def _drop(states: Tensor, mask: Tensor | None, t: int, out: Tensor) -> None:
    if mask is None:
        out.copy_(states)
    else:
        torch.mul(states, mask[t], out=out)
