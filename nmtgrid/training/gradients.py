"""How strongly the loss pulls at each stage of a network: norms of gradients at hidden states.

Measured in an ordinary update by looking at gradients that flow by: the loss, the gradients of the
weights and the random states are those of a run that does not look.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.distributed import Processes
from nmtgrid.training.settings import RunSettings


class GradientWatch:
    """Norms of the loss's gradient at the outputs of a model's stages, every so many updates.

    The norm is Frobenius' over all positions of the update, of the loss per target token, as the
    weights' gradient norm is. Micro-batches hold different positions, so their squares add up;
    positions of padding add nothing, for no prediction depends on them. A stage that the loss does
    not reach has the norm zero.

    Raises ConfigError for a model without stages.
    """

    def __init__(self, model: TranslationModel, every: int = 1) -> None:
        self.every = every
        self._names: dict[nn.Module, list[str]] = {}
        for name, module in model.stages().items():
            self._names.setdefault(module, []).append(name)
        if not self._names:
            raise _no_stages(getattr(model, "architecture", type(model).__name__))
        self._squares: dict[str, Tensor] = {}
        self._order = list(model.stages())

    def due(self, update: int) -> GradientWatch | None:
        """Return the watch if `update` is measured: the first one, and each multiple of `every`."""
        return self if update == 1 or update % self.every == 0 else None

    def begin(self) -> None:
        """Forget what was measured: an update begins, or begins again for want of memory."""
        self._squares = {}

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Catch the outputs of the stages in the forward pass of a micro-batch inside.

        Layers that are computed a second time in the backward pass (activation checkpointing) are
        caught once: the hooks are gone by then, and the gradient comes to the first output.
        """
        calls: Counter[nn.Module] = Counter()

        def catch(module: nn.Module, inputs: Any, output: Tensor) -> None:
            # A module that both sides share (tied embeddings) has a name for each call in turn.
            names = self._names[module]
            name = names[min(calls[module], len(names) - 1)]
            calls[module] += 1
            if output.requires_grad:
                output.register_hook(self._adder(name))

        handles = [module.register_forward_hook(catch) for module in self._names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def norms(self, tokens: int, processes: Processes) -> dict[str, float]:
        """Return the norm at each stage, in order, for an update of so many target tokens.

        That of all `processes` together, if there are several.
        """
        zero = torch.zeros((), dtype=torch.float64)
        # Brought over together: a GPU is waited for once.
        held = [self._squares.get(name, zero) for name in self._order]
        device = next((value.device for value in self._squares.values()), zero.device)
        squares = processes.sum(torch.stack([v.to(device) for v in held]))
        values: list[float] = squares.sqrt().tolist()
        return {name: value / tokens for name, value in zip(self._order, values, strict=True)}

    def _adder(self, name: str) -> Callable[[Tensor], None]:
        def add(gradient: Tensor) -> None:
            # In double precision: what vanishes is what is looked for, and its square comes first.
            square = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64).square()
            held = self._squares.get(name)
            self._squares[name] = square if held is None else held + square

        return add


def gradient_ratio(norms: Mapping[str, float]) -> float | None:
    """Return r = |gradient at h_1| / |gradient at h_N| over the N encoder layers.

    Of the first part that is named, where a network has no encoder. The embeddings, h_0, are left
    out. None where there is no layer or nothing reaches the last one.
    """
    parts = [name.partition(".")[0] for name in norms]
    part = "encoder" if "encoder" in parts else parts[0] if parts else ""
    layers = {
        int(number): norm
        for name, norm in norms.items()
        for held, _, number in [name.partition(".")]
        if held == part and number.isdigit() and int(number) > 0
    }
    if not layers or not layers[max(layers)]:
        return None
    return layers[min(layers)] / layers[max(layers)]


def check_watch(settings: RunSettings) -> None:
    """Raise ConfigError if gradients are to be watched in an architecture without stages.

    Asked before data are read: the model is built for the count, without weights.
    """
    if settings.training.watch_gradients:
        with torch.device("meta"):
            model = zoo.from_config(settings.arch, settings.model, 8, 8)
        if not model.stages():
            raise _no_stages(settings.arch)


def _no_stages(architecture: str) -> ConfigError:
    return ConfigError(
        "`training.watch_gradients` measures gradients between layers, but the architecture "
        f"`{architecture}` names no such points.",
        "Set it to 0, or choose another architecture.",
    )
