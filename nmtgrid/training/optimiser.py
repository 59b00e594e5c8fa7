"""Optimisers and learning-rate schedules, among them Eq. (2.31).

Called by trainer.py, which saves the moments, and by benchmarks that set up updates themselves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.records import Count, Finite, Probability
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.update import has_fast_bf16
from nmtgrid.training.weights import check_tensor


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the hidden matrices, AdamW for all other parameters: one optimiser with one state.

    Muon replaces a matrix's momentum by the nearest semi-orthogonal matrix (Jordan et al., 2024),
    here scaled to the root mean square of AdamW's updates (Liu et al., 2025), so that one learning
    rate serves both. A kernel [D', D, ...] of a convolution is a matrix [D', D ...].
    """

    # Like `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, which takes only matrices and
    # always iterates in bfloat16: a processor without bfloat16 instructions takes 15 times as long.
    # Matrices of one shape are updated together, which gives the same numbers in fewer operations.

    def __init__(
        self,
        hidden: Sequence[nn.Parameter],
        adamw: torch.optim.Optimizer,
        settings: TrainingSettings,
    ) -> None:
        super().__init__([{"params": hidden, "weight_decay": settings.weight_decay}], {"lr": 0.0})
        self.hidden = frozenset(hidden)
        self.momentum = settings.muon_momentum
        fast = has_fast_bf16(hidden[0].device)
        self.dtype = torch.bfloat16 if fast else torch.float32
        """Data type of the Newton-Schulz iterations."""
        self.found_inf: Tensor | None = None
        """1 if the update is skipped, else 0; named as in torch's fused optimisers."""
        self._adamw = adamw
        # Shared, so that rates, gradients and moments of all parameters are those of this one.
        self.param_groups += adamw.param_groups
        adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have gradients, unless `found_inf`."""
        group, skips = self.param_groups[0], torch.tensor(False)
        if self.found_inf is not None:
            skips = self.found_inf.bool()
        # One-dimensional, so that products have its type: torch's fast kernels add equal types.
        applied = torch.where(skips, 0.0, 1.0).view(1)
        weight_decay = torch.where(skips, 1.0, 1 - group["lr"] * group["weight_decay"])
        for parameters in _of_one_shape(p for p in group["params"] if p.grad is not None):
            buffers = [self._momentum_buffer(parameter) for parameter in parameters]
            momentum = torch.stack(buffers)
            # A gradient that is not finite is replaced by the momentum, which then stays unchanged.
            gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
            gradient = torch.where(skips, momentum, gradient)
            momentum.lerp_(gradient, 1 - self.momentum)
            torch._foreach_copy_(buffers, momentum.unbind())
            # Nesterov's momentum
            nesterov = gradient.lerp_(momentum, self.momentum)
            update = orthogonalise(nesterov.flatten(2).to(self.dtype))
            size = 0.2 * math.sqrt(max(update.shape[1:]))
            update = update.view_as(momentum) * applied
            torch._foreach_mul_(parameters, weight_decay)
            torch._foreach_add_(parameters, update.unbind(), alpha=-group["lr"] * size)
        self._adamw.found_inf = self.found_inf  # type: ignore[attr-defined]
        self._adamw.step()

    def _momentum_buffer(self, parameter: Tensor) -> Tensor:
        """Return the momentum buffer of a matrix, the decaying mean of its gradients."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _of_one_shape(parameters: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Return the parameters in groups of the same shape, so that few operations update them."""
    groups: dict[torch.Size, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.shape, []).append(parameter)
    return groups.values()


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return approximately U V^T for each matrix U S V^T [N, D', D], by 5 Newton-Schulz iterations.

    Singular values of 0.002 of the matrix's norm or more come out between 0.6 and 1.2, zeros stay
    zero (Jordan et al., 2024).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrices.shape[1] > matrices.shape[2]
    # The shorter side has the smaller products.
    x = matrices.mT if is_tall else matrices
    # Divided by their norms, all singular values are at most 1.
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def make_optimiser(model: TranslationModel, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return the optimiser in its fused form; vectors (biases, norms) have no weight decay.

    Raises ConfigError for Muon and a model without hidden matrices.
    """
    hidden = model.hidden_matrices() if settings.optimiser == "muon" else []
    if settings.optimiser == "muon" and not hidden:
        raise ConfigError(
            "`training.optimiser=muon` updates hidden matrices, but this model has none.",
            "Set it to `adamw`.",
        )
    moved = set(hidden)
    parameters = [p for p in model.parameters() if p.requires_grad and p not in moved]
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
    kind = torch.optim.Adam if settings.optimiser == "adam" else torch.optim.AdamW
    # The rate is set before each update, by `LearningRate`.
    betas = (settings.beta1, settings.beta2)
    rest = kind(groups, lr=0.0, betas=betas, eps=settings.epsilon, fused=True)
    return MuonAdamW(hidden, rest, settings) if hidden else rest


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
    """Restore the result of `optimiser_tensors`; `like` moves it to a parameter's device or shard.

    Raises ValueError naming a tensor that is not one of this optimiser and model.
    """
    parameters = dict(model.named_parameters())
    keys = _moment_names(optimiser)
    for name, value in tensors.items():
        parameter_name, _, key = name.rpartition("|")
        parameter = parameters.get(parameter_name)
        if parameter is None or key not in keys.get(parameter, ()):
            raise ValueError(f"`{name}` is not of this model and optimiser")
        # Counted in float32, whatever the weights are.
        shape, dtype = ((), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
        check_tensor(name, value, shape, dtype)
        if key in ("step", "exp_avg_sq") and (value < 0).any():
            raise ValueError(f"`{name}` has negative numbers")
        optimiser.state[parameter][key] = like(parameter, value)
    for parameter_name, parameter in parameters.items():
        state = optimiser.state.get(parameter)
        if state is not None and (lacks := keys[parameter] - state.keys()):
            raise ValueError(f"`{parameter_name}|{min(lacks)}` is missing")


def _moment_names(optimiser: torch.optim.Optimizer) -> dict[Tensor, set[str]]:
    """Return the names of the optimiser's state per parameter."""
    buffers, adam = {"momentum_buffer"}, {"step", "exp_avg", "exp_avg_sq"}
    hidden = optimiser.hidden if isinstance(optimiser, MuonAdamW) else frozenset()
    is_sgd = isinstance(optimiser, torch.optim.SGD)
    return {
        parameter: buffers if is_sgd or parameter in hidden else adam
        for group in optimiser.param_groups
        for parameter in group["params"]
    }


@dataclasses.dataclass(frozen=True)
class RateState:
    """The state of a schedule that depends on validation; part of the saved state."""

    factor: Probability
    best: Finite | None
    waited: Count


class LearningRate:
    """The learning rate of each update according to the schedule in `settings`."""

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings
        self.factor = 1.0
        self.best = math.inf
        self.waited = 0

    def at(self, updates: int, minutes: float) -> float:
        """Return the rate of the update that follows after `updates` and `minutes`."""
        s, update = self.settings, updates + 1
        # The position in the run and the end of the warm-up, in the schedule's own unit.
        position, warmup = float(update), float(s.warmup_updates)
        if s.schedule == "cosine-time":
            position, warmup = minutes / s.max_minutes, s.warmup_fraction
        elif s.schedule == "cosine":
            position, warmup = update / s.max_updates, s.warmup_updates / s.max_updates
        if position < warmup:
            climbed = (s.learning_rate - s.initial_learning_rate) * (position / warmup)
            return s.initial_learning_rate + climbed
        if s.schedule.startswith("cosine"):
            past = min(1.0, (position - warmup) / max(1.0 - warmup, 1e-9))
            floor = s.final_learning_rate
            falling = floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * past))
            return s.learning_rate * falling
        if s.schedule == "inverse-sqrt":
            # Eq. (2.31)
            return s.learning_rate * math.sqrt(max(s.warmup_updates, 1) / update)
        if s.schedule == "step":
            past = (update - s.warmup_updates) // s.decay_updates
            return float(s.learning_rate * s.decay_factor**past)
        return s.learning_rate * self.factor

    def evaluated(self, loss: float) -> None:
        """Record a validation loss: after `decay_patience` without improvement the rate decays.

        An improvement is a loss below the best one by more than `decay_threshold`.
        """
        if self.settings.schedule != "plateau":
            return
        if loss < self.best - self.settings.decay_threshold:
            self.best, self.waited = loss, 0
            return
        # A NaN loss is no improvement either.
        self.waited += 1
        if self.waited >= self.settings.decay_patience:
            self.factor *= self.settings.decay_factor
            self.waited = 0

    def state(self) -> RateState:
        """Return the state that a resumed run needs."""
        # JSON has no infinity.
        best = None if math.isinf(self.best) else self.best
        return RateState(self.factor, best, self.waited)

    def restore(self, state: RateState) -> None:
        """Restore what `state` returned."""
        self.factor, self.waited = state.factor, state.waited
        self.best = math.inf if state.best is None else state.best
