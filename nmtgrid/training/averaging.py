"""The running average of the weights, and trying out other weights for a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class RunningAverage:
    """An exponential average of a model's parameters; early on it forgets faster.

    The step after n others keeps min(decay, 1 - 1/(n + 1)): the first ones are plain means.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._live = dict(model.named_parameters())
        self.weights = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Take in the parameters as they are now."""
        self.steps += 1
        kept = min(self.decay, 1.0 - 1.0 / (self.steps + 1))
        live = [p.detach() for p in self._live.values()]
        torch._foreach_lerp_(list(self.weights.values()), live, 1.0 - kept)

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor], steps: int) -> None:
        """Put back the average of a saved state."""
        for name, held in self.weights.items():
            held.copy_(weights[name])
        self.steps = steps


@contextlib.contextmanager
def exchanged(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the model have `weights` (by parameter name) inside, and its own ones again after."""
    parameters = dict(model.named_parameters())
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = weights[name].to(parameter.device)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]
