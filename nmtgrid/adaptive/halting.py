"""Halting mechanisms (section 5.3): the implementations of `models.api.Halt`.

Each mechanism is called after every block except the last. `needs` names its input: nothing, the
largest probability at the exit, Eq. (5.18), the probability chi of exiting, Eq. (5.20), or the exit
chosen by a multinomial predictor for the token, Eq. (5.19), or the sentence, Eq. (5.11).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.models.api import Needs, TranslationModel, with_exits
from nmtgrid.search.select import uniform

Mechanism = Literal["confidence", "geometric", "multinomial", "sequence"]
"""Ways to decide where to exit: by thresholds (the first two) or by a predicted exit."""


@dataclasses.dataclass(frozen=True)
class FixedExit:
    """Every token exits after block `number`, counted from 1."""

    number: int
    needs: ClassVar[Needs] = "nothing"

    def __post_init__(self) -> None:
        """Raise ConfigError for an exit below 1."""
        if self.number < 1:
            raise ConfigError(f"Exits are numbered from 1, but {self.number} is given.")

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        return torch.full_like(keys, exit >= self.number, dtype=torch.bool)


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """A token exits after the first block n whose confidence or chi exceeds threshold n.

    `values` are those of blocks 1 .. N - 1, compared in float32; the last block needs none.
    """

    needs: Literal["confidence", "geometric"]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ConfigError for thresholds outside of [0, 1]."""
        for number, value in enumerate(self.values, 1):
            if not 0 <= value <= 1:
                raise ConfigError(f"Threshold {number} must be from 0 to 1, but is {value}.")

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        assert scores is not None
        # In float32, as `tune.replay` compares: bf16 would round scores across a threshold.
        return scores.float() > self.values[exit - 1]


@dataclasses.dataclass(frozen=True)
class Predicted:
    """A token exits where the exit predictor considers it most likely."""

    needs: Literal["multinomial", "sequence"]

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        assert scores is not None
        return scores <= exit


@dataclasses.dataclass(frozen=True)
class RandomExit:
    """Every token's exit is sampled from [1..count]: "Uniform" in tables 5.2 to 5.5.

    The draw depends only on the seed, the row's key and the step.
    """

    count: int
    seed: int = 1
    needs: ClassVar[Needs] = "nothing"

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        # A hash of seed, key and step instead of a generator: a row's exits do not depend on its
        # batch, on its beam or on how many blocks call this.
        drawn = (uniform(self.seed, keys, step) * self.count).long() + 1
        return drawn <= exit


class GivenExits:
    """Tokens exit at given exits [B, T], beyond T at the last one: for replays."""

    needs: ClassVar[Needs] = "nothing"

    def __init__(self, table: Tensor, keys: Tensor | None = None) -> None:
        """`keys` [B] are those of the table's rows (None: the search's keys are its rows)."""
        # Keys are sorted once, so that each step finds its rows by bisection.
        keys = torch.arange(len(table), device=table.device) if keys is None else keys
        self.table, self.order = table, keys.argsort()
        self.keys = keys[self.order]

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        # A replayed hypothesis may grow beyond the recorded one: it then runs all blocks.
        if step >= self.table.shape[1]:
            return torch.zeros_like(keys, dtype=torch.bool)
        rows = self.order[torch.searchsorted(self.keys, keys)]
        return self.table[rows, step] <= exit


def halt_by(mechanism: Mechanism, thresholds: Sequence[float]) -> Thresholds | Predicted:
    """Return the halt of a mechanism; an exit predictor has no thresholds."""
    if mechanism == "multinomial" or mechanism == "sequence":
        return Predicted(mechanism)
    return Thresholds(mechanism, tuple(thresholds))


AnyHalt = FixedExit | Thresholds | Predicted | RandomExit | GivenExits
"""The implementations of `Halt`."""


def check_halt(halt: AnyHalt, model: TranslationModel) -> None:
    """Raise ConfigError if `halt` does not fit a model."""
    count = with_exits(model).traits.num_exits
    if isinstance(halt, FixedExit) and halt.number > count:
        raise ConfigError(
            f"Exit {halt.number} does not exist: the decoder has {count} blocks.",
            f"Give an exit from 1 to {count}.",
        )
    if isinstance(halt, RandomExit) and halt.count != count:
        raise ConfigError(
            f"Exits are sampled from {halt.count} blocks, but this decoder has {count}."
        )
    if isinstance(halt, Thresholds) and len(halt.values) != count - 1:
        raise ConfigError(
            f"{len(halt.values)} thresholds are given, but a decoder of {count} blocks needs "
            f"{count - 1}, one after each block except the last.",
            "Tune them on this model: `nmtgrid adaptive-tune`.",
        )
    if halt.needs not in ("nothing", "confidence", model.traits.halting):
        raise no_predictor(model, halt.needs)


def no_predictor(model: TranslationModel, mechanism: str) -> ConfigError:
    """Return the error for decisions of a predictor that `model` does not have."""
    halting = model.traits.halting
    state = "has no exit predictor" if halting == "none" else f"predicts exits by `{halting}`"
    return ConfigError(
        f"This model {state}; it cannot exit by `{mechanism}`.",
        f"Fine-tune it with `--set model.halting={mechanism} --objective exits-halting`.",
    )
