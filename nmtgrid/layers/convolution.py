"""Gated 1-D convolutions and affine maps with weight normalisation, and what decoding caches.

Letters: B sentences, R rows, L positions, C channels, k taps, N layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

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
