"""The running average of the weights, and trying out other weights for a moment.

Weights are all that the state dict holds: parameters, and buffers such as running statistics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn


class RunningAverage:
    """An exponential average of a model's weights; early on it forgets faster.

    The step after n others keeps min(decay, 1 - 1/(n + 1)): the first one takes the weights as they
    are, and the next ones are plain means, so that what the weights began with has no part in it.
    Running statistics are averaged as the weights that they belong to; whole numbers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._live = live_weights(model)
        self.weights = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Take in the weights as they are now."""
        self.steps += 1
        kept = min(self.decay, 1.0 - 1.0 / self.steps)
        names = [name for name, held in self.weights.items() if held.is_floating_point()]
        live = [self._live[name].detach() for name in names]
        torch._foreach_lerp_([self.weights[name] for name in names], live, 1.0 - kept)
        for name in self.weights.keys() - set(names):
            self.weights[name].copy_(self._live[name])

    def buffers(self) -> list[Tensor]:
        """Return the averages of all that are not parameters."""
        pairs = ((held, self._live[name]) for name, held in self.weights.items())
        return [held for held, live in pairs if not isinstance(live, nn.Parameter)]

    @torch.no_grad()
    def restore(
        self, weights: Mapping[str, Tensor], steps: int, put: Callable[[Tensor, Tensor], object]
    ) -> None:
        """Put back the average of a saved state by `put`; what it lacks begins as it is now."""
        for name, held in self.weights.items():
            if name in weights:
                put(held, weights[name])
            else:
                held.copy_(self._live[name])
        self.steps = steps


def live_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, and the buffers that are saved, by name; shared ones once.

    Without a look at the state dict, for which weights that are brought together would be parted.
    """
    unsaved = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name: held for name, held in model.named_buffers() if name not in unsaved}
    return {**dict(model.named_parameters()), **buffers}


@contextlib.contextmanager
def exchanged(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the model have `weights` (by name) inside, and its own ones again after."""
    live = live_weights(model)
    own = {name: held.data for name, held in live.items()}
    try:
        for name, held in live.items():
            held.data = weights[name].to(held.device)
        yield
    finally:
        for name, held in live.items():
            held.data = own[name]
