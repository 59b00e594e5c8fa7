"""The plain recurrence h_t = tanh(x_t + W h_{t-1}), with a backward pass written out.

As in layers/recurrent/lstm.py, the weight gets its gradient from one product over all positions.
Shapes: T positions first, then B rows, D features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.recurrent.lstm import affine, over_positions, squash, working_dtype


def run_rnn(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return states [T, B, D] for inputs [T, B, D] and weight [D, D]; the first state is zero."""
    states: Tensor = _Recurrence.apply(inputs, weight)  # type: ignore[no-untyped-call]
    return states


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        low = working_dtype(weight)
        ready = weight.to(low)
        states = torch.empty_like(inputs, dtype=torch.promote_types(low, torch.float32))
        with torch.autocast(inputs.device.type, enabled=False):
            for t, below in enumerate(inputs):
                if t:
                    affine(below, states[t - 1].to(low), ready, states[t])
                else:
                    states[t] = below
                squash(states[t], states[t])
        ctx.save_for_backward(weight, states)
        ctx.low, ctx.kind = low, inputs.dtype
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: Tensor) -> tuple[Tensor, Tensor]:
        weight, states = ctx.saved_tensors
        turned = weight.to(ctx.low).t()
        of_inputs = torch.empty_like(states)
        carried = torch.zeros_like(states[0])
        for t in reversed(range(states.shape[0])):
            carried.add_(of_states[t])
            torch.ops.aten.tanh_backward.grad_input(carried, states[t], grad_input=of_inputs[t])
            if t:
                carried.copy_(product(of_inputs[t].to(ctx.low), turned))
        low = of_inputs.to(ctx.low)
        of_weight = over_positions(low[1:], states[:-1].to(ctx.low))
        return of_inputs.to(ctx.kind), of_weight.to(weight.dtype)
