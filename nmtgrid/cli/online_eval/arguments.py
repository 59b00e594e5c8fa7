"""The arguments of `nmtgrid online-eval`, and which of them go together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.options import (
    EXIT_EXCLUDES_ENSEMBLE,
    GENERAL,
    INPUT_OUTPUT,
    LARGEST_SEED,
    Alone,
    CommandArguments,
    Config,
    Device,
    Ensemble,
    Excludes,
    JsonFile,
    Needs,
    Precision,
    Requires,
    Weights,
    argument,
    asked_guarantee,
    check_rules,
    flag,
    option,
    unusable,
)
from nmtgrid.online.published import curves
from nmtgrid.online.settings import ALL, WORDS_PER_MINUTE, Setting, named_policies, read_settings

if TYPE_CHECKING:
    from nmtgrid.metrics.latency import Metric
    from nmtgrid.metrics.risk_control import Guarantee
    from nmtgrid.online.policy_presets import PolicyPreset


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineEvalArguments(CommandArguments):
    """The arguments of `online-eval`."""

    models: list[str] | None = argument(
        "Model directories, side by side; NAME=MODEL names one.", "MODEL", default=None
    )
    data: Path | None = option("The dataset with the split.", "DATA")
    split: str | None = option(
        "What to translate.  [default: test; with `--allow-loss` valid]", "NAME"
    )
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
        "threshold=0.5..0.9:0.1 floor=2`; or your own (`--import FILE`, or `FILE.py:Class`); or "
        "one that `--allow-loss` kept under NAME; may be repeated.",
        "TEXT",
    )
    allow_loss: float | None = option(
        "Calibrate the settings first: the one of least latency that loses at most so much against "
        "offline translation, guaranteed with `--confidence`, is evaluated beside it.",
        "PERCENT",
    )
    risk: Literal["bleu", "agreement"] | None = option(
        "With `--allow-loss`: the mean loss of sentence BLEU, or the share of units that "
        "differ from the offline translation's.  [default: bleu]"
    )
    confidence: float | None = option(
        "With `--allow-loss`: of the guarantee.  [default: 0.95]", "P"
    )
    latency: Literal["al", "dal"] | None = option(
        "With `--allow-loss`: which latency is to be least.  [default: al]"
    )
    test_split: str | None = option(
        "With `--allow-loss`: what to evaluate the chosen setting on.  [default: `--split`]", "NAME"
    )
    name: str | None = option(
        "With `--allow-loss`: under `NAME-lossPERCENT` the setting is kept in MODEL, for "
        "`--policy` here and of `decode --stream`.  [default: the policy]",
        "NAME",
    )
    keep: bool = option("Keep it in the model's directory.", None, "--keep/--no-keep", default=True)
    seed: int = option("With `--allow-loss`: of the halves that order and test.", default=1)
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
        "sentence, by its name in the file of `--import`; may be repeated.",
        "NAME",
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
    clock: bool = flag(
        "--clock",
        "Decode sentence by sentence, as a stream, and measure the time of each token and "
        "computation-aware latency.",
    )
    words_per_minute: float = option(
        "With `--clock`: how fast source words come, which makes seconds words.",
        "N",
        default=WORDS_PER_MINUTE,
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
    config: Config = None

    @property
    def evaluated_split(self) -> str:
        """The split whose translations are scored."""
        return self.test_split or self.chosen_split

    @property
    def chosen_split(self) -> str:
        """What `--split` says: with `--allow-loss`, where the setting is chosen."""
        return self.split or ("test" if self.allow_loss is None else "valid")

    @property
    def guarantee(self) -> Guarantee | None:
        """What is to be guaranteed of the loss, if anything."""
        return asked_guarantee(self.risk, self.allow_loss, self.confidence)

    @property
    def folders(self) -> list[Path]:
        """The directories of MODEL, without names."""
        return [split_label(text)[1] for text in self.models or ()]

    @property
    def latency_unit(self) -> Literal["token", "word"]:
        """What latency counts; SimulEval's convention knows words only."""
        return self.unit or ("word" if self.convention == "simuleval" else "token")


PANELS = {
    INPUT_OUTPUT: "data split sentences out simuleval lines published config",
    "Reading policies": "k thresholds policies policy oracle oracle_cost finish_reading",
    "Search": "beam ensemble exit source",
    "Latency": "unit convention metric bootstrap clock words_per_minute",
    "Guaranteed loss": "allow_loss risk confidence latency test_split name keep seed",
    "Log of another program": "log sacrebleu_tokenizer",
    GENERAL: "weights batch_tokens precision device json",
}
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
    Requires("words_per_minute", "clock"),
    Requires("risk confidence latency test_split name keep seed", "allow_loss"),
    Excludes(
        "oracle",
        "allow_loss",
        "The oracle needs the reference, so that nothing can be guaranteed for new sentences: "
        "leave out {option} or {other}.",
    ),
    Excludes(
        "ensemble",
        "allow_loss",
        "A guarantee is that of one model, against its own offline translation: leave out "
        "{option} or {other}.",
    ),
    Excludes(
        "clock",
        "oracle",
        "The oracle needs the reference, which no stream has: leave out {option} or {other}.",
    ),
]


def check(arguments: OnlineEvalArguments) -> tuple[list[Setting], list[PolicyPreset]]:
    """Return the settings of the policies, and those that were stored under a name.

    Raises ConfigError that names every fault.
    """
    faults, advice = _faults(arguments), ""
    settings: list[Setting] = []
    presets: list[PolicyPreset] = []
    # Faults of the lists are reported together with those of all other options.
    try:
        texts = [*named_policies(arguments.policies), *(arguments.policy or [])]
        if texts:
            # Imported late, as they import torch.
            from nmtgrid.online.policy_presets import expand

            texts, presets = expand(texts, arguments.folders)
        settings = read_settings(arguments.k, arguments.thresholds, arguments.oracle, texts)
    except ConfigError as error:
        faults += error.faults
        advice = error.advice
    if arguments.guarantee is not None:
        faults += _faults_of_guarantee(arguments, arguments.guarantee, settings)
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
    return settings, presets


def _faults_of_guarantee(
    arguments: OnlineEvalArguments, guarantee: Guarantee, settings: Sequence[Setting]
) -> list[str]:
    """Return what is wrong with what is to be guaranteed, one sentence each."""
    from nmtgrid.online.calibrate import refused_candidates
    from nmtgrid.online.policy_presets import check_policy_name

    faults = guarantee.faults()
    if len(arguments.models or ()) > 1:
        faults.append("`--allow-loss` calibrates one MODEL at a time, but several are named.")
    if arguments.test_split == arguments.chosen_split:
        faults.append(
            f"`--split` and `--test-split` are both `{arguments.test_split}`: what a setting is "
            "chosen on says nothing about new sentences."
        )
    if not 0 <= arguments.seed <= LARGEST_SEED:
        faults.append(f"`--seed` must be from 0 to {LARGEST_SEED:,}, but is {arguments.seed}.")
    try:
        check_policy_name(f"{arguments.name or 'policy'}-loss1")
    except ConfigError as error:
        faults += error.faults
    # Of `all` policies those are left out of which nothing can be guaranteed.
    if arguments.policies != ALL:
        faults += refused_candidates(settings)
    return faults


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
    if arguments.clock and arguments.source == "line":
        faults.append("A stream knows no line before its end: leave out `--source line`.")
    if not 0 < arguments.words_per_minute < math.inf:
        faults.append(
            f"`--words-per-minute` must be above 0, but is {arguments.words_per_minute:g}."
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
