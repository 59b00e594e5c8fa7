"""What `nmtgrid adaptive-tune` is asked for, and what can be wrong with it before it begins."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.options import DeviceName, PrecisionName, WeightsName, unusable, unwritable

MechanismName = Literal["confidence", "geometric", "multinomial", "sequence"]
_LARGEST_SEED = 2**63 - 1
_LEAST_BUDGET = 1e-3
"""Blocks: as wide a range of average exits as can be told apart."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The command line of a tuning."""

    model: Path | None
    data: Path | None
    split: str
    test_split: str | None
    samples: int
    budget: float
    finalists: int
    mechanism: MechanismName | None
    judge: Literal["full", "references"]
    only: Literal["points", "fixed"] | None
    baselines: list[str]
    allow_loss: float | None
    risk: Literal["bleu", "agreement"]
    confidence: float
    candidates: int
    name: str | None
    keep: bool
    beam: int
    batch: int
    repeats: int
    clock: Literal["wall", "processor"]
    sentences: int | None
    seed: int
    out: Path | None
    weights: WeightsName
    precision: PrecisionName
    device: DeviceName

    @property
    def results_file(self) -> Path | None:
        """Where the results go."""
        if self.out is None or self.out.suffix == ".json":
            return self.out
        return self.out / "results.json"

    @property
    def picture_file(self) -> Path | None:
        """Where the picture goes."""
        if self.out is None or self.out.suffix != ".json":
            return None if self.out is None else self.out / "curve.png"
        return self.out.with_suffix(".png")

    def faults(self) -> list[str]:
        """Return what is wrong, one sentence each."""
        found = []
        if self.model is None:
            found.append("Name a model directory, or tunings done before with `--results DIR`.")
        if self.data is None:
            found.append("Name the dataset to tune on with `--data DATA`.")
        if self.test_split == self.split:
            found.append(
                f"`--split` and `--test-split` are both `{self.split}`: what is tuned on says "
                "nothing about new sentences."
            )
        if not _LEAST_BUDGET <= self.budget < math.inf:
            found.append(
                f"`--budget` must be a number from {_LEAST_BUDGET:g} on, but is {self.budget:g}."
            )
        if self.only == "fixed" and self.allow_loss is not None:
            found.append("`--only fixed` tunes nothing: leave out it or `--allow-loss`.")
        counts = {
            "--samples": self.samples,
            "--finalists": self.finalists,
            "--candidates": self.candidates,
            "--beam": self.beam,
            "--batch": self.batch,
            "--repeats": self.repeats,
            "--sentences": self.sentences,
        }
        found += [
            f"`{name}` must be at least 1, but is {number}."
            for name, number in counts.items()
            if number is not None and number < 1
        ]
        if not 0 <= self.seed <= _LARGEST_SEED:
            found.append(f"`--seed` must be from 0 to {_LARGEST_SEED:,}, but is {self.seed}.")
        if self.out is not None and self.out.suffix == ".json":
            return [*found, *unwritable("--out", self.out)]
        return [*found, *unusable("--out", self.out)]


def check(order: Arguments, asked: Sequence[str]) -> None:
    """Raise ConfigError that names every fault; `asked` are the options given for calibration."""
    faults = order.faults()
    if asked and order.allow_loss is None:
        belong = "belong" if len(asked) > 1 else "belongs"
        faults.append(
            f"`{'`, `'.join(asked)}` {belong} to `--allow-loss`: say how much may be lost."
        )
    if faults:
        raise ConfigError(faults)
