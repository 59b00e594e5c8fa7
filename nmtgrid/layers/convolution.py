"""Convolutions over sentences: the gated ones of ConvS2S, and those of the convrnn encoder.

Gated convolutions with weight normalisation are Eq. (2.32)-(2.34) (models/convs2s.py). Phrase
convolutions merge neighbours and so shorten a row, their reverse lengthens it, and `Resample`
changes its length (Kalchbrenner and Blunsom, 2013; models/convrnn.py).

Shapes: B sentences, S or P positions, D features. Lengths [B] count the real positions of a row;
the features after them are arbitrary and never read.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import is_token
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.gated_conv import Window, gated_convolution
from nmtgrid.layers.kernels.linear import linear


class NormalisedWeight(nn.Module):
    """The weight [outputs, inputs] of a linear layer, optionally split into direction and norm.

    With `normalise` the weight of output i is gain_i * weight_i / |weight_i| (Salimans and Kingma,
    2016); gains are initialised to the norms of the weights, so that the initial layer is the same
    either way. Weights are drawn from N(0, variance_gain / inputs); biases are zero.
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
        std = math.sqrt(self.variance_gain / self.weight.shape[1])
        nn.init.normal_(self.weight, std=std)
        nn.init.zeros_(self.bias)
        if self.gain is not None:
            with torch.no_grad():
                self.gain.copy_(self.weight.norm(dim=1))

    def effective_weight(self) -> Tensor:
        """Return the weight [outputs, inputs] that the layer applies."""
        # torch's own operator; the parametrisation of torch.nn would rename parameters.
        if self.gain is None:
            return self.weight
        return torch._weight_norm(self.weight, self.gain[:, None], 0)

    def scaled(self, factor: Tensor | float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return weight and bias times `factor` (one number, or [outputs]), in `dtype`."""
        bias = (self.bias * factor).to(dtype)
        # A gain absorbs the factor: [outputs] numbers instead of the whole weight.
        if self.gain is not None:
            weight = torch._weight_norm(self.weight, (self.gain * factor)[:, None], 0)
        else:
            weight = self.weight * (factor[:, None] if isinstance(factor, Tensor) else factor)
        return weight.to(dtype), bias


class NormalisedProjection(NormalisedWeight):
    """A linear layer whose weight may be normalised."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected features [..., outputs]."""
        return linear(x, self.effective_weight(), self.bias)


class GatedConvolution(NormalisedWeight):
    """A convolution of k taps to 2 C channels, of which one half gates the other, Eq. (2.32-2.33).

    The weight [2 C, k C] contains the taps side by side, oldest first, and each output channel has
    one gain. The gate passes on about a quarter of the variance of its inputs, hence the
    `variance_gain` of four (Gehring et al., 2017, section 3.5), less what dropout adds.
    """

    def __init__(self, size: int, kernel: int, *, normalise: bool, dropout: float) -> None:
        self.kernel, self.dropout = kernel, dropout
        super().__init__(
            kernel * size, 2 * size, normalise=normalise, variance_gain=4.0 * (1.0 - dropout)
        )

    def forward(self, x: Tensor, window: Window, residual_scale: float | None = None) -> Tensor:
        """Return the gated channels y [B, L, C], or `residual_scale` (x + y), Eq. (2.34)."""
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
    """The last inputs of N causal convolutions: a buffer [R, N, capacity, C].

    New inputs are written in place after the old ones, so a convolution reads contiguous memory
    of each row. When the buffer is full, the last k - 1 inputs move to its front.
    """

    def __init__(self, buffer: Tensor, filled: int, kernel: int) -> None:
        self.buffer, self.filled, self.kernel = buffer, filled, kernel

    @classmethod
    def empty(cls, like: Tensor, layers: int, kernel: int, spare: int = 16) -> WindowCache:
        """Return a cache of k - 1 zero inputs for features like `like` [R, ..., C]."""
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
        window = self.buffer[:, layer, self.filled - self.kernel : self.filled]
        window[:, -1] = features
        return window.flatten(1)

    def take_rows(self, rows: Tensor) -> WindowCache:
        keep = self.kernel - 1
        count, (_, layers, capacity, size) = rows.shape[0], self.buffer.shape
        buffer = self.buffer.new_empty(count, layers, capacity, size)
        # Only the last k - 1 inputs are needed: otherwise a beam would copy the whole buffer.
        live = self.buffer[:, :, self.filled - keep : self.filled]
        buffer[:, :, :keep] = live.index_select(0, rows)
        return WindowCache(buffer, keep, self.kernel)


Convolution = Literal["full", "depthwise"]


class PhraseWindow(nn.Module):
    """tanh of a linear layer over `kernel` neighbours: [B, S, D] to [B, S - kernel + 1, D].

    "full" is one matrix over all of their features, "depthwise" one weight for each feature and
    tap, as in Kalchbrenner and Blunsom (2013).
    """

    def __init__(self, size: int, kernel: int, kind: Convolution, rate: float = 0.0) -> None:
        super().__init__()
        self.kernel, self.rate = kernel, rate
        shape = (size, kernel * size) if kind == "full" else (kernel, size)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(size))
        self.is_full = kind == "full"
        self.vector_parameters = () if self.is_full else ("weight",)
        # After a tanh, unit variance before the next one needs a gain of 5/3.
        bound = 5 / 3 * (3 / (kernel * (size if self.is_full else 1))) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, states: Tensor) -> Tensor:
        """Return each window's output, with dropout; S must be at least the kernel."""
        count = states.shape[1] - self.kernel + 1
        taps = [states[:, k : k + count] for k in range(self.kernel)]
        if self.is_full:
            merged = linear(torch.cat(taps, -1), self.weight, self.bias)
        else:
            # One fused multiply-add for each tap, without concatenating the taps.
            merged = self.bias + taps[0] * self.weight[0]
            for tap, weight in zip(taps[1:], self.weight[1:], strict=True):
                merged = torch.addcmul(merged, tap, weight.to(tap.dtype))
        return dropout(torch.tanh(merged), self.rate, self.training)


class _Phrases(nn.Module):
    def __init__(self, size: int, kernel: int, kind: Convolution, rate: float) -> None:
        super().__init__()
        self.window, self.kernel = PhraseWindow(size, kernel, kind, rate), kernel


class PhraseConvolution(_Phrases):
    """K_i: merges every i neighbours, so that a row loses i - 1 positions.

    A row shorter than the kernel is left as it is.
    """

    def lengths_after(self, lengths: Tensor) -> Tensor:
        """Return [B], the lengths after `forward`."""
        return torch.where(lengths >= self.kernel, lengths - self.kernel + 1, lengths)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        count, lost = states.shape[1], self.kernel - 1
        if count < self.kernel:
            return states
        # Wide enough for the merged rows and for the short ones, which are left as they are.
        width = max(count - lost, min(count, lost))
        merged = self.window(states)
        merged = nn.functional.pad(merged, (0, 0, 0, width - merged.shape[1]))
        is_short = (lengths < self.kernel)[:, None, None]
        return torch.where(is_short, states[:, :width].to(merged.dtype), merged)


class ReverseConvolution(_Phrases):
    """The reverse of K_i: each position contributes to i neighbours, so a row gains i - 1."""

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return [B, S + i - 1, D]."""
        is_real = is_token(lengths, states.shape[1])[..., None]
        margin = self.kernel - 1
        padded = nn.functional.pad(states * is_real.to(states.dtype), (0, 0, margin, margin))
        widened: Tensor = self.window(padded)
        return widened


class Resample(nn.Module):
    """Resamples rows to another length: each new position is a local mean.

    Position j of n is at (j + 1/2) p / n of p old positions. The weights are a Gaussian of learnt
    width (in positions of the shorter row). They are smooth in n, which need not be an integer, so
    that the network that predicts n is trained through them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, states: Tensor, lengths: Tensor, new_lengths: Tensor, count: int) -> Tensor:
        """Return [B, count, D] for states [B, P, D], lengths [B] and new lengths [B] (real)."""
        ratio = (lengths / new_lengths)[:, None]
        centres = (torch.arange(count, device=states.device) + 0.5) * ratio - 0.5
        # Positions after the new length are placed at the end of the old row.
        centres = centres.minimum(lengths[:, None] - 0.5)
        distances = torch.arange(states.shape[1], device=states.device) - centres[..., None]
        deviation = (self.width.abs() + 0.1) * ratio.clamp(min=1.0)
        scores = -0.5 * (distances / deviation[..., None]).square()
        is_padding = ~is_token(lengths, states.shape[1])[:, None]
        weights = scores.masked_fill(is_padding, -torch.inf).softmax(-1)
        # Features of padding must be finite, since their weight is zero, and inf * 0 is NaN.
        return torch.bmm(weights.to(states.dtype), states)
