"""Reference implementations of kernels: the same results in torch's operations, with gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nmtgrid.layers.kernels.densenet import live_dense_taps
from nmtgrid.layers.kernels.gated_conv import Window
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.soft_targets import SoftTargets


def plain_dense_grid_convolution(x: Tensor, weight: Tensor, layout: GridLayout) -> Tensor:
    """Convolve flat grids x [M, D] with weight [D', D, k, k]."""
    taps = live_dense_taps(weight).to(x.dtype)
    side = taps.shape[3] // 2
    grid = F.pad(layout.pad(x), (0, 0, side, side, taps.shape[2] - 1, 0)).permute(0, 3, 1, 2)
    with torch.autocast(x.device.type, enabled=False):
        result = F.conv2d(grid, taps)
    return layout.pack(result.permute(0, 2, 3, 1))


def plain_dense_projection(
    parts: list[Tensor], scale: Tensor, shift: Tensor, weight: Tensor
) -> Tensor:
    """Return relu(features * scale + shift) weight^T [M, D'] for parts [M, g]."""
    features = torch.cat(parts, -1)
    return torch.relu(features * scale + shift) @ weight.t()


def plain_residual_dropout(h: Tensor, y: Tensor, mask: Tensor, keep: float, scale: float) -> Tensor:
    """Return the same for a mask already drawn (1 = kept)."""
    return (h + y * mask / keep) * scale


def plain_linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    soft_targets: SoftTargets | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the same as `linear_cross_entropy`, through logits [M, V]."""
    total = torch.promote_types(features.dtype, torch.float32)
    bias = None if bias is None else bias.to(features.dtype)
    logits = F.linear(features, weight.to(features.dtype), bias).to(total)
    expected = targets
    if soft_targets is not None:
        expected = torch.zeros_like(logits)
        soft_targets.subtract_(expected, logits.detach(), -1.0)
    losses = F.cross_entropy(logits, expected, reduction="none", label_smoothing=label_smoothing)
    if soft_targets is not None and soft_targets.entropy:
        negative = (logits.softmax(1) * logits.log_softmax(1)).sum(1)
        losses = losses + soft_targets.entropy * negative
    likelihoods = F.cross_entropy(logits.detach(), targets, reduction="none")
    if weights is not None:
        losses, likelihoods = losses * weights, likelihoods * weights
    return losses.sum(), likelihoods.detach().sum()


def plain_r_drop(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
    label_smoothing: float,
    soft_targets: SoftTargets | None,
    r_drop: float,
) -> tuple[Tensor, Tensor]:
    """Return the same with R-Drop, from two losses and two divergences of torch's own."""
    passes = [
        plain_linear_cross_entropy(
            part, weight, bias, targets, weights, label_smoothing, soft_targets
        )
        for part in features.chunk(2)
    ]
    logits = F.linear(features, weight, bias)
    log_p, log_q = logits.log_softmax(1).chunk(2)
    divergence = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)
    divergence = divergence + F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(1)
    if weights is not None:
        divergence = divergence * weights
    (first, first_nll), (second, second_nll) = passes
    loss = (first + second) / 2 + r_drop / 4 * divergence.sum()
    return loss, (first_nll + second_nll) / 2


def plain_gated_convolution(
    x: Tensor, weight: Tensor, bias: Tensor, window: Window, residual_scale: float | None = None
) -> Tensor:
    """Return the same without dropout through torch's convolution.

    Padding must be zero in x where `window` is centred.
    """
    taps = weight.view(weight.shape[0], window.kernel, -1).transpose(1, 2)
    margins = (window.before, window.kernel - 1 - window.before)
    values = F.conv1d(F.pad(x.transpose(1, 2), margins), taps, bias).transpose(1, 2)
    gated = F.glu(values, -1)
    return gated if residual_scale is None else (x + gated) * residual_scale
