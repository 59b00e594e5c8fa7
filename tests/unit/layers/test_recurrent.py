"""Recurrent layers against their equations and against torch's own layers, in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nmtgrid.layers.recurrent.input_feeding import run_input_feeding
from nmtgrid.layers.recurrent.lstm import (
    CellWeights,
    EncoderLSTM,
    LiveRows,
    run_lstm,
    run_rnn,
    squash,
)
from nmtgrid.training.trained_model import disable_flattening

Array = NDArray[Any]
LENGTHS = (5, 3, 3, 1)
ROWS = LiveRows((4, 3, 3, 1, 1))


def drawn(*shape: int, gradient: bool = True) -> Tensor:
    result = torch.randn(*shape, dtype=torch.float64) * 0.7
    return result.requires_grad_(gradient)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm_by_hand(inputs: Array, weight: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
    """Return the states [L, D] and the last cell of one row."""
    result = []
    for row_inputs in inputs:
        i, f, g, o = np.split(row_inputs + weight @ hidden, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        result.append(hidden)
    return np.array(result), cell


@pytest.mark.parametrize("reverse", [False, True])
def test_ragged_rows_follow_the_equations(reverse: bool) -> None:
    torch.manual_seed(1)
    inputs, weight = drawn(5, 4, 12, gradient=False), drawn(12, 3, gradient=False)
    states, hidden, cell = run_lstm(inputs, weight, ROWS, reverse=reverse)
    for row, length in enumerate(LENGTHS):
        row_inputs = inputs[:length, row].numpy()
        zero = np.zeros(3)
        result, last = lstm_by_hand(
            row_inputs[::-1] if reverse else row_inputs, weight.numpy(), zero, zero
        )
        expected = result[::-1] if reverse else result
        np.testing.assert_allclose(states[:length, row].numpy(), expected, atol=1e-12)
        assert (states[length:, row] == 0).all()
        np.testing.assert_allclose(hidden[row].numpy(), result[-1], atol=1e-12)
        np.testing.assert_allclose(cell[row].numpy(), last, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_ragged_rows(reverse: bool) -> None:
    """Also from a start that is given."""
    torch.manual_seed(2)

    def run(inputs: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return run_lstm(inputs, weight, ROWS, reverse=reverse)

    def run_from(inputs: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return run_lstm(inputs, weight, LiveRows.full(3, 2), (h, c), reverse=reverse)

    assert torch.autograd.gradcheck(run, (drawn(5, 4, 8), drawn(8, 2)))
    start = drawn(2, 2), drawn(2, 2)
    assert torch.autograd.gradcheck(run_from, (drawn(3, 2, 8), drawn(8, 2), *start))


def test_both_directions_are_the_library_layer() -> None:
    torch.manual_seed(4)
    layer = EncoderLSTM(3, 2).double()
    inputs, lengths = drawn(5, 4, 3), torch.tensor(LENGTHS)
    weights = [drawn(*shape, gradient=False) for shape in ((5, 4, 4), (4, 4), (4, 4))]

    def gradients(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        total = torch.stack([(f * w).sum() for f, w in zip(outputs, weights, strict=True)]).sum()
        return torch.autograd.grad(total, [inputs, *layer.parameters()])

    ours = layer(inputs, lengths, ROWS)
    packed, (hidden, cell) = layer.lstm(pack_padded_sequence(inputs, lengths))
    theirs = pad_packed_sequence(packed)[0], *(torch.cat(list(last), -1) for last in (hidden, cell))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours), gradients(theirs))


def test_gradients_of_the_plain_recurrence() -> None:
    torch.manual_seed(5)
    inputs, weight = drawn(4, 2, 3), drawn(3, 3)
    assert torch.autograd.gradcheck(run_rnn, (inputs, weight))
    result = run_rnn(inputs, weight).detach().numpy()
    hidden = np.zeros(3)
    for row_inputs, state in zip(inputs[:, 1].detach().numpy(), result[:, 1], strict=True):
        hidden = np.tanh(row_inputs + weight.detach().numpy() @ hidden)
        np.testing.assert_allclose(state, hidden, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_of_the_feeding_loop(layers: int, masked: bool) -> None:
    torch.manual_seed(6)
    length, rows, source, size, width = 3, 2, 4, 2, 3
    hide = torch.tensor([[[0.0, 0.0, 0.0, 0.0]], [[0.0, 0.0, -torch.inf, -torch.inf]]]).double()
    mask = (torch.rand(length, rows, size) > 0.4).double() / 0.6
    masks = [
        *(mask if masked else None for _ in range(layers)),
        (torch.rand(length, rows, width) > 0.4).double() / 0.6 if masked else None,
    ]

    def run(*row_inputs: Tensor) -> Tensor:
        inputs, keys, values, readout, *others = row_inputs
        pairs = list(zip(others[:layers], others[layers : 2 * layers], strict=True))
        joined, biases = others[2 * layers : 3 * layers], others[3 * layers :]
        weights = CellWeights(tuple(joined), tuple(biases), readout)
        return run_input_feeding(inputs, keys, values, hide, pairs, weights, masks)[0]

    reads = [width] + [size] * (layers - 1)
    row_inputs = [
        drawn(length, rows, 4 * size), drawn(rows, source, size), drawn(rows, source, width),
        drawn(width, size), *(drawn(rows, size) for _ in range(2 * layers)),
        *(drawn(4 * size, read + size) for read in reads),
        *(drawn(4 * size) for _ in reads[1:]),
    ]  # fmt: skip
    assert torch.autograd.gradcheck(run, row_inputs, fast_mode=True)


def test_bf16_keeps_close_to_fp32() -> None:
    """Rounding the factors of every product to eight bits moves a state by a per cent or so."""
    torch.manual_seed(7)
    layer = EncoderLSTM(16, 16)
    inputs, lengths = torch.randn(5, 4, 16), torch.tensor(LENGTHS)
    exact = layer(inputs, lengths, ROWS)[0]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = layer(inputs, lengths, ROWS)[0]
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.float() - exact).detach().abs().max()) < 0.03
    rounded.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


def test_the_library_keeps_fp32_under_autocast() -> None:
    """On a GPU the library's own rule is fp16, whose range sums over many tokens leave."""
    torch.manual_seed(7)
    layer = EncoderLSTM(16, 16)
    inputs, lengths = torch.randn(5, 4, 16).bfloat16(), torch.tensor(LENGTHS)
    exact = layer(inputs.float(), lengths, ROWS)
    with torch.autocast("cpu", torch.float16):
        result = layer._library(inputs, lengths)
    for mine, expected in zip(result, exact, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("both_ways", [True, False])
def test_the_library_takes_bf16_where_it_is_asked_for(both_ways: bool) -> None:
    """Results in fp32, gradients of the weights too."""
    torch.manual_seed(7)
    layer = EncoderLSTM(16, 16, both_ways)
    inputs, lengths = torch.randn(5, 4, 16), torch.tensor(LENGTHS)
    gradients, results = [], []
    for is_low in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            results.append(layer._library(inputs, lengths))
        total = torch.stack([(result * result).sum() for result in results[-1]]).sum()
        gradients.append(torch.autograd.grad(total, list(layer.parameters())))
    for pairs, tolerance in ((results, 0.01), (gradients, 0.03)):
        for exact, mine in zip(*pairs, strict=True):
            assert mine.dtype == torch.float32 and not torch.equal(mine, exact)
            assert (mine - exact).norm() < tolerance * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_library_on_a_gpu(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    layer = EncoderLSTM(16, 16)
    inputs, lengths = torch.randn(5, 4, 16).to(dtype).float(), torch.tensor(LENGTHS)
    exact = layer(inputs, lengths, ROWS)
    layer = layer.cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        result = layer(inputs.cuda().to(dtype), lengths.cuda(), ROWS)
    for mine, expected in zip(result, exact, strict=True):
        assert mine.dtype == torch.float32
        # cuDNN's states are in bf16 then, and so have eight bits.
        atol = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(mine.cpu(), expected, atol=atol, rtol=1e-2)


def test_squash_is_tanh() -> None:
    x = torch.linspace(-12, 12, 101)
    squash(x, squashed := torch.empty_like(x))
    torch.testing.assert_close(squashed, x.tanh(), atol=3e-7, rtol=0)
    assert LiveRows.of_lengths(torch.tensor(LENGTHS)) == ROWS
    assert LiveRows.full(2, 3).counts == (3, 3)


def test_a_step_is_that_of_the_library_cells() -> None:
    torch.manual_seed(8)
    cells = [nn.LSTMCell(5, 3), nn.LSTMCell(3, 3)]
    states = tuple((torch.randn(4, 3), torch.randn(4, 3)) for _ in cells)
    inputs, readout, context = torch.randn(4, 5), torch.randn(2, 3), torch.randn(4, 2)
    with torch.no_grad():
        step = CellWeights.make(cells, readout)
        result = step.advance(inputs, states)
        first = cells[0](inputs, states[0])
        second = cells[1](first[0], states[1])
    for (hidden, cell), expected in zip(result, (first, second), strict=True):
        torch.testing.assert_close(hidden, expected[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(cell, expected[1], atol=1e-6, rtol=1e-5)
    wanted_output = torch.tanh(context + second[0] @ readout.t())
    torch.testing.assert_close(step.read_out(context, second[0]), wanted_output)
    assert step.take_rows(torch.tensor([0])) is step


def test_weights_that_are_brought_together_stay_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU torch's layers would move them away, and read that place for ever after."""
    moved: list[nn.Module] = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda part: moved.append(part))
    model = nn.Sequential(nn.LSTM(3, 2), nn.GRU(2, 2))
    moved.clear()
    model.double()
    assert len(moved) == 2, "this is when it would happen"
    disable_flattening(model)
    moved.clear()
    model.float()
    assert moved == []
