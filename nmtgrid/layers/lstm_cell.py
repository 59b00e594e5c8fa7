"""One position of an LSTM layer, for decoders whose next position hangs on more than its states.

Shapes: R rows, D features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.recurrent import cell_backward, cell_forward


def advance_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden state and the new cell [R, D], for gates [R, 4 D] before activation."""
    found: tuple[Tensor, Tensor] = _Cell.apply(gates, cell)  # type: ignore[no-untyped-call]
    return found


class _Cell(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        active = gates.to(cell.dtype, copy=True)
        new_cell, squashed = torch.empty_like(cell), torch.empty_like(cell)
        hidden = cell_forward(active, cell, new_cell, squashed) * squashed
        ctx.kind = gates.dtype
        ctx.save_for_backward(active, cell, squashed)
        return hidden, new_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_hidden: Tensor, of_cell: Tensor) -> tuple[Tensor, Tensor]:
        active, cell, squashed = ctx.saved_tensors
        of_cell, of_gates = of_cell.clone(), torch.empty_like(active)
        cell_backward(of_hidden, of_cell, active, cell, squashed, of_gates)
        return of_gates.to(ctx.kind), of_cell
