"""Batch normalisation over the valid cells of a batch, in two parts that are used apart.

`BatchStatistics` standardises features; `Affine` scales and shifts them. In a dense network every
layer normalises the features of all layers before it: the statistics of a feature are the same
for all of them, so it is standardised once, when it is made, and each layer has an affine map
alone. The two together are batch normalisation (Ioffe and Szegedy, 2015) as published.

In training mode a prediction depends on the other sentences of its batch and, through the
statistics, on later target tokens. In evaluation mode the running statistics are used, so nothing
of the future reaches a prediction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MOMENTUM, EPSILON = 0.1, 1e-5


class BatchStatistics(nn.Module):
    """Standardise features [cells, C] by the mean and variance of each over all cells given.

    Only real cells may be given, so padding never counts. While training the running statistics
    move by a tenth at each pass (each micro-batch), the variance by its unbiased estimate, which
    a single cell does not have. `frozen` uses the running statistics in training mode too.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.frozen = False

    @property
    def is_live(self) -> bool:
        """Whether the statistics are those of the batch at hand."""
        return self.training and not self.frozen

    def forward(self, features: Tensor) -> Tensor:
        """Return the standardised features, in the shape and type of `features`."""
        if not self.is_live:
            return self.standardise(features)
        result: Tensor
        result, mean, variance = _Standardise.apply(features)  # type: ignore[no-untyped-call]
        self.update(mean, variance, features.shape[0])
        return result

    def standardise(self, features: Tensor) -> Tensor:
        """Return features [..., C] standardised by the running statistics."""
        scale = (self.running_var + EPSILON).rsqrt()
        shift = -self.running_mean * scale
        wide = torch.promote_types(features.dtype, scale.dtype)
        return torch.addcmul(shift, features.to(wide), scale).to(features.dtype)

    @torch.no_grad()
    def update(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running statistics towards the mean and biased variance [C] of `count` cells."""
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), MOMENTUM)
        if count > 1:
            unbiased = variance.to(self.running_var.dtype) * (count / (count - 1))
            self.running_var.lerp_(unbiased, MOMENTUM)


class Affine(nn.Module):
    """Scale and shift of each feature: the learnt half of batch normalisation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, features: Tensor) -> Tensor:
        """Return features [..., C] scaled and shifted, in their type."""
        kind = features.dtype
        return torch.addcmul(self.bias.to(kind), features, self.weight.to(kind))


class BatchNorm(nn.Sequential):
    """Both halves: features [cells, C] standardised, scaled and shifted."""

    def __init__(self, size: int) -> None:
        super().__init__(BatchStatistics(size), Affine(size))


@contextlib.contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Let `model` use its running statistics, and leave them be, in training mode too."""
    parts = [part for part in model.modules() if isinstance(part, BatchStatistics)]
    before = [part.frozen for part in parts]
    for part in parts:
        part.frozen = True
    try:
        yield
    finally:
        for part, held in zip(parts, before, strict=True):
            part.frozen = held


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance [C] of features [cells, C], in float32 at least."""
    wide = features.to(torch.promote_types(features.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, 0, correction=0)
    return mean, variance


class _Standardise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + epsilon) of the batch's own moments, and these."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = moments(features)
        scale = (variance + EPSILON).rsqrt()
        standard = torch.addcmul(-mean * scale, features.to(scale.dtype), scale).to(features.dtype)
        ctx.save_for_backward(standard, scale)
        ctx.mark_non_differentiable(mean, variance)
        return standard, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        standard, scale = ctx.saved_tensors
        return standardise_backward(gradient, standard, scale).to(standard.dtype)


def standardise_backward(gradient: Tensor, standard: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient [cells, C] of what was standardised to `standard` by `scale` [C]."""
    wide, held = gradient.to(scale.dtype), standard.to(scale.dtype)
    along = (wide * held).mean(0)
    # A feature moves its own mean and variance: the parts of the gradient along them vanish.
    return torch.addcmul(wide - wide.mean(0), held, along, value=-1.0).mul_(scale)
