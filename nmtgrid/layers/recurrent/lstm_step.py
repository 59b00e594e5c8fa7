"""One decoding step of stacked LSTM cells, with weights made ready once for a whole search.

Shapes: R rows, D features of a layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.recurrent.lstm import affine, cell_forward, working_dtype

States = tuple[tuple[Tensor, Tensor], ...]
"""Hidden state and cell [R, D] of each layer."""


@dataclasses.dataclass(frozen=True)
class StepWeights:
    """Each layer's [4 D, D' + D] over what it reads and its state, bias [4 D]; a readout [O, D]."""

    joined: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    readout: Tensor

    @classmethod
    def make(cls, cells: Iterable[nn.Module], readout: Tensor) -> StepWeights:
        """Return the weights of `cells` (nn.LSTMCell) in the precision of products."""
        low = working_dtype(readout)
        joined, biases = [], []
        for cell in cells:
            assert isinstance(cell, nn.LSTMCell)
            joined.append(torch.cat([cell.weight_ih, cell.weight_hh], 1).to(low))
            biases.append(cell.bias_ih + cell.bias_hh)
        return cls(tuple(joined), tuple(biases), readout.to(low).contiguous())

    def take_rows(self, rows: Tensor) -> StepWeights:
        """Return the same weights: they have no rows."""
        return self

    def advance(self, inputs: Tensor, states: States) -> States:
        """Return the layers' new states after the lowest has read `inputs` [R, D']."""
        above, found = inputs, []
        for weight, bias, (hidden, cell) in zip(self.joined, self.biases, states, strict=True):
            read = torch.cat([above, hidden], 1).to(weight.dtype)
            gates = cell.new_empty(cell.shape[0], weight.shape[0])
            affine(bias, read, weight, gates)
            new_cell, squashed = torch.empty_like(cell), torch.empty_like(cell)
            above = cell_forward(gates, cell, new_cell, squashed).mul(squashed)
            found.append((above, new_cell))
        return tuple(found)

    def read_out(self, context: Tensor, state: Tensor) -> Tensor:
        """Return tanh(context + readout state) [R, O]."""
        low = self.readout.dtype
        return torch.tanh(torch.add(product(state.to(low), self.readout), context))
