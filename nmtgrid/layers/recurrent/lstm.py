"""LSTM layers and the plain recurrence, with backward passes written out (section 2.6.1).

Used by models/bilstm.py, models/convrnn.py and the caption models; input_feeding.py and top_down.py
build their loops from its parts.

Shapes: T or L positions first, then B or R rows, D features. Gates are in torch's order: input,
forget, candidate, output.
"""

# On a CPU torch runs an LSTM as many small operations, each with a node in the graph. Here the loop
# computes only what depends on the previous state and stores the gradients of its products, and
# each weight gets its gradient from one product over all positions. `bilstm` and `convrnn` in
# benchmarks/results/cpu-1-thread.md use this form; on CUDA encoders use cuDNN.

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from nmtgrid.base.rows import host_values
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import apply, linear, product, working_dtype


@dataclasses.dataclass(frozen=True)
class LiveRows:
    """The rows that are live at each position: the first `counts[t]` rows, sorted by length."""

    counts: tuple[int, ...]

    @classmethod
    def full(cls, positions: int, rows: int) -> LiveRows:
        """Return `rows` live rows at every position."""
        return cls((rows,) * positions)

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> LiveRows:
        """Return the live rows for non-increasing lengths [B]."""
        values = host_values(lengths)
        counts = (sum(length > position for length in values) for position in range(values[0]))
        return cls(tuple(counts))


def squash(x: Tensor, out: Tensor) -> None:
    """Write tanh(x) into `out`, which may be x."""
    if x.device.type != "cpu":
        torch.tanh(x, out=out)
        return
    # As 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is ten times as fast as its tanh.
    torch.mul(x, 2.0, out=out).sigmoid_().mul_(2.0).sub_(1.0)


def affine(below: Tensor, read: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write below + read weight^T into `out`, which may be more precise than the factors."""
    # The product is in the factors' type, the sum in that of `out`: in autocast bf16 and fp32.
    torch.add(product(read, weight), below, out=out)


def cell_forward(gates: Tensor, cell: Tensor, new_cell: Tensor, squashed: Tensor) -> Tensor:
    """Activate `gates` [R, 4 D] in place, write the new cell and its tanh; return the output gate.

    The hidden state is the output gate times `squashed`.
    """
    size = cell.shape[-1]
    candidate = gates[:, 2 * size : 3 * size]
    # One pass over all gates, with the candidate's tanh as in `squash`.
    candidate.mul_(2.0)
    gates.sigmoid_()
    candidate.mul_(2.0).sub_(1.0)
    torch.mul(gates[:, size : 2 * size], cell, out=new_cell)
    new_cell.addcmul_(gates[:, :size], candidate)
    squash(new_cell, squashed)
    return gates[:, 3 * size :]


def cell_step(below: Tensor, inputs: Tensor, weight: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return an LSTM's new hidden state and cell [R, D], without a gradient.

    The gates are below + inputs weight^T, for `inputs` [R, D' + D], which include its own state.
    """
    gates = cell.new_empty(cell.shape[0], weight.shape[0])
    affine(below, inputs, weight, gates)
    new_cell, squashed = torch.empty_like(cell), torch.empty_like(cell)
    return cell_forward(gates, cell, new_cell, squashed) * squashed, new_cell


def cell_backward(
    of_hidden: Tensor, of_cell: Tensor, gates: Tensor, cell: Tensor, squashed: Tensor, out: Tensor
) -> None:
    """Write the gradient of the gates before activation into `out` [R, 4 D].

    of_hidden [R, D] is the gradient of the hidden state; of_cell [R, D] that of the new cell on
    entry and of the previous `cell` on return.
    """
    # Written into `out` piece by piece: no temporary of the width of all gates.
    size = cell.shape[-1]
    first, forget, candidate, last = (slice(k * size, (k + 1) * size) for k in range(4))
    through = torch.mul(of_hidden, gates[:, last])
    of_cell.add_(torch.ops.aten.tanh_backward(through, squashed))
    torch.mul(of_hidden, squashed, out=out[:, last])
    torch.mul(of_cell, gates[:, candidate], out=out[:, first])
    torch.mul(of_cell, cell, out=out[:, forget])
    torch.mul(of_cell, gates[:, first], out=through)
    sigmoid, pair = torch.ops.aten.sigmoid_backward, slice(0, 2 * size)
    sigmoid.grad_input(out[:, pair], gates[:, pair], grad_input=out[:, pair])
    sigmoid.grad_input(out[:, last], gates[:, last], grad_input=out[:, last])
    torch.ops.aten.tanh_backward.grad_input(
        through, gates[:, candidate], grad_input=out[:, candidate]
    )
    of_cell.mul_(gates[:, forget])


@dataclasses.dataclass(frozen=True)
class LayerTrace:
    """Buffers of one LSTM layer in a loop, for its backward pass.

    Position t reads slot t of inputs [T + 1, B, W], with its own state last in W, and of cells
    [T + 1, B, D]; it writes slot t of gates [T, B, 4 D] and of squashed cells [T, B, D].
    """

    inputs: Tensor
    gates: Tensor
    cells: Tensor
    squashed: Tensor

    @classmethod
    def zeros(cls, like: Tensor, size: int, width: int, low: torch.dtype) -> LayerTrace:
        """Return buffers for [T, B] of `like`; the first states are zero."""
        (length, count), high = like.shape[:2], torch.promote_types(low, torch.float32)
        inputs = like.new_zeros((length + 1, count, width), dtype=low)
        gates = like.new_empty((length, count, 4 * size), dtype=high)
        cells = like.new_zeros((length + 1, count, size), dtype=high)
        return cls(inputs, gates, cells, like.new_empty((length, count, size), dtype=high))

    def forward(self, t: int, below: Tensor, weight: Tensor) -> Tensor:
        """Return the hidden state [B, D] of position t."""
        gates, squashed = self.gates[t], self.squashed[t]
        affine(below, self.inputs[t], weight, gates)
        return cell_forward(gates, self.cells[t], self.cells[t + 1], squashed) * squashed

    def backward(self, t: int, of_hidden: Tensor, of_cell: Tensor, of_gates: Tensor) -> Tensor:
        """Return the gradient of position t's gates, in `of_gates` [T, B, 4 D].

        `of_cell` becomes the gradient of the previous cell.
        """
        out = of_gates[t]
        # The sums of a position stay in fp32; only the finished gradient is rounded.
        exact = out if out.dtype == of_cell.dtype else torch.empty_like(out, dtype=of_cell.dtype)
        cell_backward(of_hidden, of_cell, self.gates[t], self.cells[t], self.squashed[t], exact)
        if exact is not out:
            out.copy_(exact)
        return out


def run_lstm(
    inputs: Tensor,
    weight: Tensor,
    rows: LiveRows,
    start: tuple[Tensor, Tensor] | None = None,
    *,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states [L, B, D] (zero where a row is not live) and both last states [B, D].

    inputs [L, B, 4 D] are the gates' inputs from the layer below, biases included; weight [4 D, D]
    is the recurrent one; `start` the states [B, D] before the first position (None: zeros; only
    then may `reverse` run ragged rows from their last position to the first).
    """
    size = weight.shape[1]
    if start is None:
        zeros = inputs.new_zeros(inputs.shape[1], size)
        start = (zeros, zeros)
    states: tuple[Tensor, Tensor, Tensor] = _Sequence.apply(  # type: ignore[no-untyped-call]
        inputs, weight, *start, rows, reverse
    )
    return states


class _Sequence(torch.autograd.Function):
    """Position t reads slot t of each buffer and writes slot t + 1; in reverse it is vice versa.

    Rows that are not live yet are zero in every slot, so a row that starts late reads zeros.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
        rows: LiveRows,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        length, count, size = *inputs.shape[:2], weight.shape[1]
        low = working_dtype(weight)
        high = torch.promote_types(low, torch.float32)
        is_ragged = rows.counts[-1] < count
        # Only ragged rows leave slots unwritten, and these must read as zero.
        make = weight.new_zeros if is_ragged else weight.new_empty
        gates = make((length, count, 4 * size), dtype=high)
        squashed = make((length, count, size), dtype=high)
        hiddens = make((length + 1, count, size), dtype=low)
        cells = make((length + 1, count, size), dtype=high)
        first, last = (length, 0) if reverse else (0, length)
        hiddens[first], cells[first] = hidden, cell
        low_weight = weight.to(low)
        with torch.autocast(inputs.device.type, enabled=False):
            for t in range(length)[:: -1 if reverse else 1]:
                live, before, after = rows.counts[t], t + reverse, t + 1 - reverse
                gate, new_cell = gates[t, :live], cells[after, :live]
                affine(inputs[t, :live], hiddens[before, :live], low_weight, gate)
                output = cell_forward(gate, cells[before, :live], new_cell, squashed[t, :live])
                torch.mul(output, squashed[t, :live], out=hiddens[after, :live])
        ctx.rows, ctx.reverse, ctx.dtypes = rows, reverse, (inputs.dtype, hidden.dtype, cell.dtype)
        ctx.save_for_backward(weight, gates, squashed, hiddens, cells)
        states = hiddens[:length] if reverse else hiddens[1:]
        if reverse or not is_ragged:
            return states, hiddens[last].to(hidden.dtype), cells[last].to(cell.dtype)
        # The last state of a row is in the slot after its own last position.
        index = torch.arange(count)
        ends = (torch.tensor(rows.counts)[None] > index[:, None]).sum(1).to(hiddens.device)
        index = index.to(hiddens.device)
        return states, hiddens[ends, index].to(hidden.dtype), cells[ends, index].to(cell.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_states: Tensor, of_hidden: Tensor, of_cell: Tensor
    ) -> tuple[Tensor | None, ...]:
        weight, gates, squashed, hiddens, cells = ctx.saved_tensors
        length, count, size = squashed.shape
        rows, reverse = ctx.rows, ctx.reverse
        low, high = hiddens.dtype, cells.dtype
        make = torch.zeros_like if rows.counts[-1] < count else torch.empty_like
        of_gates = make(gates, dtype=low)
        exact = gates.new_empty(count, 4 * size) if low != high else None
        of_hidden, of_cell = of_hidden.to(high, copy=True), of_cell.to(high, copy=True)
        transposed = weight.to(low).t()
        # Rows that are not live at t keep their gradients, which are those of their last states.
        for t in range(length)[:: 1 if reverse else -1]:
            live, before = rows.counts[t], t + reverse
            carried = of_hidden[:live]
            carried.add_(of_states[t, :live])
            out = of_gates[t, :live] if exact is None else exact[:live]
            gate, cell = gates[t, :live], cells[before, :live]
            cell_backward(carried, of_cell[:live], gate, cell, squashed[t, :live], out)
            if exact is not None:
                of_gates[t, :live] = out
            carried.copy_(product(of_gates[t, :live], transposed))
        of_weight = over_positions(of_gates, hiddens[1:] if reverse else hiddens[:length])
        of_inputs, dtypes = of_gates.to(ctx.dtypes[0]), ctx.dtypes
        of_start = of_hidden.to(dtypes[1]), of_cell.to(dtypes[2])
        return of_inputs, of_weight.to(weight.dtype), *of_start, None, None


def over_positions(of_result: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient [O, D] of a weight, for results [L, B, O] and inputs [L, B, D]."""
    return product(of_result.flatten(0, 1).t(), inputs.flatten(0, 1).t())


class EncoderLSTM(nn.Module):
    """One layer that reads sentences in both directions: states [L, B, 2 D], inputs [L, B, D'].

    Without `both_ways` it reads only forwards, and all states have D features.
    """

    def __init__(self, input_size: int, size: int, both_ways: bool = True) -> None:
        super().__init__()
        self.size = size
        self.lstm = nn.LSTM(input_size, size, bidirectional=both_ways)

    def forward(
        self, inputs: Tensor, lengths: Tensor, rows: LiveRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return states [L, B, 2 D] (zero on padding) and last states [B, 2 D], longest first.

        lengths [B] are non-increasing; the last states of both directions are concatenated.
        """
        lstm = self.lstm
        if inputs.is_cuda:
            return self._library(inputs, lengths)
        directions = []
        for reverse in (False, True) if lstm.bidirectional else (False,):
            end = "_l0_reverse" if reverse else "_l0"
            bias = getattr(lstm, "bias_ih" + end) + getattr(lstm, "bias_hh" + end)
            below = linear(inputs, getattr(lstm, "weight_ih" + end), bias)
            recurrent = getattr(lstm, "weight_hh" + end)
            directions.append(run_lstm(below, recurrent, rows, reverse=reverse))
        states, hidden, cell = (torch.cat(pair, -1) for pair in zip(*directions, strict=True))
        return states, hidden, cell

    def _library(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lstm, low = self.lstm, self.lstm.all_weights[0][0].dtype
        if working_dtype(inputs) is torch.bfloat16:
            low = torch.bfloat16
        # Not under autocast, which would run cuDNN in fp16 whatever its type is.
        with torch.autocast(inputs.device.type, enabled=False):
            on_host = torch.tensor(host_values(lengths))
            packed = pack_padded_sequence(inputs.to(low), on_host)
            weights, both = self._weights(low), lstm.bidirectional
            start = packed.data.new_zeros(1 + both, len(lengths), self.size)
            states, hidden, cell = torch.lstm(
                packed.data, packed.batch_sizes, [start, start], weights, True, 1, 0.0,
                self.training, both,
            )  # fmt: skip
            high = torch.promote_types(low, torch.float32)
            padded, _ = pad_packed_sequence(PackedSequence(states.to(high), packed.batch_sizes))
        hidden, cell = (torch.cat(list(last.to(high)), -1) for last in (hidden, cell))
        return padded, hidden, cell

    def _weights(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the library's weights in `dtype`, cast together into one buffer."""
        weights: list[Tensor] = self.lstm._flat_weights  # type: ignore[assignment]
        if weights[0].dtype == dtype:
            return weights
        # cuDNN's order, matrices before biases: in another order it would copy them again.
        order = sorted(range(len(weights)), key=lambda index: index % 4 > 1)
        flat = torch.cat([weights[index].flatten() for index in order]).to(dtype)
        cast = list(weights)
        for index, part in zip(order, flat.split([weights[i].numel() for i in order]), strict=True):
            cast[index] = part.view_as(weights[index])
        return cast


class LayerOutput(nn.Module):
    """Dropout on the output of a layer; a module, so that it can be a probe point."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, states: Tensor) -> Tensor:
        return dropout(states, self.rate, self.training)


def draw_uniform(module: nn.Module, size: int) -> None:
    """Draw every parameter of `module` uniformly from +-1.6 / sqrt(size), 0.1 at 256 features."""
    bound = 1.6 * size**-0.5
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound)


States = tuple[tuple[Tensor, Tensor], ...]
"""Hidden state and cell [R, D] of each layer."""


@dataclasses.dataclass(frozen=True)
class CellWeights:
    """Weights of a loop or step: each layer's [4 D, D' + D] and bias [4 D], and a readout [O, D].

    A layer's weight applies to its input and state. `make` joins and casts them once per search.
    """

    joined: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    readout: Tensor

    @classmethod
    def make(cls, cells: Iterable[nn.Module], readout: Tensor) -> CellWeights:
        """Return the weights of `cells` (nn.LSTMCell) in the precision of products."""
        low = working_dtype(readout)
        joined, biases = [], []
        for cell in cells:
            assert isinstance(cell, nn.LSTMCell)
            joined.append(torch.cat([cell.weight_ih, cell.weight_hh], 1).to(low))
            biases.append(cell.bias_ih + cell.bias_hh)
        return cls(tuple(joined), tuple(biases), readout.to(low).contiguous())

    def take_rows(self, rows: Tensor) -> CellWeights:
        return self

    def advance(self, inputs: Tensor, states: States) -> States:
        """Return the layers' new states after the lowest layer has read `inputs` [R, D']."""
        above, advanced = inputs, []
        for weight, bias, (hidden, cell) in zip(self.joined, self.biases, states, strict=True):
            joined = torch.cat([above, hidden], 1).to(weight.dtype)
            above, new_cell = cell_step(bias, joined, weight, cell)
            advanced.append((above, new_cell))
        return tuple(advanced)

    def read_out(self, context: Tensor, state: Tensor) -> Tensor:
        """Return tanh(context + readout state) [R, O]."""
        low = self.readout.dtype
        return torch.tanh(torch.add(product(state.to(low), self.readout), context))


def run_rnn(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return states [T, B, D] for inputs [T, B, D] and weight [D, D]; the first state is zero."""
    return apply(_Recurrence, inputs, weight)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        low = working_dtype(weight)
        low_weight = weight.to(low)
        states = torch.empty_like(inputs, dtype=torch.promote_types(low, torch.float32))
        with torch.autocast(inputs.device.type, enabled=False):
            for t, below in enumerate(inputs):
                if t:
                    affine(below, states[t - 1].to(low), low_weight, states[t])
                else:
                    states[t] = below
                squash(states[t], states[t])
        ctx.save_for_backward(weight, states)
        ctx.low, ctx.dtype = low, inputs.dtype
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: Tensor) -> tuple[Tensor, Tensor]:
        weight, states = ctx.saved_tensors
        transposed = weight.to(ctx.low).t()
        of_inputs = torch.empty_like(states)
        # The gradient that position t passes to t - 1, in one buffer for the whole loop.
        carried = torch.zeros_like(states[0])
        for t in reversed(range(states.shape[0])):
            carried.add_(of_states[t])
            torch.ops.aten.tanh_backward.grad_input(carried, states[t], grad_input=of_inputs[t])
            if t:
                carried.copy_(product(of_inputs[t].to(ctx.low), transposed))
        low = of_inputs.to(ctx.low)
        of_weight = over_positions(low[1:], states[:-1].to(ctx.low))
        return of_inputs.to(ctx.dtype), of_weight.to(weight.dtype)
