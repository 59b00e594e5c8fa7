"""Copies in bfloat16 of the weights that are multiplied in it, all cast together.

Autocast casts the weights of each layer where they are used, and their gradients one by one: most
kernels of a small model's update on a GPU are such casts. Here a few kernels cast all. What is
computed is the same. Used by update.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class LowPrecisionCopies:
    """Copies of the weights and biases of a model's linear layers.

    Weights that another layer has too, as tied embeddings, are left to autocast.
    """

    def __init__(self, model: nn.Module) -> None:
        others = {
            id(parameter)
            for module in model.modules()
            if not isinstance(module, nn.Linear)
            for parameter in module.parameters(recurse=False)
        }
        self._uses: list[tuple[nn.Module, str, nn.Parameter, Tensor]] = []
        copies: dict[nn.Parameter, Tensor] = {}
        for module in model.modules():
            if not isinstance(module, nn.Linear):
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in others or not parameter.requires_grad:
                    continue
                if parameter.dtype is torch.float32:
                    copy = torch.empty_like(parameter, dtype=torch.bfloat16).requires_grad_()
                    copy = copies.setdefault(parameter, copy)
                    self._uses.append((module, name, parameter, copy))
        self._parameters, self._copies = list(copies), list(copies.values())

    @torch.no_grad()
    def update(self) -> None:
        """Cast the weights as they are now."""
        if self._copies:
            torch._foreach_copy_(self._copies, self._parameters)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers have the copies inside, for a forward and a backward pass.

        The gradients are added to those of the weights, unless an error leaves the context.
        """
        for module, name, _, copy in self._uses:
            # Past the check that a parameter is an `nn.Parameter`.
            module._parameters[name] = copy  # type: ignore[assignment]
        try:
            yield
            self._add_gradients()
        finally:
            for module, name, parameter, copy in self._uses:
                module._parameters[name], copy.grad = parameter, None

    @torch.no_grad()
    def _add_gradients(self) -> None:
        low, high, sums = [], [], []
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            if copy.grad is not None:
                low.append(copy.grad)
                high.append(torch.empty_like(parameter))
                if parameter.grad is None:
                    parameter.grad = high[-1]
                else:
                    sums.append((parameter.grad, high[-1]))
        if low:
            torch._foreach_copy_(high, low)
        if sums:
            torch._foreach_add_(*map(list, zip(*sums, strict=True)))
