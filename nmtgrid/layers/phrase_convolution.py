"""Convolutions that merge words into phrases, their reverse, and changes of length between them.

Shapes: B sentences, S or P positions, D features. Lengths [B] say how many positions of a row are
real; what stands behind them is arbitrary and never read.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.masks import is_token
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.linear import linear

Convolution = Literal["full", "depthwise"]


class Window(nn.Module):
    """tanh of a map of `kernel` neighbours: [B, S, D] to [B, S - kernel + 1, D].

    "full" is one matrix over all of their features, "depthwise" one weight for each feature and
    place, as Kalchbrenner and Blunsom (2013) have it.
    """

    def __init__(self, size: int, kernel: int, kind: Convolution) -> None:
        super().__init__()
        self.kernel = kernel
        shape = (size, kernel * size) if kind == "full" else (kernel, size)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(size))
        self.is_full = kind == "full"
        # Unit variance before a tanh that is not the first asks for a gain of 5/3.
        bound = 5 / 3 * (3 / (kernel * (size if self.is_full else 1))) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, states: Tensor) -> Tensor:
        """Return what each window becomes; S must be at least the kernel."""
        count = states.shape[1] - self.kernel + 1
        views = [states[:, k : k + count] for k in range(self.kernel)]
        if self.is_full:
            return torch.tanh(linear(torch.cat(views, -1), self.weight, self.bias))
        mapped = self.bias + views[0] * self.weight[0]
        for view, weight in zip(views[1:], self.weight[1:], strict=True):
            mapped = torch.addcmul(mapped, view, weight.to(view.dtype))
        return torch.tanh(mapped)


class PhraseConvolution(nn.Module):
    """K_i: merges every i neighbours, so that a row loses i - 1 positions.

    A row shorter than the kernel stays as it is.
    """

    def __init__(self, size: int, kernel: int, kind: Convolution, rate: float) -> None:
        super().__init__()
        self.window, self.kernel, self.rate = Window(size, kernel, kind), kernel, rate

    def lengths_after(self, lengths: Tensor) -> Tensor:
        """Return [B], the lengths of what `forward` returns."""
        return torch.where(lengths >= self.kernel, lengths - self.kernel + 1, lengths)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return [B, S', D]."""
        count, merged = states.shape[1], self.kernel - 1
        if count < self.kernel:
            return states
        width = max(count - merged, min(count, merged))
        found = dropout(self.window(states), self.rate, self.training)
        found = nn.functional.pad(found, (0, 0, 0, width - found.shape[1]))
        short = (lengths < self.kernel)[:, None, None]
        return torch.where(short, states[:, :width].to(found.dtype), found)


class ReverseConvolution(nn.Module):
    """The reverse of K_i: each position goes into i neighbours, so that a row gains i - 1."""

    def __init__(self, size: int, kernel: int, kind: Convolution, rate: float) -> None:
        super().__init__()
        self.window, self.kernel, self.rate = Window(size, kernel, kind), kernel, rate

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return [B, S + i - 1, D]."""
        real = is_token(lengths, states.shape[1])[..., None]
        around = self.kernel - 1
        padded = nn.functional.pad(states * real.to(states.dtype), (0, 0, around, around))
        return dropout(self.window(padded), self.rate, self.training)


class Resample(nn.Module):
    """Rows of one length seen from rows of another: each new position is a mean around its place.

    Place j of n stands at (j + 1/2) p / n of p old positions. The weights fall off as a Gaussian
    of learnt width (in positions of the shorter row), so they are smooth in n, which need not be
    whole: what predicts n learns through them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, states: Tensor, lengths: Tensor, wanted: Tensor, count: int) -> Tensor:
        """Return [B, count, D] for states [B, P, D], lengths [B] and wanted lengths [B] (real)."""
        ratio = (lengths / wanted)[:, None]
        centres = (torch.arange(count, device=states.device) + 0.5) * ratio - 0.5
        # Places behind the wanted length stand beside the last old position.
        centres = centres.minimum(lengths[:, None] - 0.5)
        places = torch.arange(states.shape[1], device=states.device)
        distances = places - centres[..., None]
        spread = (self.width.abs() + 0.1) * ratio.clamp(min=1.0)
        scores = -0.5 * (distances / spread[..., None]).square()
        hidden = ~is_token(lengths, states.shape[1])[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        # What stands on padding may be anything but must not be infinite times zero.
        return torch.bmm(weights.to(states.dtype), states)
