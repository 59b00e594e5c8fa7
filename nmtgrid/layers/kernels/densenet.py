"""The first half of a dense layer: scale, shift, ReLU and 1 x 1 map of all earlier features.

Side by side in memory, [M, f_L], stand the features of all layers so far; each layer reads those
before it. Kept as separate tensors they would be copied together for every layer, and the library
would hold every copy for the backward pass: memory quadratic in the depth. Here nothing is held
but the features themselves, the rectified ones are made again in the backward pass, and all
layers add to one gradient. A layer's gradient is complete when the layers behind it are done, so
the layers form a chain: each one takes the features appended last, and gives them their share.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtgrid.layers.kernels.linear import product


@dataclasses.dataclass(eq=False)
class _Store:
    """All features [M, f_L], where each layer's end, and the gradient of one backward pass."""

    features: Tensor
    ends: list[int]
    gradient: Tensor | None = None

    def first(self, count: int) -> Tensor:
        """Return the features of the first `count` parts, packed."""
        return self.features[:, : self.ends[count]].contiguous()

    def share(self, count: int) -> Tensor:
        """Return the gradient of part `count`, when all that read it have added theirs."""
        assert self.gradient is not None
        return self.gradient[:, self.ends[count - 1] : self.ends[count]].contiguous()


class DensePrefix:
    """Room for features [M, f_L], filled from the left: `append` in order, `map` what is there.

    One forward pass long; its backward pass may run more than once (`retain_graph`).
    """

    def __init__(self, like: Tensor, size: int) -> None:
        room = torch.empty(like.shape[0], size, dtype=like.dtype, device=like.device)
        self._store, self._count = _Store(room, [0]), 0
        self._last: Tensor | None = None

    def append(self, part: Tensor) -> None:
        """Put features [M, g] beside those before."""
        ends = self._store.ends
        ends.append(ends[-1] + part.shape[1])
        self._store.features[:, ends[-2] : ends[-1]] = part.detach()
        self._last, self._count = part, self._count + 1

    def now(self) -> Self:
        """Return what is held now, whatever is appended later."""
        return copy.copy(self)

    def map(self, scale: Tensor, shift: Tensor, weight: Tensor, *, last: bool = False) -> Tensor:
        """Return relu(features * scale + shift) weight^T [M, D'] of all features so far.

        weight [D', f] may be float32 beside bfloat16 features. `last` says that nothing else
        will read the features.
        """
        kind = self._store.features.dtype
        mapped: Tensor = _Map.apply(  # type: ignore[no-untyped-call]
            self._last, scale, shift, weight.to(kind), self._store, self._count, last
        )
        return mapped

    def whole(self) -> Tensor:
        """Return all features [M, f_L]; nothing else may read them."""
        found: Tensor = _Whole.apply(self._last, self._store)  # type: ignore[no-untyped-call]
        return found


def plain_dense_map(parts: list[Tensor], scale: Tensor, shift: Tensor, weight: Tensor) -> Tensor:
    """Return relu(features * scale + shift) weight^T [M, D'] for parts [M, g]: the plain twin."""
    features = torch.cat(parts, -1)
    return torch.relu(features * scale + shift) @ weight.t()


class _Map(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        last_part: Tensor,
        scale: Tensor,
        shift: Tensor,
        weight: Tensor,
        store: _Store,
        count: int,
        is_last: bool,
    ) -> Tensor:
        ctx.save_for_backward(scale, shift, weight)
        ctx.store, ctx.count, ctx.is_last = store, count, is_last
        return product(_rectified(store.first(count), scale, shift), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scale, shift, weight = ctx.saved_tensors
        store: _Store = ctx.store
        features = store.first(ctx.count)
        rectified = _rectified(features, scale, shift)
        of_weight = product(gradient.t(), rectified.t())
        of_rectified = product(gradient, weight.t())
        torch.ops.aten.threshold_backward.grad_input(
            of_rectified, rectified, 0, grad_input=of_rectified
        )
        zero, one = torch.zeros_like(scale), torch.ones_like(scale)
        # The library's one pass for scale, shift and input: batch norm of known moments, which on
        # CUDA it wants as those of a batch too.
        of_features, of_scale, of_shift = torch.ops.aten.native_batch_norm_backward(
            of_rectified, features, scale, zero, one, zero, one, False, 0.0, [True, True, True]
        )
        if ctx.is_last:
            store.gradient = of_features
        else:
            assert store.gradient is not None
            store.gradient[:, : features.shape[1]].add_(of_features)
        return store.share(ctx.count), of_scale, of_shift, of_weight, None, None, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, last_part: Tensor, store: _Store) -> Tensor:
        ctx.store = store
        return store.features.view_as(store.features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        store: _Store = ctx.store
        store.gradient = gradient.clone()
        return store.share(len(store.ends) - 1), None


def _rectified(features: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    zero, one = torch.zeros_like(scale), torch.ones_like(scale)
    moved: Tensor = torch.native_batch_norm(features, scale, shift, zero, one, False, 0.0, 0.0)[0]
    return moved.relu_()
