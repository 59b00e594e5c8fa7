"""Optimisers, gradient clipping, and schedules of the learning rate. Eq. (2.31) is one of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmtgrid.training.settings import TrainingSettings


def make_optimiser(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return the optimiser, its fused form; vectors, as of biases and norms, are not decayed."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() <= 1]
    groups = [
        {"params": group, "weight_decay": decay}
        for group, decay in ((matrices, settings.weight_decay), (vectors, 0.0))
        if group
    ]
    if settings.optimiser == "nesterov":
        return torch.optim.SGD(
            groups, lr=0.0, momentum=settings.momentum, nesterov=settings.momentum > 0, fused=True
        )
    kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    # The rate is set before each update, by `LearningRate`.
    betas = (settings.beta1, settings.beta2)
    return kind(groups, lr=0.0, betas=betas, eps=settings.epsilon, fused=True)


def optimiser_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's moments and step counts under `<parameter>|<name>`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}|{key}": value
        for parameter, moments in optimiser.state.items()
        for key, value in moments.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(
    optimiser: torch.optim.Optimizer,
    model: nn.Module,
    tensors: dict[str, Tensor],
    like: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Put back what `optimiser_tensors` returned, by `like` on each parameter's device or shard."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter_name, key = name.split("|")
        parameter = parameters[parameter_name]
        optimiser.state[parameter][key] = like(parameter, value)


def clip_and_scale(
    gradients: list[Tensor],
    tokens: float,
    clip_norm: float,
    over_all: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Divide the summed gradients by `tokens`, clip them by their norm and return that norm.

    The norm is the one before clipping, of the divided gradient. `over_all` sums squares over the
    processes where each has a shard of the gradients.
    """
    # One fused call for all tensors: a loop would launch a kernel, or two, for each.
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if over_all is not None:
        # Squares of shards add up over the processes, norms do not.
        norm = over_all(norm.double().square()).sqrt().to(norm)
    norm = norm / tokens
    # One multiplication for both: the gradients are passed over once more, not twice.
    factor = torch.full_like(norm, 1.0 / tokens)
    if clip_norm > 0:
        # The small number keeps a gradient of zero from a division by zero.
        factor = factor * torch.clamp(clip_norm / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(gradients, factor)
    return norm


class LearningRate:
    """The learning rate of each update, by the schedule in `settings`."""

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings
        self.factor = 1.0
        self.best = math.inf
        self.waited = 0

    def at(self, updates: int, minutes: float) -> float:
        """Return the rate of the update that follows so many `updates` and `minutes`."""
        s, update = self.settings, updates + 1
        if s.schedule == "cosine-time":
            return self._cosine(minutes / s.max_minutes, s.warmup_fraction)
        if s.schedule == "cosine":
            return self._cosine(update / s.max_updates, s.warmup_updates / s.max_updates)
        if update < s.warmup_updates:
            return self._warm(update / s.warmup_updates)
        if s.schedule == "inverse-sqrt":
            # Eq. (2.31)
            return s.learning_rate * math.sqrt(max(s.warmup_updates, 1) / update)
        if s.schedule == "step":
            past = (update - s.warmup_updates) // s.decay_updates
            return float(s.learning_rate * s.decay_factor**past)
        return s.learning_rate * self.factor

    def evaluated(self, loss: float) -> None:
        """Take a validation loss: after `decay_patience` without improvement the rate decays.

        An improvement is a loss below the best one by more than `decay_threshold`.
        """
        if self.settings.schedule != "plateau":
            return
        if loss < self.best - self.settings.decay_threshold:
            self.best, self.waited = loss, 0
            return
        # A loss that is no number is no improvement either.
        self.waited += 1
        if self.waited >= self.settings.decay_patience:
            self.factor *= self.settings.decay_factor
            self.waited = 0

    def state(self) -> dict[str, float | int | None]:
        """Return what a resumed run needs."""
        # JSON has no infinity.
        best = None if math.isinf(self.best) else self.best
        return {"factor": self.factor, "best": best, "waited": self.waited}

    def restore(self, state: dict[str, float | int | None]) -> None:
        """Put back what `state` returned."""
        best = state["best"]
        self.factor = float(state["factor"] or 0.0)
        self.best = math.inf if best is None else float(best)
        self.waited = int(state["waited"] or 0)

    def _warm(self, fraction: float) -> float:
        start, peak = self.settings.initial_learning_rate, self.settings.learning_rate
        return start + (peak - start) * fraction

    def _cosine(self, fraction: float, warmup: float) -> float:
        """Return the rate at `fraction` of the run, of which the first `warmup` climbs."""
        if fraction < warmup:
            return self._warm(fraction / warmup)
        peak, floor = self.settings.learning_rate, self.settings.final_learning_rate
        past = min(1.0, (fraction - warmup) / max(1.0 - warmup, 1e-9))
        return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * past)))
