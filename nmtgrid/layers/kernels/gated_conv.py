"""Gated 1-D convolutions over [B, L, C]: dropout, convolution, gate and residual sum in one piece.

Used by layers/convolution.py for ConvS2S, section 2.6.2.
"""

# The k neighbours of each position are copied side by side, [B L, k C], so that the convolution is
# one matrix product; the copies cost a tenth of its time. `convs2s` under training in benchmarks/
# results/cpu-1-thread.md uses this form.

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.base.rows import is_true_everywhere
from nmtgrid.layers.kernels.dropout import draw_mask, kept_share
from nmtgrid.layers.kernels.linear import apply, product


@dataclasses.dataclass(frozen=True)
class Window:
    """The positions that a convolution reads: tap j of position l reads l - before + j.

    `cut` has the indices in [B L k] of taps of real positions that would read padding (None: there
    are none). Positions outside a sentence count as zero.
    """

    kernel: int
    before: int
    cut: Tensor | None = None

    @classmethod
    def causal(cls, kernel: int) -> Window:
        """Return the window in which a position reads itself and the k - 1 before it."""
        return cls(kernel, kernel - 1)

    @classmethod
    def centred(cls, kernel: int, is_token: Tensor) -> Window:
        """Return the window with both sides of a position; is_token [B, L] is False on padding."""
        before = kernel // 2
        if is_true_everywhere(is_token):
            return cls(kernel, before)
        # Real positions must not read padding, whose features are arbitrary.
        size = is_token.shape[1]
        device = is_token.device
        reads = torch.arange(size, device=device)[:, None] - before
        reads = (reads + torch.arange(kernel, device=device)).clamp(0, size - 1)
        cut = is_token[:, :, None] & ~is_token[:, reads]
        return cls(kernel, before, cut.flatten().nonzero()[:, 0])


def gated_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: Window,
    *,
    rate: float = 0.0,
    training: bool = False,
    residual_scale: float | None = None,
) -> Tensor:
    """Return a * sigmoid(b) where [a, b] = convolution(dropout(x)), Eq. (2.32)-(2.33) [B, L, C].

    weight [2 C, k C'] has the taps side by side, oldest first, for x [B, L, C'] and bias [2 C], all
    of one type. With a `residual_scale` s the result is s (x + a * sigmoid(b)), Eq. (2.34).
    """
    rate = rate if training else 0.0
    return apply(_GatedConvolution, x, weight, bias, window, rate, residual_scale)


class _GatedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        window: Window,
        rate: float,
        residual_scale: float | None,
    ) -> Tensor:
        # Factors of the shape of x: zero, or one over the kept share.
        mask = None
        if rate and x.device.type == "cpu":
            mask = draw_mask(x, rate).mul_(1.0 / kept_share(rate))
        elif rate:
            mask = torch.empty_like(x).bernoulli_(1.0 - rate).div_(1.0 - rate)
        unfolded = _unfold(x, mask, window)
        values = product(unfolded, weight, bias)
        ctx.save_for_backward(unfolded, values, weight, mask)
        ctx.window, ctx.shape, ctx.residual_scale = window, x.shape, residual_scale
        # The unfolded input is saved, not x: the backward pass needs only the former.
        gated = F.glu(values, -1).view(*x.shape[:-1], -1)
        return gated if residual_scale is None else gated.add_(x).mul_(residual_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        unfolded, values, weight, mask = ctx.saved_tensors
        scale = ctx.residual_scale
        if scale is not None:
            gradient = gradient * scale
        of_values = torch.ops.aten.glu_backward(gradient.flatten(0, 1), values, -1)
        of_weight = product(of_values.t(), unfolded.t())
        of_bias = of_values.sum(0)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _fold(product(of_values, weight.t()), ctx.shape, ctx.window)
            if mask is not None:
                of_x = of_x.mul_(mask)
            if scale is not None:
                of_x = of_x.add_(gradient)
        return of_x, of_weight, of_bias, None, None, None


def _unfold(x: Tensor, mask: Tensor | None, window: Window) -> Tensor:
    """Return [B L, k C]: the neighbours of each position in x (times `mask`), side by side."""
    count, size, channels = x.shape
    unfolded = x.new_empty(count, size, window.kernel, channels)
    # Dropout is applied when a position's own tap is written; the other taps copy from there.
    own = unfolded[:, :, window.before]
    if mask is None:
        own.copy_(x)
    else:
        torch.mul(x, mask, out=own)
    for tap in range(window.kernel):
        if tap != window.before:
            written, read, outside = _spans(size, window.before - tap)
            unfolded[:, outside, tap] = 0
            unfolded[:, written, tap] = own[:, read]
    if window.cut is not None:
        unfolded.view(-1, channels).index_fill_(0, window.cut, 0)
    return unfolded.view(count * size, -1)


def _fold(unfolded: Tensor, shape: torch.Size, window: Window) -> Tensor:
    """Return [B, L, C]: the sum of each position's copies in `unfolded`, which is overwritten."""
    count, size, channels = shape
    if window.cut is not None:
        unfolded.view(-1, channels).index_fill_(0, window.cut, 0)
    taps = unfolded.view(count, size, window.kernel, channels)
    folded = taps[:, :, window.before].contiguous()
    for tap in range(window.kernel):
        if tap != window.before:
            written, read, _ = _spans(size, window.before - tap)
            folded[:, read] += taps[:, written, tap]
    return folded


def _spans(size: int, back: int) -> tuple[slice, slice, slice]:
    """Return which of `size` positions can read `back` before them, those read, and the rest."""
    back = max(-size, min(back, size))
    if back >= 0:
        return slice(back, size), slice(0, size - back), slice(0, back)
    return slice(0, size + back), slice(-back, size), slice(size + back, size)
