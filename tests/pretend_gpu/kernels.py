"""Stand-ins for kernels that the CPU cannot run: Triton's, fused attention, cuDNN's LSTM."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import nmtgrid.layers.attention
from nmtgrid.layers.kernels import (
    dropout_triton,
    grid_conv,
    grid_conv_triton,
    linear,
    relu_triton,
    scaled_sum_triton,
    triton_support,
)
from nmtgrid.layers.kernels.grid_conv import CpuGridConvolution
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.recurrent import lstm
from tests.pretend_gpu.device import Device, PretendTensor, in_fp32, on_gpu, run_on_cpu, values


def install() -> None:
    """Replace the functions with the stand-ins; this cannot be undone."""
    nmtgrid.layers.attention.scaled_dot_product_attention = _attention  # type: ignore[attr-defined, assignment]
    triton_support.has_triton = lambda: True  # type: ignore[assignment]
    grid_conv_triton.convolve_cells = _convolve_cells
    grid_conv_triton.weight_gradient = _weight_gradient
    grid_conv_triton.convolve_step = _convolve_step
    dropout_triton._launch = _launch_residual
    scaled_sum_triton.scaled_sum = _scaled_sum
    relu_triton.rectifier_backward = _rectifier_backward
    lstm.EncoderLSTM._library = _lstm  # type: ignore[method-assign, assignment]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values_: Tensor, mask: Tensor | None, causal: bool,
        scale: float | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(query, keys, values_)
        ctx.options = mask, causal, scale
        result: Tensor = run_on_cpu(
            "attention", 1, functools.partial(_attend, causal=causal, scale=scale),
            query, keys, values_, mask,
        )  # fmt: skip
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mask, causal, scale = ctx.options

        def differentiate(outer: Tensor, mask: Tensor | None, *inputs: Tensor) -> Any:
            leaves = [leaf.detach().requires_grad_() for leaf in inputs]
            query, keys, values_ = leaves
            with torch.enable_grad():
                result = _attend(query, keys, values_, mask, causal=causal, scale=scale)
                return torch.autograd.grad(result, leaves, outer)

        gradients = run_on_cpu(
            "attention, backward", 3, differentiate, gradient, mask, *ctx.saved_tensors
        )
        return (*gradients, None, None, None)


def _attend(
    query: Tensor, keys: Tensor, values_: Tensor, mask: Tensor | None, *, causal: bool,
    scale: float | None,
) -> Tensor:  # fmt: skip
    return scaled_dot_product_attention(query, keys, values_, mask, is_causal=causal, scale=scale)


def _attention(
    query: Tensor, keys: Tensor, values_: Tensor, mask: Tensor | None = None, *,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    if not on_gpu(query):
        return scaled_dot_product_attention(
            query, keys, values_, mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale
        )
    # As required by torch's CUDA kernels.
    assert mask is None or not is_causal
    assert query.dtype == keys.dtype == values_.dtype
    if mask is not None and not on_gpu(mask):
        Device.mix("mask of attention on the CPU")
    result: Tensor = _Attention.apply(query, keys, values_, mask, is_causal, scale)  # type: ignore[no-untyped-call]
    return result


def _layout_on_cpu(layout: GridLayout) -> GridLayout:
    return GridLayout.make(values(layout.target_lengths), values(layout.source_lengths))


def _convolve_cells(
    x: Tensor, taps: Tensor, layout: GridLayout, left: int, *, reverse: bool = False,
    tile: dict[str, int] | None = None,
) -> Tensor:  # fmt: skip
    assert all(map(on_gpu, (x, taps, layout.offsets)))
    plain, right = _layout_on_cpu(layout), taps.shape[1] - 1 - left

    def convolve(x: Tensor, taps: Tensor) -> Tensor:
        inputs = x.new_zeros(x.shape).requires_grad_() if reverse else x.detach()
        with torch.set_grad_enabled(reverse):
            result: Tensor = CpuGridConvolution.apply(inputs, taps, plain, left, right)  # type: ignore[no-untyped-call]
            return torch.autograd.grad(result, inputs, x)[0] if reverse else result

    result: Tensor = run_on_cpu(
        "grid convolution", 1, in_fp32(convolve), x.contiguous(), taps.detach().to(x.dtype)
    )
    return result


def _weight_gradient(
    x: Tensor, gradient: Tensor, layout: GridLayout, shape: tuple[int, int], left: int, *,
    tile: dict[str, int] | None = None,
) -> Tensor:  # fmt: skip
    assert all(map(on_gpu, (x, gradient, layout.offsets)))
    plain = _layout_on_cpu(layout)

    def differentiate(x: Tensor, gradient: Tensor) -> Tensor:
        taps = torch.zeros(*shape, x.shape[1], requires_grad=True)
        with torch.enable_grad():
            result = CpuGridConvolution.apply(  # type: ignore[no-untyped-call]
                x.detach().float(), taps, plain, left, shape[1] - 1 - left
            )
            return torch.autograd.grad(result, taps, gradient.float())[0]

    # The sum over the programs is a separate kernel.
    result: Tensor = run_on_cpu(
        "grid convolution's weight gradient", 2, differentiate, x, gradient.contiguous()
    )
    return result


def _convolve_step(window: Tensor, taps: Tensor, order: Tensor | None, left: int) -> Tensor:
    assert all(on_gpu(tensor) for tensor in (window, taps, order) if tensor is not None)

    def convolve(window: Tensor, taps: Tensor, order: Tensor | None) -> Tensor:
        return grid_conv.grid_convolution_step(
            window, taps, order, source_causal=left > 0 and left == taps.shape[3] - 1
        )

    result: Tensor = run_on_cpu(
        "step of the grid convolution", 1, in_fp32(convolve), window, taps, order
    )
    return result


def _rectifier_backward(gradient: Tensor, rectified: Tensor) -> tuple[Tensor, Tensor]:
    assert on_gpu(gradient) and on_gpu(rectified) and gradient.dtype == rectified.dtype
    results: tuple[Tensor, Tensor] = run_on_cpu(
        "rectifier, backward", 2, linear._rectifier_backward, gradient, rectified
    )
    return results


def _scaled_sum(terms: Sequence[Tensor], scale: float) -> Tensor:
    assert all(map(on_gpu, terms))
    result: Tensor = run_on_cpu(
        "scaled sum", -(-len(terms) // 4),
        lambda *terms: (torch.stack(terms).float().sum(0) * scale).to(terms[0].dtype), *terms,
    )  # fmt: skip
    return result


def _launch_residual(kernel: Any, tensors: tuple[Tensor, ...], ctx: Any, *constants: int) -> None:
    """Write the kernel's results without dropout, whose random numbers need the GPU."""
    assert all(map(on_gpu, tensors))

    def write(first: Tensor, *others: Tensor) -> None:
        if kernel is dropout_triton._add_kernel:
            others[1].copy_((first.float() + others[0].float()) * ctx.scale)
        else:
            (gradients,) = constants
            total = sum((other.float() for other in others[: gradients - 1]), first.float())
            for output in others[-2:]:
                output.copy_(total * ctx.scale)

    run_on_cpu("residual sum", 1, write, *tensors)


def _lstm(module: Any, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    Device.launch("LSTM of cuDNN", 3)
    assert isinstance(inputs, PretendTensor)
    plain_lengths = lengths if not on_gpu(lengths) else lengths.cpu()
    x = inputs.to(module.lstm.all_weights[0][0])
    rows = lstm.LiveRows.of_lengths(plain_lengths)
    counts, Device.counts = Device.counts, type(Device.counts)()
    with torch.autocast("cuda", enabled=False):
        directions = []
        for reverse in (False, True) if module.lstm.bidirectional else (False,):
            end = "_l0_reverse" if reverse else "_l0"
            bias = getattr(module.lstm, "bias_ih" + end) + getattr(module.lstm, "bias_hh" + end)
            below = torch.nn.functional.linear(x, getattr(module.lstm, "weight_ih" + end), bias)
            recurrent = getattr(module.lstm, "weight_hh" + end)
            directions.append(lstm.run_lstm(below, recurrent, rows, reverse=reverse))
    Device.counts = counts
    states, hidden, cell = (torch.cat(pair, -1) for pair in zip(*directions, strict=True))
    return states, hidden, cell
