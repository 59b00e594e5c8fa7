"""Layer normalisation of positions, and batch normalisation over valid cells, whole or in parts.

`BatchStatistics` standardises features; `Affine` scales and shifts them. In a dense network every
layer normalises the features of all layers before it: the statistics of a feature are the same
for all of them, so it is standardised once, when it is computed, and each layer has only its own
scale and shift. Together they are batch normalisation (Ioffe and Szegedy, 2015) as published.

In training mode a prediction depends on the other sentences of its batch and, through the
statistics, on later target tokens. In evaluation mode the running statistics are used, so that no
prediction depends on the future. Each micro-batch of an update, and each half of one that did not
fit into memory, has its own statistics and updates the running ones once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class PositionNorm(nn.LayerNorm):
    """Normalise [..., D] over D with statistics in fp32 at least and return the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised features, in the shape and type of `input`."""
        if input.device.type == "cpu" and input.dtype is torch.bfloat16:
            # The CPU's kernel reads bf16 and computes in fp32 by itself, without copies in fp32.
            normed: Tensor
            normed, _, _ = torch.native_layer_norm(
                input, self.normalized_shape, self.weight, self.bias, self.eps
            )
            return normed
        # Elsewhere the kernel takes features and weights of one type only.
        normed = nn.functional.layer_norm(
            input.to(self.weight.dtype), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return normed.to(input.dtype)


MOMENTUM, EPSILON = 0.1, 1e-5


class BatchStatistics(nn.Module):
    """Standardise features [..., C] by the mean and variance of each over all input cells.

    In training, the running statistics move by a tenth towards those of each pass, with the
    unbiased estimate of the variance, which a single cell does not have. `still` freezes them.
    """

    running_mean: Tensor
    running_var: Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        self.still = False

    def forward(self, features: Tensor) -> Tensor:
        """Return the standardised features, in the shape and type of `features`."""
        # Statistics are taken over the flat valid cells, so padding never counts, and in float32.
        flat = features.reshape(-1, features.shape[-1])
        mean: Tensor | None = self.running_mean
        variance: Tensor | None = self.running_var
        # `torch.batch_norm` updates its arguments; a clone takes the update and is dropped.
        if self.training and self.still:
            mean, variance = self.running_mean.clone(), self.running_var.clone()
        # A single cell has no variance: only the running mean is updated.
        if self.training and flat.shape[0] == 1 and mean is not None:
            mean.lerp_(flat[0].detach().to(mean.dtype), MOMENTUM)
            mean = variance = None
        live, on_cuda = self.training, flat.is_cuda
        result = torch.batch_norm(
            flat, self.weight, self.bias, mean, variance, live, MOMENTUM, EPSILON, on_cuda
        )
        return result.view(features.shape)


class Affine(nn.Module):
    """Scale and shift of each feature: the learnt half of batch normalisation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, features: Tensor) -> Tensor:
        """Return features [..., C] scaled and shifted, in their type."""
        dtype = features.dtype
        return torch.addcmul(self.bias.to(dtype), features, self.weight.to(dtype))


class BatchNorm(BatchStatistics):
    """Both halves at once: features [..., C] standardised, scaled and shifted."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))


@contextlib.contextmanager
def still_statistics(model: nn.Module) -> Iterator[None]:
    """Freeze the running statistics of `model` within the context, to repeat a forward pass."""
    modules = [module for module in model.modules() if isinstance(module, BatchStatistics)]
    before = [module.still for module in modules]
    for module in modules:
        module.still = True
    try:
        yield
    finally:
        for module, still in zip(modules, before, strict=True):
            module.still = still
