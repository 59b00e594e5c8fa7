"""The arguments of `nmtgrid online-eval`, and the rules on combining them."""

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
    NAME_NEEDS_KEEP,
    Alone,
    Config,
    Device,
    Ensemble,
    Excludes,
    GuaranteeArguments,
    JsonFile,
    LatencyUnitArguments,
    Needs,
    Precision,
    Requires,
    Weights,
    argument,
    check_rules,
    config_input,
    flag,
    option,
    output_faults,
    seed_faults,
    unusable,
)
from nmtgrid.online.published import curves
from nmtgrid.online.settings import (
    WORDS_PER_MINUTE,
    Setting,
    named_policies,
    names_all,
    read_settings,
)

if TYPE_CHECKING:
    from nmtgrid.metrics.latency import Metric
    from nmtgrid.metrics.risk_control import Guarantee
    from nmtgrid.online.policy_presets import PolicyPreset


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineEvalArguments(GuaranteeArguments, LatencyUnitArguments):
    models: list[str] | None = argument(
        "Model directories to compare; NAME=MODEL names one.", "MODEL", default=None
    )
    data: Path | None = option("Dataset directory.", "DATA")
    split: str | None = option(
        "Split to translate.  [default: test; with `--allow-loss` valid]", "NAME"
    )
    ensemble: Ensemble = None
    k: str | None = option(
        "Wait-k: `1..9`, `1,3,5`, `1..9:2`; `inf` reads the whole source first (offline).  "
        "[default: that of training, or 1,3,5,7,9]",
        "LIST",
    )
    thresholds: str | None = option(
        "Reader policy: read while the model's reading probability is at least this: "
        "`0.1..0.9:0.1`.",
        "LIST",
    )
    oracle: str | None = option(
        "Decode along the oracle's paths, for each delay weight lambda: `0,1`.", "LIST"
    )
    policies: str | None = option(
        "Policies by name, each with its default sweep: `confidence,alignatt`; `all`: those that "
        "the models support.",
        "LIST",
    )
    policy: list[str] | None = option(
        "A policy with settings; lists are evaluated in all combinations: `confidence "
        "threshold=0.5..0.9:0.1 floor=2`; or your own (`--import FILE`, or `FILE.py:Class`); or a "
        "NAME stored by `--allow-loss`; may be repeated.",
        "TEXT",
    )
    latency: Literal["al", "dal"] | None = option(
        "With `--allow-loss`: latency to minimise.  [default: al]"
    )
    test_split: str | None = option(
        "With `--allow-loss`: split on which to evaluate the chosen setting.  [default: `--split`]",
        "NAME",
    )
    name: str | None = option(
        "With `--allow-loss`: store the setting in MODEL as `NAME-lossPERCENT`, for `--policy` "
        "here and in `decode --stream`.  [default: the policy]",
        "NAME",
    )
    keep: bool = option(
        "Store the setting in the model directory.", None, "--keep/--no-keep", default=True
    )
    seed: int = option("With `--allow-loss`: seed of the split into halves.", default=1)
    oracle_cost: Literal["delay", "printed"] = option(
        "Reading cost of the oracle; `printed`: exactly as printed in the thesis.", default="delay"
    )
    source: Literal["words", "line"] = option(
        "Tokenise the source word by word, as it would arrive, or by line, which looks ahead, as "
        "in the dataset and in published results.",
        default="words",
    )
    metric: list[str] | None = option(
        "A user-defined latency metric, `f(delays, source_length, target_length)` per sentence, "
        "by its name in the file of `--import`; may be repeated.",
        "NAME",
    )
    beam: int = option(
        "Beam size; 1 is greedy. With a larger beam nothing is final before the end: latency is "
        "that of the best hypothesis.",
        "N",
        default=1,
    )
    finish_reading: bool = flag(
        "--finish-reading", "Forbid the end symbol before the whole source is read."
    )
    bootstrap: int = option(
        "Bootstrap samples for intervals and p-values of areas between curves and wait-k; 0: none.",
        "N",
        default=1000,
        min=0,
    )
    baseline: str | None = option(
        "Compare all curves with wait-k of this MODEL.  [default: with wait-k of the same model]",
        "NAME",
    )
    clock: bool = flag(
        "--clock",
        "Decode sentence by sentence, as a stream, and measure the time per token and "
        "computation-aware latency.",
    )
    words_per_minute: float = option(
        "With `--clock`: speaking rate, which converts seconds to words.",
        "N",
        default=WORDS_PER_MINUTE,
    )
    sentences: int | None = option("Use only the first N sentences.  [default: all]", "N")
    out: Path | None = option("Folder for results, translations, traces, curve and paths.", "DIR")
    simuleval: Path | None = option(
        "Write SimulEval logs, one per setting, for `simuleval --score-only --sacrebleu-tokenizer "
        "none --output`.",
        "DIR",
    )
    published: str | None = option(
        "Add the published curves of a corpus, such as `iwslt14-de-en`; warns if they are not "
        "comparable.",
        "NAME",
    )
    lines: list[int] | None = option("Plot the paths of line N; may be repeated.", "N", "--line")
    log: Path | None = option("Score this `instances.log` of SimulEval; needs no model.", "FILE")
    sacrebleu_tokenizer: Literal["13a", "none", "intl", "zh", "char"] = option(
        "With `--log`: tokeniser of BLEU, named as in SimulEval; `none` for tokenised text.",
        default="13a",
    )
    exit: str | None = option("Early exit, as in `decode --exit`, for all models.", "NAME|N|auto")
    batch_tokens: int = option("Batch size in source tokens x beam.", "N", default=4000)
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
        """The value of `--split`; with `--allow-loss`, the split for calibration."""
        return self.split or ("test" if self.allow_loss is None else "valid")


PANELS = {
    INPUT_OUTPUT: "data split sentences out simuleval lines published config",
    "Reading policies": "k thresholds policies policy oracle oracle_cost finish_reading",
    "Search": "beam ensemble exit source",
    "Latency": "unit convention metric bootstrap baseline clock words_per_minute",
    "Guaranteed loss": "allow_loss risk confidence latency test_split name keep seed",
    "Log of another program": "log sacrebleu_tokenizer",
    GENERAL: "weights batch_tokens precision device json",
}
LOG_RULES = [
    Alone(
        "log",
        "json metric sacrebleu_tokenizer",
        "`--log` scores the output of another program, so {options} would be ignored.",
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
    Requires("oracle_cost", "oracle"),
    Requires("risk confidence latency test_split name seed", "allow_loss"),
    # The option is called `--keep`, but only `--no-keep` differs from the default.
    Requires("keep", "allow_loss", "`--no-keep` belongs to {other}: add it."),
    NAME_NEEDS_KEEP,
    Excludes(
        "oracle",
        "allow_loss",
        "The oracle needs the reference, so nothing can be guaranteed for new sentences: leave out "
        "{option} or {other}.",
    ),
    Excludes(
        "ensemble",
        "allow_loss",
        "A guarantee is for one model, against its own offline translation: leave out {option} or "
        "{other}.",
    ),
    Excludes(
        "baseline bootstrap",
        "allow_loss",
        "{other} evaluates one setting, which has no curve: leave out {option}.",
    ),
    Excludes(
        "batch_tokens",
        "clock",
        "{other} decodes sentence by sentence, without batches: leave out {option}.",
    ),
    Excludes(
        "clock",
        "oracle",
        "The oracle needs the reference, which no stream has: leave out {option} or {other}.",
    ),
]


def check(arguments: OnlineEvalArguments) -> tuple[list[Setting], list[PolicyPreset]]:
    """Return the settings of the policies, and the stored presets among them.

    Raises ConfigError that names every error.
    """
    faults, advice = _faults(arguments), ""
    settings: list[Setting] = []
    presets: list[PolicyPreset] = []
    # Errors in the lists are reported together with those in all other options.
    try:
        texts = [*named_policies(arguments.policies), *(arguments.policy or [])]
        if texts:
            # Imported late, as they import torch.
            from nmtgrid.online.policy_presets import expand

            folders = [split_label(text)[1] for text in arguments.models or ()]
            texts, presets = expand(texts, folders)
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
    """Return errors in the options of `--allow-loss`, one sentence each."""
    from nmtgrid.online.calibrate import refused_candidates
    from nmtgrid.online.policy_presets import check_policy_name

    faults = guarantee.faults()
    if len(arguments.models or ()) > 1:
        faults.append("`--allow-loss` works with one MODEL, but several are given.")
    if arguments.test_split == arguments.chosen_split:
        faults.append(
            f"`--split` and `--test-split` are both `{arguments.test_split}`: a setting must be "
            "tested on other sentences than those it was chosen on. Name another split."
        )
    faults += seed_faults(arguments.seed)
    try:
        check_policy_name(f"{arguments.name or 'policy'}-loss1")
    except ConfigError as error:
        faults += error.faults
    # With `all`, policies for which nothing can be guaranteed are left out instead.
    if not names_all(arguments.policies):
        faults += refused_candidates(settings)
    return faults


def own_metrics(arguments: OnlineEvalArguments) -> dict[str, Metric]:
    """Return the user-defined metrics by name. Raises ConfigError that names every error."""
    # Imported late: `--help` does not wait for numpy.
    from nmtgrid.metrics.latency import read_metrics

    return read_metrics(arguments.metric or ())


def _faults(arguments: OnlineEvalArguments) -> list[str]:
    """Return errors in the values, one sentence each."""
    faults = arguments.unit_faults()
    if arguments.ensemble and len(arguments.models or []) > 1:
        faults.append(
            "`--ensemble` works with one MODEL, but several are given; `analyze latency` compares "
            "results side by side."
        )
    if arguments.published and arguments.latency_convention != "thesis":
        faults.append(
            "Published curves have AL in the thesis' convention: leave out `--published`, or "
            "`--convention`."
        )
    if arguments.clock and arguments.source == "line":
        faults.append(
            "`--clock` decodes streams, in which a line is unknown before its end: leave out "
            "`--source line`."
        )
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
        *output_faults({"--json": arguments.json}, config_input(arguments)),
    ]
