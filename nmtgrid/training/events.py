"""The events of a run.

`Trainer.run` yields them; the command `train` prints them and logs those with numbers
(metrics_log.py).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Started:
    """The run begins, or continues after `update`."""

    update: int
    minutes: float
    pairs: int
    skipped: int
    """Training pairs left out because of their length."""
    parameters: int
    device: str
    precision: str
    processes: int = 1
    world_size_changed: bool = False
    """Whether a resumed run has another number of processes than before."""


@dataclasses.dataclass(frozen=True)
class Updated:
    """Updates done since the last such event; rates are per second of training only."""

    update: int
    epoch: int
    minutes: float
    learning_rate: float
    loss: float
    nll: float
    """Per target token, natural logarithm, like the loss."""
    gradient_norm: float
    """Of the last update, before clipping."""
    tokens_per_second: float
    cells_per_second: float
    minutes_left: float | None
    extra: dict[str, float]
    tokens: int = 0
    """Target tokens of these updates, end symbols included."""


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The gradients of an update were measured between the layers."""

    update: int
    epoch: int
    minutes: float
    gradients: dict[str, float]
    """Norm of the gradient of the loss per target token at each stage's output."""
    gradient_ratio: float | None
    """Of the first to the last encoder layer."""


@dataclasses.dataclass(frozen=True)
class BatchSplit:
    """A batch did not fit into memory and was halved; its gradient is the same."""

    update: int
    times: int
    is_exact: bool = True
    """Whether the update stays the same: with batch normalisation, halves have their own
    statistics."""


@dataclasses.dataclass(frozen=True)
class Validated:
    """The validation split was scored."""

    update: int
    epoch: int
    minutes: float
    nll: float
    """Per target token, of the better candidate."""
    weights: str
    """The better candidate: `last`, `ema` or `average`."""
    losses: dict[str, float]
    bleu: float | None
    """Of greedy translations, tokenised, in percent."""
    is_best: bool
    seconds: float
    cider: float | None = None
    """Of greedy captions, a hundred times CIDEr-D."""
    criterion: float | None = None
    """The objective's own criterion, if it has one."""
    extra: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Averaged:
    """The mean of the last checkpoints has been written."""

    update: int
    checkpoints: int
    """Number of checkpoints in the mean."""
    most: int
    """Number requested: `training.average`."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint to resume from has been written."""

    update: int
    minutes: float
    folder: str


@dataclasses.dataclass(frozen=True)
class Finished:
    """The run is over."""

    update: int
    epoch: int
    minutes: float
    reason: str
    interrupted: bool
    best: str
    """Which weights are in model.safetensors."""
    best_update: int
    best_nll: float | None
    bleu: float | None
    cider: float | None = None
    best_criterion: float | None = None
    was_validated: bool = True
    """Whether there were validations, perhaps none of them with a finite loss."""


Event = Started | Updated | Gradients | BatchSplit | Validated | Averaged | Saved | Finished
