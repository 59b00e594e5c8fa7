"""The interface of training objectives: from a batch to a loss, a sum over prediction sites.

The trainer divides the gradient once, by the number of target tokens of the whole update, so that
micro-batches of any size give the same update as one large batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from nmtgrid.base import own_code
from nmtgrid.base.config import Registry
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import Agent
from nmtgrid.training.settings import RunSettings

Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True)
class LossParts:
    """The loss of a batch.

    `total` is a sum with gradient, `tokens` the number of target tokens that it is divided by,
    `nll` the negative log-likelihood (a sum without gradient or smoothing, natural logarithm), and
    `extra` has named sums worth logging, divided by `tokens` when they are shown (called neither
    `loss`, `tokens`, `nll` nor `criterion`).

    Validation prefers weights with a small `criterion`, also a sum (None: `nll`); training does not
    need it.
    """

    total: Tensor
    tokens: int
    nll: Tensor
    extra: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    criterion: Tensor | None = None


_RESERVED = ("loss", "tokens", "nll", "criterion")
"""Names of the sums that are logged in addition to `extra`."""


def checked(parts: object) -> LossParts:
    """Return what an objective's `loss` has returned. Raises ConfigError unless it is LossParts."""
    problem = ""
    if not isinstance(parts, LossParts):
        problem = f"a {type(parts).__name__} in place of LossParts"
    elif not isinstance(parts.tokens, int) or parts.tokens < 1:
        problem = f"`tokens` that are not a whole number above 0, but {parts.tokens!r}"
    else:
        tensors = {**parts.extra, "total": parts.total, "nll": parts.nll}
        if parts.criterion is not None:
            tensors["criterion"] = parts.criterion
        wrong = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
        if reserved := [name for name in _RESERVED if name in parts.extra]:
            problem = f"an `extra` called `{reserved[0]}`, a name that is taken: choose another one"
        elif wrong:
            problem = f"a `{wrong[0]}` that is not a tensor"
        elif arrays := [name for name, value in tensors.items() if value.dim()]:
            shape = list(tensors[arrays[0]].shape)
            problem = f"a `{arrays[0]}` of shape {shape}, which is not a single number"
        elif torch.is_grad_enabled() and not parts.total.requires_grad:
            problem = "a `total` without a gradient"
    if problem:
        raise ConfigError(
            f"The objective has returned {problem}.",
            "`loss` returns nmtgrid.training.api.LossParts; its `total` depends on the weights.",
        )
    assert isinstance(parts, LossParts)
    return parts


class Objective(Protocol):
    """A training objective."""

    def check(self, model: TranslationModel) -> None:
        """Raise ConfigError if `model` cannot be trained with this objective."""

    def agent(self) -> Agent | None:
        """Return the reading policy of translations in validation (None: all is read first)."""

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        """Return the batch's loss, under the caller's autocast and gradient mode."""


class BaseObjective(Generic[Settings]):
    """The base of this toolkit's objectives: has settings, and validates with whole sources."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def agent(self) -> Agent | None:
        return None


@runtime_checkable
class StatefulObjective(Protocol):
    """An objective that depends on more than settings, and must be restored when resuming."""

    notes: Sequence[str]
    """Warnings to be shown before the training."""

    def save(self, folder: Path) -> None:
        """Write its state to `OBJECTIVE_FILE` in a run's folder if missing. Raises OSError."""


@dataclasses.dataclass(frozen=True)
class ObjectiveKind:
    """An objective: name, description, settings (a frozen dataclass) and constructor."""

    name: str
    description: str
    settings: type[Any]
    make: Callable[[Any], Objective]
    takes_samples: bool = True
    """Whether a sampled sentence can replace the reference (see `smoothing/`)."""
    takes_two_passes: bool = True
    """Whether the loss covers both passes of R-Drop, as in `site_loss` (see `both_passes`). A kind
    that ignores `Batch.r_drop` sets False, so that R-Drop is refused, not ignored."""


Wrapper = Callable[[Objective, RunSettings, Dataset, torch.device, Path | None], Objective]
"""Wraps an objective according to a run's settings, or returns it unchanged.

The path is the folder of the run that is resumed, if any, which contains what a `StatefulObjective`
wrote."""
OBJECTIVE_FILE = "objective.safetensors"
"""The file in a run's folder that a `StatefulObjective` writes."""


class Objectives(Registry[ObjectiveKind]):
    """The objectives that a program trains with, by name, and the wrapper that smooths them all.

    They are listed in `nmtgrid.cli.objectives`, because layers above this package define them.
    """

    def __init__(self, kinds: Iterable[ObjectiveKind], wrap: Wrapper) -> None:
        super().__init__("objective", own_code.ADVICE)
        self.wrap = wrap
        for kind in kinds:
            self.add(kind.name, kind)

    def add(self, name: str, entry: ObjectiveKind) -> None:
        """Register `entry` under `name`. Raises TypeError if it is not an objective."""
        if not isinstance(entry, ObjectiveKind):
            raise TypeError(
                f"the objective {name!r} must be an ObjectiveKind: write objectives.add({name!r}, "
                f"ObjectiveKind({name!r}, DESCRIPTION, SETTINGS, CLASS))"
            )
        own_code.check_dataclass(entry.settings, f"the settings of {name!r}")
        own_code.check_callable(entry.make, f"the constructor of {name!r}", "settings")
        super().add(name, entry)

    def make(self, name: str, settings: Any) -> Objective:
        """Return the objective `name`. Raises ConfigError if it lacks a method."""
        objective = self.get(name).make(settings)
        methods = ("check", "agent", "loss")
        own_code.check_methods(objective, f"the objective `{name}`", Objective, methods)
        return objective
