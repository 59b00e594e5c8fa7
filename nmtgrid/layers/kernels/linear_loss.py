"""Losses fused with the output projection, so that no logits [M, V] are stored.

Label-smoothed cross-entropy, likelihoods, and divergences between predictions.

All training objectives end here; benchmarks/kernels.py compares it with the naive form.
"""

# The features are processed in chunks. Each chunk's logits are turned into gradients already in the
# forward pass, and dropped: three matrix products, no recomputation, memory independent of M.
# With p = softmax(z), smoothing eps and weights w, the gradient of sum_i w_i loss_i is
# `w_i (p_iv - eps/V - (1-eps) [v = y_i])`. The eps/V part has rank one, and w scales rows, so both
# are applied to [M, D] and [V, D] tensors rather than to the logits. A target distribution other
# than one token (`SoftTargets`) takes the place of `[v = y_i]`.
#
# R-Drop has two predictions p and q of each site, whose rows are in the same chunk. With
# d = log p - log q and K = sum_v p_v d_v the gradient of KL(p||q) + KL(q||p) with respect to the
# logits of p is `p_v (d_v - K) + p_v - q_v`; that for q is the same with p and q exchanged.
#
# A teacher's prediction q of each site is computed chunk by chunk too, without a gradient; the
# gradient of KL(q||p) with respect to the logits of p is `p_v - q_v`.

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.base.rows import host_values, ragged_positions
from nmtgrid.layers.kernels.linear import product, working_dtype
from nmtgrid.layers.soft_targets import SoftTargets

CPU_LOGITS = 2**22
DEVICE_LOGITS = 2**26
"""Logits per chunk: on a CPU few enough for its caches, elsewhere enough to fill the device."""


ChunkIndex = slice | Tensor
"""The indices of the features in a chunk."""


@dataclasses.dataclass(frozen=True)
class Teacher:
    """The predictions of a teacher: features [M, D'] (detached) and their classifier.

    `share` is the weight of KL(teacher || prediction), which is added to the cross-entropy.
    """

    features: Tensor
    weight: Tensor
    bias: Tensor | None
    share: float

    def divergence(self, rows: ChunkIndex, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return KL(q || p) [m] of predictions log p [m, V], and the teacher's q [m, V]."""
        part, dtype = self.features[rows], working_dtype(self.features)
        bias = None if self.bias is None else self.bias.to(dtype)
        logits = product(part.to(dtype), self.weight.to(dtype), bias).to(log_probs.dtype)
        log_q = logits.log_softmax(1)
        q = log_q.exp()
        return (q * log_q.sub_(log_probs)).sum(1), q


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    chunk: int | None = None,
    soft_targets: SoftTargets | None = None,
    r_drop: float | None = None,
    teacher: Teacher | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums (loss with gradient, negative log-likelihood without).

    features [M, D], weight [V, D], bias [V] or None, targets [M] int64, weights [M] or None for
    ones (they get no gradient). Smoothing spreads eps over all V types, the target included. The
    products are computed in the features' dtype, or autocast's if it is on, and logits are reduced
    in float32 at least; logarithms are natural. `chunk` is the number of features processed at a
    time (None: chosen for the device). If there are `soft_targets` [M, C], the loss is computed
    against these; the likelihood remains that of the targets.

    With `r_drop` (alpha) features are [2M, D]: those of a second pass with other dropout follow
    those of the first. Both sums are then means over the passes p and q, and the loss of a site is
    (CE(p) + CE(q)) / 2 + alpha / 4 (KL(p || q) + KL(q || p)): R-Drop, section 2.1 of Liang et al.
    (2021).

    Departs: The R-Drop loss is printed as a sum over both passes. Here it is their mean, half of
    that, so that it has the scale of one pass; alpha is the printed one.

    A `teacher` has as many features; its weighted divergence is added to the loss.

    Raises: ValueError for smoothing outside [0, 1), a chunk below 1, or a wrong number of features.
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1), but is {label_smoothing}")
    passes = 1 if r_drop is None else 2
    if len(features) != passes * len(targets):
        raise ValueError(
            f"features must be {passes} for each target, but are {len(features)} for {len(targets)}"
        )
    if r_drop is not None:
        # Each pass has half of its site's weight.
        weights = features.new_ones(len(targets)) if weights is None else weights
        targets, weights = targets.repeat(2), weights.repeat(2) / 2
        soft_targets = None if soft_targets is None else soft_targets.repeat(2)
    dtype, chunk = dtype_and_chunk(features, weight, chunk)
    grad_enabled = torch.is_grad_enabled()
    chunked = _ChunkedLoss(
        dtype, label_smoothing, chunk, grad_enabled, soft_targets, r_drop, teacher
    )
    sums: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        features, weight, bias, targets, weights, chunked
    )
    return sums


@torch.no_grad()
def linear_nll(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunk: int | None = None,
    predictions: Tensor | None = None,
) -> Tensor:
    """Return -log p of each target [M], without gradient; see `linear_cross_entropy`.

    The most likely type, with ties going to the lowest, is written into `predictions` [M] (int64),
    unless that is None.
    """
    dtype, chunk = dtype_and_chunk(features, weight, chunk)
    matrix, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    nll = features.new_empty(len(targets), dtype=torch.promote_types(dtype, torch.float32))
    with torch.autocast(features.device.type, enabled=False):
        for rows, _, logits in _chunks(features, matrix, bias, _slices(len(nll), chunk)):
            nll[rows] = F.cross_entropy(logits, targets[rows], reduction="none")
            if predictions is not None:
                torch.argmax(logits, 1, out=predictions[rows])
    return nll


Measure = Literal["kl", "total-variation", "euclidean", "cosine"]
"""A divergence of a prediction p from a reference q, on a scale from 0 (the same) to 1.

"kl" is 1 - exp(-KL(q || p)), which increases with the Kullback-Leibler divergence;
"total-variation" is half the sum of |q - p|; "euclidean" is the norm of q - p divided by the square
root of 2; "cosine" is 1 minus the cosine of p and q.
"""


@torch.no_grad()
def linear_divergence(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    widths: Tensor,
    measure: Measure,
    chunk: int | None = None,
) -> Tensor:
    """Return [M]: the divergence of the prediction at each site from that at its row's last site.

    features [M, D] are those of rows of `widths` [N] sites, row after row; weight [V, D], bias [V]
    or None. Computed in float32 at least, without gradient; `chunk` is the number of features
    processed at a time, together with at most as many last sites. See `linear_cross_entropy`.

    Raises: ValueError for a chunk below 1.
    """
    dtype, chunk = dtype_and_chunk(features, weight, chunk)
    matrix, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    total = torch.promote_types(dtype, torch.float32)
    values = features.new_empty(len(features), dtype=total)
    row, _ = ragged_positions(widths, len(features))
    last, ends = widths.cumsum(0) - 1, list(itertools.accumulate(host_values(widths)))

    def log_probs(rows: ChunkIndex) -> Tensor:
        return product(features[rows].to(dtype), matrix, bias).to(total).log_softmax(1)

    with torch.autocast(features.device.type, enabled=False):
        for sites in _slices(len(features), chunk):
            # Logits of a row's last site are computed once for all its sites in the chunk.
            first = bisect.bisect_right(ends, sites.start)
            stop = bisect.bisect_left(ends, min(sites.stop, len(features))) + 1
            log_q = log_probs(last[first:stop])[row[sites] - first]
            values[sites] = _distance(measure, log_probs(sites), log_q).clamp(0.0, 1.0)
    return values


def _distance(measure: Measure, log_p: Tensor, log_q: Tensor) -> Tensor:
    if measure == "kl":
        return -torch.expm1((log_q.exp() * (log_p - log_q)).sum(1))
    p, q = log_p.exp(), log_q.exp()
    if measure == "total-variation":
        return (q - p).abs().sum(1) / 2
    if measure == "euclidean":
        return ((q - p).square().sum(1) / 2).sqrt()
    # No norm is zero: the largest of V probabilities is at least 1 / V.
    return 1 - F.cosine_similarity(p, q, dim=1)


def _slices(count: int, chunk: int) -> Iterator[slice]:
    for start in range(0, count, chunk):
        yield slice(start, start + chunk)


def _pairs(count: int, chunk: int, device: torch.device) -> Iterator[Tensor]:
    """Yield indices of chunks: the rows of some sites in the first pass, then in the second."""
    for sites in torch.arange(count // 2, device=device).split(max(1, chunk // 2)):
        yield torch.cat([sites, sites + count // 2])


def _chunks(
    features: Tensor, matrix: Tensor, bias: Tensor | None, chunks: Iterable[ChunkIndex]
) -> Iterator[tuple[ChunkIndex, Tensor, Tensor]]:
    total = torch.promote_types(matrix.dtype, torch.float32)
    for rows in chunks:
        part = features[rows].to(matrix.dtype)
        yield rows, part, product(part, matrix, bias).to(total)


def dtype_and_chunk(features: Tensor, weight: Tensor, chunk: int | None) -> tuple[torch.dtype, int]:
    """Return the type of the products, autocast's if it is on, and the features per chunk."""
    if chunk is None:
        logits = CPU_LOGITS if features.device.type == "cpu" else DEVICE_LOGITS
        chunk = max(64, logits // weight.shape[0])
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, but is {chunk}")
    return working_dtype(features), chunk


@dataclasses.dataclass
class _ChunkedLoss:
    """The loss, chunk by chunk; accumulates the gradients of features, weight [V, D], bias [V]."""

    dtype: torch.dtype
    smoothing: float
    chunk: int
    grad_enabled: bool
    soft_targets: SoftTargets | None
    r_drop: float | None = None
    teacher: Teacher | None = None
    of_features: Tensor | None = None
    of_weight: Tensor | None = None
    of_bias: Tensor | None = None

    def compute(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Fill the gradients that are not None and return the sums of loss and likelihood."""
        total = torch.promote_types(self.dtype, torch.float32)
        with_gradient = any(x is not None for x in (self.of_features, self.of_weight, self.of_bias))
        if weights is None:
            weights = features.new_ones(len(targets), dtype=total)
        mean_row = weight.mean(0, dtype=total)
        mean_bias = 0.0 if bias is None else bias.mean(dtype=total)  # before it is rounded
        weights, matrix = weights.to(total), weight.to(self.dtype)
        bias = None if bias is None else bias.to(self.dtype)
        sums = features.new_zeros(5, dtype=total).unbind()
        uniform, likelihood, against, divergence, distilled = sums
        chunks: Iterable[ChunkIndex] = _slices(len(features), self.chunk)
        if self.r_drop is not None:
            chunks = _pairs(len(features), self.chunk, features.device)
        for rows, part, logits in _chunks(features, matrix, bias, chunks):
            share, target = weights[rows], targets[rows, None]
            probs = logits.softmax(1)
            # The largest probability is 1 / sum(exp(z - max z)), which gives the normaliser without
            # a second exp.
            normaliser = logits.amax(1) - probs.amax(1).log()
            likelihood += (normaliser - logits.gather(1, target)[:, 0]) @ share
            if self.smoothing:
                # The mean logit of all types is the logit of the mean type: one product of [D].
                mean_logit = part.to(total) @ mean_row + mean_bias
                uniform += (normaliser - mean_logit) @ share
            slope = None
            if self.r_drop is not None:
                # Before the probabilities are overwritten.
                distance, slope = _divergence(logits - normaliser[:, None], probs, with_gradient)
                divergence += distance @ share[: len(distance)]
                slope = None if slope is None else slope.mul_(0.5 * self.r_drop)
            if self.teacher is not None:
                distance, q = self.teacher.divergence(rows, logits - normaliser[:, None])
                distilled += distance @ share
                slope = self._with_teacher(slope, probs, q) if with_gradient else None
            errors = probs if with_gradient else None
            if self.soft_targets is not None:
                against += self._soft_loss(rows, errors, logits, normaliser) @ share
            elif errors is not None:
                # Softmax minus the unsmoothed part of the target distribution, in place.
                errors.scatter_add_(1, target, probs.new_full(target.shape, self.smoothing - 1.0))
            if errors is not None:
                if slope is not None:
                    errors.add_(slope)
                self._add_gradients(rows, part, share, errors, matrix)
        if self.smoothing and with_gradient:
            self._add_smoothing(features, weights, mean_row)
        plain = likelihood * (1.0 - self.smoothing) if self.soft_targets is None else against
        loss = plain + uniform * self.smoothing
        taught = 0.0 if self.teacher is None else self.teacher.share
        beside = 0.5 * (self.r_drop or 0.0) * divergence + taught * distilled
        return loss + beside, likelihood

    def _with_teacher(self, slope: Tensor | None, probs: Tensor, q: Tensor) -> Tensor:
        """Return `slope` [m, V] (None: zero) plus the teacher's gradient; `q` is overwritten."""
        assert self.teacher is not None
        pull = torch.sub(probs, q, out=q).mul_(self.teacher.share)
        return pull if slope is None else slope.add_(pull)

    def _soft_loss(
        self, rows: ChunkIndex, errors: Tensor | None, logits: Tensor, normaliser: Tensor
    ) -> Tensor:
        """Return the unsmoothed part of the loss [m], and turn `errors` into its gradient.

        errors [m, V], at first the softmax; logits [m, V]; normaliser [m] is log sum exp z.
        """
        assert self.soft_targets is not None
        soft_targets, negative_entropy = self.soft_targets[rows], normaliser.new_zeros(())
        if soft_targets.entropy:
            log_probs = logits - normaliser[:, None]
            probs = log_probs.exp() if errors is None else errors
            negative = (probs * log_probs).sum(1)
            negative_entropy = soft_targets.entropy * negative
            if errors is not None:
                # d(sum p log p) / dz = p (log p - sum p log p).
                slope = log_probs - negative[:, None]
                errors.addcmul_(errors, slope, value=soft_targets.entropy)
        mean = soft_targets.subtract_(errors, logits, 1.0 - self.smoothing)
        return (normaliser - mean) * (1.0 - self.smoothing) + negative_entropy

    def _add_gradients(
        self, rows: ChunkIndex, part: Tensor, share: Tensor, errors: Tensor, matrix: Tensor
    ) -> None:
        # The weights scale [m, D] tensors here, not the errors [m, V].
        narrow = errors.to(part.dtype)
        if self.of_features is not None:
            self.of_features[rows] = product(narrow, matrix.t()).mul_(share[:, None])
        if self.of_weight is not None:
            scaled = (part * share[:, None]).to(part.dtype)
            self.of_weight.add_(product(narrow.t(), scaled.t()))
        if self.of_bias is not None:
            self.of_bias.addmv_(errors.t(), share)

    def _add_smoothing(self, features: Tensor, weights: Tensor, mean_row: Tensor) -> None:
        """Add the gradients of the uniform part of the target distribution."""
        eps = self.smoothing
        if self.of_features is not None:
            self.of_features.addr_(weights.to(self.dtype), mean_row.to(self.dtype), alpha=-eps)
        if self.of_weight is not None:
            mass = features.to(weights.dtype).t() @ weights
            self.of_weight.sub_(mass, alpha=eps / len(self.of_weight))
        if self.of_bias is not None:
            self.of_bias.sub_(weights.sum() * (eps / len(self.of_bias)))


def _divergence(
    log_probs: Tensor, probs: Tensor, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return KL(p || q) + KL(q || p) [m], and its gradient [2m, V] with respect to the logits.

    log_probs and probs are [2m, V], those of p before those of q.
    """
    (log_p, log_q), (p, q) = log_probs.chunk(2), probs.chunk(2)
    difference = log_p.sub_(log_q)
    of_p, of_q = (p * difference).sum(1), -(q * difference).sum(1)
    if not with_gradient:
        return of_p + of_q, None
    # Overwrites the log-probabilities, which are not read again.
    torch.mul(q, 1.0 - of_q[:, None] - difference, out=log_q)
    difference.add_(1.0 - of_p[:, None]).mul_(p).sub_(q)
    log_q.sub_(p)
    return of_p + of_q, log_probs


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
        chunked: _ChunkedLoss,
    ) -> tuple[Tensor, Tensor]:
        total = torch.promote_types(chunked.dtype, torch.float32)
        # Within no_grad, needs_input_grad still depends on the tensors only.
        needs = [needs and chunked.grad_enabled for needs in ctx.needs_input_grad]
        if needs[0]:
            chunked.of_features = torch.empty_like(features, dtype=chunked.dtype)
        if needs[1]:
            chunked.of_weight = torch.zeros_like(weight, dtype=total)
        if bias is not None and needs[2]:
            chunked.of_bias = torch.zeros_like(bias, dtype=total)
        with torch.autocast(features.device.type, enabled=False):
            sums = chunked.compute(features, weight, bias, targets, weights)
        ctx.save_for_backward(chunked.of_features, chunked.of_weight, chunked.of_bias)
        ctx.dtypes = (features.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(sums[1])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor | None, ...] = ctx.saved_tensors
        dtypes: tuple[torch.dtype, ...] = ctx.dtypes
        # The loss is a scalar, so its gradient is a factor of the sums of the forward pass.
        scaled = (
            None if gradient is None else gradient.mul(gradients[0]).to(dtype)
            for gradient, dtype in zip(saved, dtypes, strict=True)
        )
        return (*scaled, None, None, None)
