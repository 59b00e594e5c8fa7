"""Label-smoothed cross-entropy fused with the output map, so that no logits [M, V] are kept.

The features are taken in chunks. Each chunk's logits are turned into gradients at once, in the
forward pass, and dropped: three matrix products, nothing recomputed, memory independent of M.
With p = softmax(z), smoothing eps and weights w, the gradient of sum_i w_i loss_i is
`w_i (p_iv - eps/V - (1-eps) [v = y_i])`. The eps/V part has rank one, and w scales rows, so
both are applied to [M, D] and [V, D] tensors rather than to the logits. A target distribution
other than one token (`SoftTargets`) takes the place of `[v = y_i]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product
from nmtgrid.layers.soft_targets import SoftTargets

CPU_LOGITS = 2**22
DEVICE_LOGITS = 2**26
"""Logits of one chunk: on a CPU few enough for its caches, elsewhere enough to fill it."""


def plain_linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    aims: SoftTargets | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the same as `linear_cross_entropy`, through logits [M, V]: the plain twin."""
    total = torch.promote_types(features.dtype, torch.float32)
    held_bias = None if bias is None else bias.to(features.dtype)
    logits = F.linear(features, weight.to(features.dtype), held_bias).to(total)
    wanted = targets
    if aims is not None:
        wanted = torch.zeros_like(logits)
        aims.take(wanted, logits.detach(), -1.0)
    losses = F.cross_entropy(logits, wanted, reduction="none", label_smoothing=label_smoothing)
    if aims is not None and aims.entropy:
        losses = losses + aims.entropy * (logits.softmax(1) * logits.log_softmax(1)).sum(1)
    likelihoods = F.cross_entropy(logits.detach(), targets, reduction="none")
    if weights is not None:
        losses, likelihoods = losses * weights, likelihoods * weights
    return losses.sum(), likelihoods.detach().sum()


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    chunk: int | None = None,
    aims: SoftTargets | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums (loss with gradient, negative log-likelihood without).

    features [M, D], weight [V, D], bias [V] or None, targets [M] int64, weights [M] or None for
    ones (they get no gradient). Smoothing spreads eps over all V types, the target among them.
    The products run in the features' dtype, or autocast's where that is on; logits are reduced
    in float32 at least; natural logarithms. chunk counts the features taken at a time; None
    suits the device. `aims` [M, C] are what the loss is taken against in place of the targets,
    which the likelihood still speaks of. Raises: ValueError for smoothing outside [0, 1) or a
    chunk below 1.
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1), but is {label_smoothing}")
    dtype, chunk = _dtype_and_chunk(features, weight, chunk)
    plan = _Plan(dtype, label_smoothing, chunk, torch.is_grad_enabled(), aims)
    sums: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        features, weight, bias, targets, weights, plan
    )
    return sums


@torch.no_grad()
def linear_nll(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunk: int | None = None,
) -> Tensor:
    """Return -log p of each target [M], without gradient; see `linear_cross_entropy`."""
    dtype, chunk = _dtype_and_chunk(features, weight, chunk)
    found = features.new_empty(len(targets), dtype=torch.promote_types(dtype, torch.float32))
    for place, logits in _logits(features, weight, bias, dtype, chunk):
        found[place] = F.cross_entropy(logits, targets[place], reduction="none")
    return found


@torch.no_grad()
def linear_nll_and_hits(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what `linear_nll` does [M], and whether each target is the likeliest type [M].

    Of equally likely types the lowest is the likeliest.
    """
    dtype, chunk = _dtype_and_chunk(features, weight, chunk)
    found = features.new_empty(len(targets), dtype=torch.promote_types(dtype, torch.float32))
    hits = torch.empty_like(targets, dtype=torch.bool)
    for place, logits in _logits(features, weight, bias, dtype, chunk):
        found[place] = F.cross_entropy(logits, targets[place], reduction="none")
        hits[place] = logits.argmax(1) == targets[place]
    return found, hits


def _logits(
    features: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, chunk: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield places and their logits [chunk, V] (float32 at least), so many at a time."""
    matrix, shift = weight.to(dtype), None if bias is None else bias.to(dtype)
    for start in range(0, len(features), chunk):
        place = slice(start, start + chunk)
        with torch.autocast(features.device.type, enabled=False):
            logits = product(features[place].to(dtype), matrix, shift)
        yield place, logits.to(torch.promote_types(dtype, torch.float32))


def _dtype_and_chunk(
    features: Tensor, weight: Tensor, chunk: int | None
) -> tuple[torch.dtype, int]:
    """Return the type of the products, autocast's where that is on, and the features at a time."""
    dtype, device = features.dtype, features.device.type
    if chunk is None:
        chunk = max(64, (CPU_LOGITS if device == "cpu" else DEVICE_LOGITS) // weight.shape[0])
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, but is {chunk}")
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    return dtype, chunk


@dataclasses.dataclass(frozen=True)
class _Plan:
    dtype: torch.dtype
    smoothing: float
    chunk: int
    may_need_gradients: bool
    aims: SoftTargets | None = None


@dataclasses.dataclass
class _Gradients:
    """What a pass over the chunks gathers: gradients of features, weight [V, D] and bias [V]."""

    features: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def any(self) -> bool:
        return any(x is not None for x in (self.features, self.weight, self.bias))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
        plan: _Plan,
    ) -> tuple[Tensor, Tensor]:
        total = torch.promote_types(plan.dtype, torch.float32)
        # Within no_grad, needs_input_grad still speaks of the tensors alone.
        wanted = [needs and plan.may_need_gradients for needs in ctx.needs_input_grad]
        found = _Gradients(
            torch.empty_like(features, dtype=plan.dtype) if wanted[0] else None,
            torch.zeros_like(weight, dtype=total) if wanted[1] else None,
            torch.zeros_like(bias, dtype=total) if bias is not None and wanted[2] else None,
        )
        with torch.autocast(features.device.type, enabled=False):
            sums = _run(features, weight, bias, targets, weights, plan, found)
        ctx.save_for_backward(found.features, found.weight, found.bias)
        ctx.dtypes = (features.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(sums[1])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        saved: tuple[Tensor | None, ...] = ctx.saved_tensors
        dtypes: tuple[torch.dtype, ...] = ctx.dtypes
        scaled = (
            None if held is None else held.mul(scale).to(dtype)
            for held, dtype in zip(saved, dtypes, strict=True)
        )
        return (*scaled, None, None, None)


def _run(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
    plan: _Plan,
    found: _Gradients,
) -> tuple[Tensor, Tensor]:
    """Go through the chunks: fill `found` and return the sums of loss and likelihood."""
    total = torch.promote_types(plan.dtype, torch.float32)
    shares = features.new_ones(len(targets), dtype=total) if weights is None else weights.to(total)
    matrix = weight.to(plan.dtype)
    shift = None if bias is None else bias.to(plan.dtype)
    mean_row = weight.mean(0, dtype=total)
    mean_bias = 0.0 if bias is None else bias.mean(dtype=total)
    loss, likelihood, aimed = features.new_zeros(3, dtype=total).unbind()
    for start in range(0, len(targets), plan.chunk):
        place = slice(start, start + plan.chunk)
        part, share, target = features[place].to(plan.dtype), shares[place], targets[place, None]
        logits = product(part, matrix, shift).to(total)
        probs = logits.softmax(1)
        # The largest probability is 1 / sum(exp(z - max z)): the normaliser without a second exp.
        normaliser = logits.amax(1) - probs.amax(1).log()
        likelihood += (normaliser - logits.gather(1, target)[:, 0]) @ share
        if plan.smoothing:
            mean_logit = part.to(total) @ mean_row + mean_bias
            loss += (normaliser - mean_logit) @ share
        errors = probs if found.any() else None
        if plan.aims is not None:
            aimed += _against(plan.aims[place], errors, logits, normaliser, plan.smoothing) @ share
        elif errors is not None:
            # Softmax minus the unsmoothed part of the target distribution, in place.
            errors.scatter_add_(1, target, probs.new_full(target.shape, plan.smoothing - 1.0))
        if errors is not None:
            _add_gradients(found, place, part, share, errors, matrix)
    if plan.smoothing and found.any():
        _add_smoothing(found, features, shares, mean_row, plan)
    loss = loss * plan.smoothing
    if plan.aims is not None:
        return aimed + loss, likelihood
    return likelihood * (1.0 - plan.smoothing) + loss, likelihood


def _against(
    aims: SoftTargets, errors: Tensor | None, logits: Tensor, normaliser: Tensor, smoothing: float
) -> Tensor:
    """Return the unsmoothed part of the loss [m] against `aims`, and turn `errors` to its gradient.

    errors, softmax before, and logits are [m, V]; normaliser is log sum exp z [m].
    """
    rest = normaliser.new_zeros(())
    if aims.entropy:
        logs = logits - normaliser[:, None]
        shares = logs.exp() if errors is None else errors
        negative = (shares * logs).sum(1)
        rest = aims.entropy * negative
        if errors is not None:
            # d(sum p log p) / dz = p (log p - sum p log p).
            errors.addcmul_(errors, logs - negative[:, None], value=aims.entropy)
    mean = aims.take(errors, logits, 1.0 - smoothing)
    return (normaliser - mean) * (1.0 - smoothing) + rest


def _add_gradients(
    found: _Gradients, place: slice, part: Tensor, share: Tensor, errors: Tensor, matrix: Tensor
) -> None:
    narrow = errors.to(part.dtype)
    if found.features is not None:
        found.features[place] = product(narrow, matrix.t())
        found.features[place].mul_(share[:, None])
    if found.weight is not None:
        scaled = (part * share[:, None]).to(part.dtype)
        found.weight.add_(product(narrow.t(), scaled.t()))
    if found.bias is not None:
        found.bias.addmv_(errors.t(), share)


def _add_smoothing(
    found: _Gradients, features: Tensor, shares: Tensor, mean_row: Tensor, plan: _Plan
) -> None:
    """Add what the uniform part of the target distribution contributes to the gradients."""
    if found.features is not None:
        found.features.addr_(shares.to(plan.dtype), mean_row.to(plan.dtype), alpha=-plan.smoothing)
    if found.weight is not None:
        mass = features.to(shares.dtype).t() @ shares
        found.weight.sub_(mass, alpha=plan.smoothing / len(found.weight))
    if found.bias is not None:
        found.bias.sub_(shares.sum() * (plan.smoothing / len(found.bias)))
