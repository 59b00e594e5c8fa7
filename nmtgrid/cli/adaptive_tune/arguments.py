"""The arguments of `nmtgrid adaptive-tune`, and the rules on combining them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Literal

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    NAME_NEEDS_KEEP,
    Alone,
    Config,
    Device,
    Excludes,
    GuaranteeArguments,
    JsonFile,
    Needs,
    Precision,
    Requires,
    Weights,
    argument,
    check_rules,
    config_input,
    option,
    output_faults,
    seed_faults,
    unusable,
)

_LEAST_BUDGET = 0.01
"""Minimum of `--budget`: the width of the ranges of average exits, in blocks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveTuneArguments(GuaranteeArguments):
    model: Path | None = argument("A model directory with early exits.", "MODEL", default=None)
    data: Path | None = option("The dataset with the splits.", "DATA")
    split: str = option("Split to tune on.", "NAME", default="valid")
    test_split: str | None = option(
        "Split on which to evaluate the chosen thresholds as well.", "NAME"
    )
    samples: int = option("Threshold vectors to sample and replay.", "N", default=10_000)
    budget: float = option(
        "Width of the ranges of average exit, in blocks for every objective; at most the number of "
        "decoder blocks minus one. The best vectors of each range are decoded.",
        "WIDTH",
        default=0.5,
    )
    finalists: int = option("Vectors per budget that are evaluated by decoding.", "N", default=3)
    mechanism: Literal["confidence", "geometric", "multinomial", "sequence"] | None = option(
        "Exit mechanism.  [default: the model's own predictor, else confidence]"
    )
    objective: Literal["exits", "flops", "seconds"] = option(
        "Cost to minimise: the average exit, the decoder's operations, or seconds on this "
        "machine. The best point of each budget is kept, the cheapest of equally good ones; for "
        "operations and seconds, only Pareto-optimal points. With `--allow-loss`, the cheapest "
        "certified point is kept; for operations and seconds, fixed and verified exits are "
        "candidates too.",
        default="exits",
    )
    judge: Literal["full", "references"] = option(
        "Targets when thresholds are replayed: the translations of the full stack, or the "
        "references.",
        default="full",
    )
    only: Literal["points", "fixed"] | None = option(
        "`points`: only the tuned points, without fixed, verified and random exits; `fixed`: only "
        "those, without tuning. `--baselines` are decoded in either case."
    )
    baselines: list[str] | None = option(
        "A separately trained baseline model; may be repeated.", "NAME=MODEL"
    )
    candidates: int | None = option(
        "With `--allow-loss`: number of candidates, from safest to fastest.  [default: 20]", "N"
    )
    name: str | None = option(
        "Store the thresholds in MODEL as `NAME-BUDGET`, for `decode --exit`.  [default: the "
        "mechanism]",
        "NAME",
    )
    keep: bool = option(
        "Store the thresholds in the model directory.", None, "--keep/--no-keep", default=True
    )
    beam: int = option("Beam size; 1 is greedy.", "N", default=1)
    batch: int = option("Sentences per batch.", "N", default=64)
    repeats: int = option("Timing repetitions per batch; the fastest counts.", "N", default=1)
    clock: Literal["wall", "processor"] = option(
        "Clock; use `processor` on a shared machine.", default="wall"
    )
    sentences: int | None = option("Use only the first N sentences of each split.", "N")
    seed: int = option("Random seed.", default=1)
    results: list[str] | None = option(
        "Plot earlier tunings in one figure, pooling those with the same name; may be repeated; "
        "needs no model.",
        "[NAME=]DIR",
    )
    out: Path | None = option(
        "Results and figure: a folder, or a .json file, in which case the figure has the same name "
        "with .png (with `--results`: a figure).",
        "DIR|FILE",
    )
    weights: Weights = "best"
    precision: Precision = "fp32"
    device: Device = "auto"
    json: JsonFile = None
    config: Config = None

    @property
    def is_kept(self) -> bool:
        """Whether thresholds are stored in the model directory."""
        return self.keep and self.only != "fixed"

    @property
    def files(self) -> tuple[Path, Path] | None:
        """The paths of the results and of the figure, if they are written."""
        if self.out is None:
            return None
        if self.out.suffix == ".json":
            return self.out, self.out.with_suffix(".png")
        return self.out / "results.json", self.out / "curve.png"


PANELS = {
    INPUT_OUTPUT: "data split test_split sentences baselines results out config",
    "Thresholds": "samples budget finalists mechanism objective judge only seed name keep",
    "Guaranteed loss": "allow_loss risk confidence candidates",
    "Decoding and timing": "beam batch repeats clock",
}
RESULTS_RULES = [
    Alone(
        "results",
        "out json",
        "`--results` draws earlier tunings, so {options} would be ignored.",
    )
]
RULES = [
    Needs(
        "model",
        message="Name a model directory, or earlier tunings with `--results DIR`.",
    ),
    Needs("data", message="Name the dataset to tune on with `--data DATA`."),
    NAME_NEEDS_KEEP,
]
# In addition to those above, unless nothing is tuned.
TUNING_RULES = [
    Requires("risk confidence candidates", "allow_loss"),
    Excludes(
        "budget finalists",
        "allow_loss",
        "{other} calibrates without budgets, so {options} would be ignored.",
        "Leave out {options}.",
    ),
]
# In addition to those, with a predictor that chooses the exit itself.
_PREDICTED_RULES = [
    Excludes(
        "samples finalists judge candidates",
        message="This predictor chooses the exit itself: there are no thresholds to tune, so "
        "{option} would be ignored.",
    )
]
# In addition to `RULES`, with `--only fixed`.
FIXED_RULES = [
    Excludes(
        "samples budget finalists mechanism objective judge name allow_loss risk confidence "
        "candidates",
        "only",
        "`--only fixed` tunes nothing, so {options} would be ignored.",
        "Leave out {options}.",
    ),
    # The option is called `--keep`, but only `--no-keep` differs from the default.
    Excludes(
        "keep",
        "only",
        "`--only fixed` stores nothing, so `--no-keep` would be ignored.",
        "Leave out `--no-keep`.",
    ),
]


def check(arguments: AdaptiveTuneArguments) -> None:
    """Raise ConfigError that names every error in the arguments."""
    faults = []
    if arguments.test_split == arguments.split:
        faults.append(
            f"`--split` and `--test-split` are both `{arguments.split}`: thresholds must be tested "
            "on other sentences than those they were tuned on. Name another split."
        )
    # Written this way round to refuse NaN too, for which every comparison is false.
    if not _LEAST_BUDGET <= arguments.budget < math.inf:
        faults.append(
            f"`--budget` must be a number from {_LEAST_BUDGET:g} on, but is {arguments.budget:g}."
        )
    # Checked here and not by the parser, so that one message names all faults.
    names = ("samples", "finalists", "candidates", "beam", "batch", "repeats", "sentences")
    faults += [
        f"`--{name}` must be at least 1, but is {number}."
        for name in names
        if (number := getattr(arguments, name)) is not None and number < 1
    ]
    faults += seed_faults(arguments.seed)
    outputs = {"--json": arguments.json}
    if arguments.out is not None and arguments.out.suffix == ".json":
        outputs |= {"--out": arguments.out, "--out (figure)": arguments.out.with_suffix(".png")}
    else:
        faults += unusable("--out", arguments.out)
    if arguments.guarantee is not None:
        faults += arguments.guarantee.faults()
    faults += output_faults(outputs, config_input(arguments))
    advice = ""
    if fault := _name_fault(arguments.name):
        faults += [f"`--name`: {problem}" for problem in fault.faults]
        advice = fault.advice
    more = FIXED_RULES if arguments.only == "fixed" else TUNING_RULES
    check_rules(arguments, [*RULES, *more], faults, advice)


def _name_fault(name: str | None) -> ConfigError | None:
    """Return why thresholds cannot be stored under `name`, if so."""
    if name is None:
        return None
    # Imported late: `--help` does not wait for torch.
    from nmtgrid.adaptive.exit_presets import check_exit_name

    try:
        check_exit_name(name)
    except ConfigError as fault:
        return fault
    return None


def check_decoder(arguments: AdaptiveTuneArguments, exits: int, *, has_thresholds: bool) -> None:
    """Raise ConfigError for options that have no effect with so many exits, or no thresholds."""
    faults = []
    if arguments.budget > exits - 1:
        faults.append(
            f"`--budget` must be from {_LEAST_BUDGET:g} to {exits - 1}, but is "
            f"{arguments.budget:g}: the decoder has {exits} blocks, so average exits are from 1 to "
            f"{exits}."
        )
    check_rules(arguments, () if has_thresholds else _PREDICTED_RULES, faults)
