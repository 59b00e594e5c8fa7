"""What `nmtgrid online-eval` is asked for, and what can be wrong with it before it begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.cli.options import (
    EXIT_EXCLUDES_ENSEMBLE,
    DeviceName,
    PrecisionName,
    WeightsName,
    unusable,
)
from nmtgrid.online.published import curves
from nmtgrid.online.settings import Setting, SourceText


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The command line of an evaluation, without its settings."""

    models: list[str]
    data: Path | None
    split: str
    oracle_cost: Literal["delay", "printed"]
    unit: Literal["token", "word"]
    convention: Literal["thesis", "simuleval"]
    beam: int
    finish_reading: bool
    sentences: int | None
    out: Path | None
    simuleval: Path | None
    published: str | None
    lines: list[int]
    batch_tokens: int
    weights: WeightsName
    precision: PrecisionName
    device: DeviceName
    exit: str | None = None
    """Where tokens leave the decoder early, as `decode --exit` has it."""
    source: SourceText = "words"
    ensemble: Sequence[Path] = ()
    """What is averaged with the only model."""

    def faults(self) -> list[str]:
        """Return what is wrong, one sentence each."""
        found = []
        if not self.models:
            found.append("Name a model, or a log with `--log FILE`.")
        if self.data is None:
            found.append("Name the dataset to translate with `--data DATA`.")
        if self.ensemble and len(self.models) > 1:
            found.append(
                "`--ensemble` averages with one MODEL, but several are named; `analyze latency` "
                "lays results side by side."
            )
        if self.ensemble and self.exit is not None:
            found.append(EXIT_EXCLUDES_ENSEMBLE.message)
        if self.convention == "simuleval" and self.unit == "token":
            found.append("SimulEval's convention counts words: leave out `--unit token`.")
        elif self.published and (self.unit, self.convention) != ("token", "thesis"):
            found.append(
                "The published curves count tokens in the thesis' convention: leave out "
                "`--published`, or `--unit` and `--convention`."
            )
        found += [
            f"`{name}` has no effect without a folder to draw in: add `--out DIR`."
            for name, given in (("--published", self.published), ("--line", self.lines))
            if given and self.out is None
        ]
        counts: dict[str, list[int | None]] = {
            "--beam": [self.beam],
            "--sentences": [self.sentences],
            "--line": [*self.lines],
            "--batch-tokens": [self.batch_tokens],
        }
        found += [
            f"`{name}` must be at least 1, but is {number}."
            for name, numbers in counts.items()
            for number in numbers
            if number is not None and number < 1
        ]
        return [
            *found, *unusable("--out", self.out), *unusable("--simuleval", self.simuleval)
        ]  # fmt: skip


def check(order: Arguments, read: Callable[[], list[Setting]]) -> list[Setting]:
    """Return the settings that `read` gives. Raises ConfigError that names every fault."""
    faults, advice = order.faults(), ""
    settings: list[Setting] = []
    try:
        settings = read()
    except ConfigError as fault:
        faults += fault.faults
        advice = fault.advice
    if order.published is not None:
        try:
            curves(order.published)
        except NmtgridError as fault:
            faults.append(str(fault))
    if faults:
        raise ConfigError(faults, advice)
    return settings
