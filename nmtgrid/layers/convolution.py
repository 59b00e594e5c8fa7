"""Convolutions that merge words into phrases, their reverse, and changes of length between them.

Shapes: B sentences, S or P positions, D features. Lengths [B] say how many positions of a row are
real; what stands behind them is arbitrary and never read.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.masks import is_token
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.gated_conv import Window, gated_convolution
from nmtgrid.layers.kernels.linear import linear


class NormalisedWeight(nn.Module):
    """The weight [outputs, inputs] of an affine map, optionally split into directions and lengths.

    With `normalise` the weight of output i is gain_i * weight_i / |weight_i| (Salimans and Kingma,
    2016); the gains start as the lengths that were drawn, so the map starts the same either way.
    Weights are drawn from N(0, gain / inputs); biases are zero.
    """

    def __init__(
        self, inputs: int, outputs: int, *, normalise: bool, variance_gain: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.gain = nn.Parameter(torch.empty(outputs)) if normalise else None
        self.variance_gain = variance_gain
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight, and set gains and biases to match."""
        std = math.sqrt(self.variance_gain / self.weight.shape[1])
        nn.init.normal_(self.weight, std=std)
        nn.init.zeros_(self.bias)
        if self.gain is not None:
            with torch.no_grad():
                self.gain.copy_(self.weight.norm(dim=1))

    def effective_weight(self) -> Tensor:
        """Return the weight [outputs, inputs] that the map applies."""
        if self.gain is None:
            return self.weight
        return torch._weight_norm(self.weight, self.gain[:, None], 0)

    def ready(self, factor: Tensor | float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return weight and bias times `factor` (one number, or [outputs]), in `dtype`."""
        bias = (self.bias * factor).to(dtype)
        if self.gain is not None:
            scaled = torch._weight_norm(self.weight, (self.gain * factor)[:, None], 0)
        else:
            scaled = self.weight * (factor[:, None] if isinstance(factor, Tensor) else factor)
        return scaled.to(dtype), bias


class NormalisedMap(NormalisedWeight):
    """An affine map whose weight may be normalised."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mapped features [..., outputs]."""
        return linear(x, self.effective_weight(), self.bias)


class GatedConvolution(NormalisedWeight):
    """A convolution of k taps to 2 C channels, of which one half gates the other, Eq. (2.32-2.33).

    The weight [2 C, k C] holds the taps side by side, older first, and each output channel has one
    gain. Half of the variance that reaches a gate passes it with a quarter of its size, hence the
    gain of four in the draw (Gehring et al., 2017, section 3.5), less what dropout adds.
    """

    def __init__(self, size: int, kernel: int, *, normalise: bool, dropout: float) -> None:
        self.kernel, self.dropout = kernel, dropout
        super().__init__(
            kernel * size, 2 * size, normalise=normalise, variance_gain=4.0 * (1.0 - dropout)
        )

    def forward(self, x: Tensor, window: Window, residual_scale: float | None = None) -> Tensor:
        """Return the gated channels [B, L, C], or `residual_scale` (x + them), Eq. (2.34)."""
        return gated_convolution(
            x,
            self.effective_weight().to(x.dtype),
            self.bias.to(x.dtype),
            window,
            rate=self.dropout,
            training=self.training,
            residual_scale=residual_scale,
        )


class WindowCache:
    """The last inputs of N causal convolutions: buffer [R, N, capacity, C], rows first.

    New inputs are written in place behind the old ones, and what a convolution reads is one
    stretch of memory for each row. When the buffer is full, what is still needed moves to its
    front.
    """

    def __init__(self, buffer: Tensor, filled: int, kernel: int) -> None:
        self.buffer, self.filled, self.kernel = buffer, filled, kernel

    @classmethod
    def empty(cls, like: Tensor, layers: int, kernel: int, spare: int = 16) -> WindowCache:
        """Return a cache of k - 1 zero inputs for features of the kind of `like` [R, ..., C]."""
        shape = (like.shape[0], layers, kernel - 1 + spare, like.shape[-1])
        buffer = like.new_empty(shape)
        buffer[:, :, : kernel - 1] = 0
        return cls(buffer, kernel - 1, kernel)

    def advance(self) -> None:
        """Make room for the next position; every layer then pushes once."""
        keep = self.kernel - 1
        if self.filled == self.buffer.shape[2]:
            self.buffer[:, :, :keep] = self.buffer[:, :, self.filled - keep :].clone()
            self.filled = keep
        self.filled += 1

    def push(self, layer: int, features: Tensor) -> Tensor:
        """Append `features` [R, C] and return the last k inputs of `layer` [R, k C]."""
        stretch = self.buffer[:, layer, self.filled - self.kernel : self.filled]
        stretch[:, -1] = features
        return stretch.flatten(1)

    def take_rows(self, rows: Tensor) -> WindowCache:
        """Return the cache of `rows`, copying only what a later step will read."""
        keep = self.kernel - 1
        count, (_, layers, capacity, size) = rows.shape[0], self.buffer.shape
        buffer = self.buffer.new_empty(count, layers, capacity, size)
        live = self.buffer[:, :, self.filled - keep : self.filled]
        buffer[:, :, :keep] = live.index_select(0, rows)
        return WindowCache(buffer, keep, self.kernel)


Convolution = Literal["full", "depthwise"]


class PhraseWindow(nn.Module):
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
        self.window, self.kernel, self.rate = PhraseWindow(size, kernel, kind), kernel, rate

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
        self.window, self.kernel, self.rate = PhraseWindow(size, kernel, kind), kernel, rate

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
