"""The arguments of `nmtgrid online-eval`, and which of them go together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.cli.options import (
    EXIT_EXCLUDES_ENSEMBLE,
    Alone,
    CommandArguments,
    Device,
    Ensemble,
    JsonFile,
    Needs,
    Precision,
    Requires,
    Weights,
    argument,
    check_rules,
    flag,
    option,
    unusable,
)
from nmtgrid.online.published import curves
from nmtgrid.online.settings import Setting, named_policies, read_settings

if TYPE_CHECKING:
    from nmtgrid.metrics.latency import Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineEvalArguments(CommandArguments):
    """The arguments of `online-eval`."""

    models: list[str] | None = argument(
        "Model directories, side by side; NAME=MODEL names one.", "MODEL", default=None
    )
    data: Path | None = option("The dataset with the split.", "DATA")
    split: str = option("What to translate.", "NAME", default="test")
    ensemble: Ensemble = None
    k: str | None = option(
        "Wait-k: `1..9`, `1,3,5`, `1..9:2`; `inf` reads all first (offline).  [default: that of "
        "training, or 1,3,5,7,9]",
        "LIST",
    )
    thresholds: str | None = option(
        "Let the model's own agent read on above this probability: `0.1..0.9:0.1`.", "LIST"
    )
    oracle: str | None = option(
        "Decode along the oracle's paths, for each weight lambda of the delay: `0,1`.", "LIST"
    )
    policies: str | None = option(
        "Policies by name, each along its usual sweep: `confidence,alignatt`, or `all` that the "
        "models can follow.",
        "LIST",
    )
    policy: list[str] | None = option(
        "A policy with its settings, all combinations of their values: `confidence "
        "threshold=0.5..0.9:0.1 floor=2`; or your own, `FILE.py:Class`; may be repeated.",
        "TEXT",
    )
    oracle_cost: Literal["delay", "printed"] = option(
        "Reading cost of the oracle; `printed` is the thesis' to the letter.", default="delay"
    )
    source: Literal["words", "line"] = option(
        "Tokenise the source word by word, as it would arrive, or the whole line, as the "
        "dataset is and as published figures were made; that knows words to come.",
        default="words",
    )
    unit: Literal["token", "word"] | None = option(
        "What latency counts: subword units, or words: the source's (see `--source`), and "
        "tokenised ones of the target.  [default: token]"
    )
    convention: Literal["thesis", "simuleval"] = option(
        "|y| is the hypothesis' length, or as SimulEval has it: AL and AP by the "
        "reference's (words only).",
        default="thesis",
    )
    metric: list[str] | None = option(
        "A latency metric of your own, `f(delays, source_length, target_length)` for each "
        "sentence: `FILE.py:function`; may be repeated.",
        "FILE",
    )
    beam: int = option(
        "Width of the beam; 1 is greedy. With more nothing is final before the end: "
        "latency is that of the best hypothesis.",
        "N",
        default=1,
    )
    finish_reading: bool = flag(
        "--finish-reading", "No translation ends before its source is read."
    )
    bootstrap: int = option(
        "Resamples for intervals and p-values of areas between curves and wait-k's; 0: none.",
        "N",
        default=1000,
        min=0,
    )
    sentences: int | None = option("Only the first N.  [default: all]", "N")
    out: Path | None = option("Results, translations, traces, curve and paths.", "DIR")
    simuleval: Path | None = option(
        "One log a setting, for `simuleval --score-only --sacrebleu-tokenizer none --output`.",
        "DIR",
    )
    published: str | None = option(
        "Lay the published curves of a corpus under ours, such as `iwslt14-de-en`; warns of what "
        "does not compare.",
        "NAME",
    )
    lines: list[int] | None = option("Draw the paths of line N; may be repeated.", "N", "--line")
    log: Path | None = option("Score this `instances.log` of SimulEval; needs no model.", "FILE")
    sacrebleu_tokenizer: Literal["13a", "none", "intl", "zh", "char"] = option(
        "With `--log`: BLEU's, as SimulEval calls it; `none` for tokenised text.", default="13a"
    )
    exit: str | None = option(
        "Leave the decoder early, as `decode --exit` does; all models.", "NAME|N|auto"
    )
    batch_tokens: int = option("Source tokens x beam of a batch.", "N", default=4000)
    weights: Weights = "best"
    precision: Precision = "fp32"
    device: Device = "auto"
    json: JsonFile = None

    @property
    def latency_unit(self) -> Literal["token", "word"]:
        """What latency counts; SimulEval's convention knows words only."""
        return self.unit or ("word" if self.convention == "simuleval" else "token")


LOG_RULES = [
    Alone(
        "log",
        "json metric sacrebleu_tokenizer unit convention device",
        "`--log` scores what another program has done, so that {options} would be ignored.",
    )
]
RULES = [
    Needs("models", message="Name a model, or a log with `--log FILE`."),
    Needs("data", message="Name the dataset to translate with `--data DATA`."),
    EXIT_EXCLUDES_ENSEMBLE,
    Requires(
        "published lines",
        "out",
        "{option} has no effect without a folder to draw in: add `--out DIR`.",
    ),
    Requires("sacrebleu_tokenizer", "log"),
]


def check(arguments: OnlineEvalArguments) -> list[Setting]:
    """Return the settings of the policies. Raises ConfigError that names every fault."""
    faults, advice = _faults(arguments), ""
    settings: list[Setting] = []
    # Faults of the lists are reported together with those of all other options.
    try:
        texts = [*named_policies(arguments.policies), *(arguments.policy or [])]
        settings = read_settings(arguments.k, arguments.thresholds, arguments.oracle, texts)
    except ConfigError as error:
        faults += error.faults
        advice = error.advice
    try:
        own_metrics(arguments)
    except ConfigError as error:
        faults += error.faults
    # Looked up now: an unknown name should not surface after hours of decoding.
    if arguments.published is not None:
        try:
            curves(arguments.published)
        except NmtgridError as error:
            faults.append(str(error))
    check_rules(arguments, RULES, faults, advice)
    return settings


def own_metrics(arguments: OnlineEvalArguments) -> dict[str, Metric]:
    """Return the metrics of one's own by name. Raises ConfigError that names every fault."""
    # Imported late: `--help` does not wait for numpy.
    from nmtgrid.metrics.own import read_metrics

    return read_metrics(arguments.metric or ())


def _faults(arguments: OnlineEvalArguments) -> list[str]:
    """Return what is wrong with the values, one sentence each."""
    faults = []
    unit, convention = arguments.latency_unit, arguments.convention
    if arguments.ensemble and len(arguments.models or []) > 1:
        faults.append(
            "`--ensemble` averages with one MODEL, but several are named; `analyze latency` "
            "lays results side by side."
        )
    if convention == "simuleval" and unit == "token":
        faults.append("SimulEval's convention counts words: leave out `--unit token`.")
    elif arguments.published and convention != "thesis":
        faults.append(
            "The published curves have AL in the thesis' convention: leave out `--published`, or "
            "`--convention`."
        )
    counts: dict[str, list[int | None]] = {
        "--beam": [arguments.beam],
        "--sentences": [arguments.sentences],
        "--line": [*(arguments.lines or [])],
        "--batch-tokens": [arguments.batch_tokens],
    }
    faults += [
        f"`{name}` must be at least 1, but is {number}."
        for name, numbers in counts.items()
        for number in numbers
        if number is not None and number < 1
    ]
    return [
        *faults,
        *unusable("--out", arguments.out),
        *unusable("--simuleval", arguments.simuleval),
    ]
