"""The plan of recipes/tune.sh: the settings to train, their budgets, and the rungs.

python -m recipes.tune_plan DATA --out FOLDER --grid GRID ... -- OPTION...
    Print the commands of the first rung and one command of each later rung. Trains nothing, and
    needs only the standard library: `--dry-run` works before anything is installed.

Successive halving (Jamieson and Talwalkar, 2016) is the inner loop of Hyperband: all settings are
trained with a small budget, the best 1/eta of them with eta times as much, until one has the full
budget. Each rung trains from scratch, with a schedule as long as its budget. A schedule that decays
towards the end of a run cannot be extended: the learning rate would jump up again, and the result
would be comparable with neither the short nor the long run. Training from scratch costs at most
eta / (eta - 1) times as much as resuming, 1.5 times for eta = 3.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import random
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

MOST_SETTINGS = 1000
COUNTED_IN_UPDATES = ("training.warmup_updates", "training.decay_updates")
"""Settings in updates, which would be another fraction of the training in each rung."""
_NAME_LETTERS = 80
Mode = Literal["grid", "random", "halving"]
Settings = dict[str, str]
"""The values of one combination by setting, as strings."""


class PlanError(ValueError):
    """The requested plan is invalid."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long a run is trained: updates or, if these are 0, minutes of processor time."""

    updates: int = 0
    minutes: float = 0.0

    def part(self, divisor: int) -> Budget:
        """Return this budget divided by `divisor`. Raises PlanError if no update would be left."""
        updates = round(self.updates / divisor)
        if self.updates and not updates:
            raise PlanError(
                f"{self.updates} updates are too few: the first rung would have a {divisor}th of "
                "them. Give more, or fewer RUNGS."
            )
        return Budget(updates, self.minutes / divisor)

    @property
    def amount(self) -> float:
        """Updates or minutes."""
        return self.updates or self.minutes

    def options(self) -> list[str]:
        """Return the options of `nmtgrid train`, as `limits` in common.sh sets them."""
        if self.updates:
            limit = ["--max-updates", str(self.updates), "--max-minutes", "0"]
            sets = ["schedule=cosine", f"warmup_updates={self.updates // 12}", "clock=processor"]
        else:
            limit = ["--max-minutes", f"{self.minutes:.6g}", "--max-updates", "0"]
            sets = ["clock=processor", "schedule=cosine-time"]
        return [*limit, *(word for text in sets for word in ("--set", f"training.{text}"))]

    def __str__(self) -> str:
        return f"{self.updates:,} updates" if self.updates else f"{self.minutes:.3g} minutes"


@dataclasses.dataclass(frozen=True)
class Rung:
    """`count` settings that are trained with the same budget; `number` counts from 1."""

    number: int
    count: int
    budget: Budget


@dataclasses.dataclass(frozen=True)
class Training:
    """A run; `name`, that of its folder, is unique to its settings, budget and options."""

    index: int
    settings: Settings
    rung: Rung
    name: str
    options: tuple[str, ...]
    """Options of `nmtgrid train`, without DATA and `--out`."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The options of a sweep."""

    data: Path
    out: Path
    arch: str
    preset: str
    grid: Mapping[str, Sequence[str]]
    mode: Mode
    budget: Budget
    draws: int = 0
    eta: int = 3
    rungs: int = 0
    seed: int = 1
    jobs: int = 1
    retry: bool = False
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise PlanError for the first invalid option."""
        if not self.budget.amount > 0 or self.budget.amount == math.inf:
            raise PlanError("set a budget for each run: MINUTES=M or UPDATES=N, above 0.")
        for name, value, least in (
            ("DRAWS", self.draws, 0), ("ETA", self.eta, 2), ("RUNGS", self.rungs, 0),
            ("JOBS", self.jobs, 1),
        ):  # fmt: skip
            if value < least:
                raise PlanError(f"{name} must be at least {least}, but is {value}.")
        counted = [name for name in COUNTED_IN_UPDATES if name in self.grid]
        if self.mode == "halving" and counted:
            raise PlanError(
                f"`{counted[0]}` counts updates, whose number differs between rungs. Compare "
                "its values with MODE=grid (or, with MINUTES, use `training.warmup_fraction`)."
            )
        if self.mode == "random" and not self.draws:
            raise PlanError("MODE=random needs the number of settings to draw: DRAWS=N.")
        # A range to sample from cannot be longer than sys.maxsize.
        if self.combinations > sys.maxsize or len(self.indices()) > MOST_SETTINGS:
            raise PlanError(
                f"the grid has {self.combinations:,} settings, more than {MOST_SETTINGS:,}: sample "
                "some of them with DRAWS=N and MODE=random or halving."
            )

    @property
    def combinations(self) -> int:
        """Number of combinations in the grid."""
        return math.prod(len(values) for values in self.grid.values())

    def indices(self) -> Sequence[int]:
        """Return the indices of the combinations to train: all, or DRAWS of them by the seed."""
        places = range(self.combinations)
        if self.mode == "grid" or not 0 < self.draws < len(places):
            return places
        return sorted(random.Random(self.seed).sample(places, self.draws))

    def settings(self) -> list[Settings]:
        """Return the combinations to train; the last setting changes fastest."""
        return [self._combination(index) for index in self.indices()]

    def _combination(self, index: int) -> Settings:
        chosen: Settings = {}
        for name, values in reversed([*self.grid.items()]):
            index, digit = divmod(index, len(values))
            chosen[name] = values[digit]
        return dict(reversed(chosen.items()))

    def schedule(self) -> list[Rung]:
        """Return the rungs: one, or those of successive halving, the last with the full budget."""
        counts = [len(self.indices())]
        while self.mode == "halving" and counts[-1] > 1 and len(counts) != self.rungs:
            counts.append(max(1, counts[-1] // self.eta))
        last = len(counts) - 1
        return [
            Rung(rung + 1, count, self.budget.part(self.eta ** (last - rung)))
            for rung, count in enumerate(counts)
        ]

    def training(self, index: int, settings: Settings, rung: Rung) -> Training:
        """Return the run of these settings in that rung."""
        preset = ["--preset", self.preset] if self.preset else []
        # The grid comes last: the last `--set` of a setting takes effect.
        options = (
            *("--arch", self.arch, *preset, "--seed", str(self.seed)),
            *rung.budget.options(),
            *self.options,
            *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
        )
        short = short_names(self.grid)
        text = ",".join(f"{short[name]}-{value}" for name, value in settings.items())
        text = re.sub(r"[^a-zA-Z0-9.,_+-]", "_", f"{rung.budget}-{text}".replace(" ", "-"))
        digest = hashlib.sha256(json.dumps(options).encode()).hexdigest()[:8]
        return Training(index, settings, rung, f"{text[:_NAME_LETTERS]}-{digest}", options)

    def command(self, training: Training, out: Path | str) -> list[str]:
        """Return the words of the command that trains into `out`."""
        return ["nmtgrid", "train", str(self.data), *training.options, "--out", str(out)]


def parse_grid(text: str) -> dict[str, list[str]]:
    """Return the values of each setting of `NAME=VALUE,VALUE NAME=VALUE ...`.

    A text without `=` names a file with one setting per line, in which `#` begins a comment.
    Commas within brackets, as in a list, do not separate values. Raises PlanError.
    """
    if text.strip() and "=" not in text:
        try:
            lines = Path(text.strip()).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as fault:
            raise PlanError(f"GRID names the file {text}, which cannot be read: {fault}.") from None
        words = [word for line in lines if (word := re.sub(r"(^|\s)#.*", "", line).strip())]
    else:
        words = text.split()
    grid: dict[str, list[str]] = {}
    for word in words:
        name, sign, values = (part.strip() for part in word.partition("="))
        each = [value.strip() for value in re.split(r",(?![^\[]*\])", values)]
        if not name or not sign or not all(each):
            raise PlanError(f"`{word}` in GRID is not of the form NAME=VALUE,VALUE,...")
        if name in grid:
            raise PlanError(f"GRID names `{name}` twice.")
        if len({*each}) < len(each):
            raise PlanError(f"`{word}` in GRID has a value twice.")
        grid[name] = each
    if not grid:
        raise PlanError('GRID names no setting, as in GRID="training.learning_rate=0.004,0.008".')
    return grid


def short_names(names: Sequence[str] | Mapping[str, object]) -> dict[str, str]:
    """Return the last part of each setting's name, or the whole name if that is ambiguous."""
    last = [name.rpartition(".")[2] for name in names]
    return {
        name: name if last.count(part) > 1 else part
        for name, part in zip(names, last, strict=True)
    }  # fmt: skip


def parse(arguments: Sequence[str]) -> Sweep:
    """Parse the words of a command line. Raises PlanError for an invalid plan."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description="Tune settings: see recipes/tune.sh.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arch", default="pervasive")
    parser.add_argument("--preset", default="")
    parser.add_argument("--grid", required=True)
    parser.add_argument("--mode", choices=["grid", "random", "halving"], default="halving")
    for name, default in (("draws", 0), ("eta", 3), ("rungs", 0), ("seed", 1), ("jobs", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--retry", action="store_true")
    options = vars(parser.parse_args(words[:end]))
    updates, minutes = options.pop("updates"), options.pop("minutes")
    return Sweep(**options | {
        "grid": parse_grid(options["grid"]),
        "budget": Budget(updates) if updates else Budget(minutes=minutes),
        "options": tuple(words[end + 1 :]),
    })  # fmt: skip


def main() -> int:
    """Print the plan."""
    try:
        sweep = parse(sys.argv[1:])
        first, *later = sweep.schedule()
    except PlanError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    for index, settings in enumerate(sweep.settings()):
        _print_command(sweep, index, settings, first)
    for rung in later:
        print(f"Then the best {rung.count} of them for {rung.budget}, as this one:")
        _print_command(sweep, 0, sweep.settings()[0], rung)
    return 0


def _print_command(sweep: Sweep, index: int, settings: Settings, rung: Rung) -> None:
    training = sweep.training(index, settings, rung)
    print("$", shlex.join(sweep.command(training, sweep.out / "runs" / training.name)))


if __name__ == "__main__":
    sys.exit(main())
