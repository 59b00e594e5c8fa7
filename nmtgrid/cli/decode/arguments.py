"""The arguments of `nmtgrid decode`, and the rules on combining them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from nmtgrid.cli.options import (
    EXIT_EXCLUDES_ENSEMBLE,
    GENERAL,
    INPUT_OUTPUT,
    CommandArguments,
    Config,
    DecodePrecision,
    Device,
    Ensemble,
    Excludes,
    JsonFile,
    Overrides,
    Requires,
    Weights,
    argument,
    flag,
    option,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeArguments(CommandArguments):
    model: Path = argument("A model directory.", "MODEL")
    source: Path | None = argument(
        "Raw text, one sentence per line; or features of pictures (.safetensors).  [default: -]",
        "INPUT|-",
        default=None,
    )
    out: Path | None = option("Output file.  [default: -]", "FILE")
    data: Path | None = option("Translate and score a split of this dataset.", "DATA")
    split: str | None = option("Split of `--data`.  [default: test]", "NAME")
    card: bool = flag(
        "--card",
        "With `--data`: add the scores to the model's README.md; requires the model's own search "
        "settings, with any `--beam` and `--weights`.",
    )
    ter: bool = flag(
        "--ter", "With `--data`: also compute TER (slow; minutes for poor translations)."
    )
    forced: bool = flag(
        "--forced", "Score the references of the split (perplexity) instead of translating."
    )
    energies: bool = flag(
        "--energies", "With `--forced`: the contribution of each source unit to a score."
    )
    beam: int | None = option("Beam size; 1 is greedy.  [default: the model's]", "N")
    length_penalty: float | None = option(
        "Length penalty A: score = log-probability / ((mu + length) / (mu + 1))^A, end symbol "
        "included in the length.  [default: the model's]",
        "A",
    )
    coverage_penalty: float | None = option(
        "Weight of the coverage penalty, for source text left untranslated.", "B"
    )
    nbest: int | None = option("Write N lines `line ||| text ||| log-prob. ||| score`.", "N")
    ensemble: Ensemble = None
    sample: bool = flag("--sample", "Sample instead of searching.")
    temperature: float | None = option("Sampling temperature; below 1 is sharper.  [default: 1]")
    top_k: int | None = option("Sample from the K most likely tokens.")
    top_p: float | None = option(
        "Sample from the most likely tokens with this total probability (nucleus)."
    )
    seed: int | None = option("Sampling seed.  [default: 1]")
    prefix: Path | None = option(
        "Forced prefixes: raw text of whole words, one line per line of INPUT; an empty line "
        "forces nothing.",
        "FILE",
    )
    traces: Path | None = option("Write one JSON record per line, with alignments.", "FILE")
    alignments: Path | None = option("Write word alignments, `source-target` from 0.", "FILE")
    replace_unknown: bool = flag(
        "--replace-unknown", "Replace `<unk>` with the aligned source word."
    )
    batch_tokens: int | None = option("Batch size in source tokens x beam.  [default: 4000]", "N")
    max_source: int | None = option(
        "Maximum source length in units before splitting.  [default: as in training]", "N"
    )
    long_lines: Literal["split", "cut"] = option(
        "Split longer sources, or truncate them.", default="split"
    )
    weights: Weights = "best"
    exit: str | None = option(
        "Early exit: thresholds stored by `adaptive-tune` under NAME, a fixed exit after block N, "
        "or the model's own predictor (`auto`). `verified` is self-speculative decoding: the same "
        "translations as without exits, but faster, as it drafts tokens at an exit and verifies "
        "them with all blocks (`'verified exit=1 drafts=8 types=1024'`).",
        "NAME|N|auto|verified",
    )
    stream: bool = flag(
        "--stream",
        "Streaming: translate words as they arrive; needs one of `--k`, `--threshold`, "
        "`--policy`, unless the model was trained with one k.",
    )
    k: str | None = option("Streams: wait-k with k = N source units; `inf` waits for all.", "N")
    threshold: float | None = option(
        "Streams: read while the model's reading probability is at least this.", "TAU"
    )
    policy: str | None = option(
        "Streams: a reading policy, such as `confidence threshold=0.8 floor=2`, your own "
        "(`--import`), or the NAME of a setting stored by `online-eval --allow-loss`.",
        "TEXT",
    )
    finish_reading: bool = flag(
        "--finish-reading", "Streams: forbid the end symbol before the whole source is read."
    )
    metric: list[str] | None = option(
        "Streams: a user-defined latency metric for `--json`, as in `online-eval`; may be "
        "repeated.",
        "NAME",
    )
    changes: Overrides = None
    precision: DecodePrecision = "fp32"
    device: Device = "auto"
    json: JsonFile = None
    config: Config = None


PANELS = {
    INPUT_OUTPUT: "out prefix traces alignments max_source long_lines config",
    "Search": "beam length_penalty coverage_penalty nbest ensemble replace_unknown changes",
    "Translating a split": "data split card ter forced energies",
    "Sampling": "sample temperature top_k top_p seed",
    "Streaming": "stream k threshold policy finish_reading metric",
    "Early exit": "exit",
    GENERAL: "weights batch_tokens precision device json",
}
RULES = [
    Excludes("source", "data", "Give INPUT or `--data`, not both."),
    Requires("forced", "data", "`--forced` needs references: name a dataset with `--data`."),
    Excludes(
        "out ensemble beam length_penalty coverage_penalty nbest sample prefix replace_unknown "
        "max_source long_lines changes ter card",
        "forced",
        "{option} has no effect with `--forced`, which translates nothing.",
    ),
    Excludes(
        "exit",
        "forced",
        "`--exit` is for decoding; `--forced` runs all blocks: leave out one of them.",
    ),
    EXIT_EXCLUDES_ENSEMBLE,
    Requires("energies", "forced", "`--energies` needs given translations: add `--forced`."),
    Requires(
        "energies",
        "traces alignments",
        "`--energies` are written with the alignments: add `--traces FILE` or `--alignments FILE`.",
    ),
    Requires("split", "data", "`--split` belongs to `--data`: name the dataset."),
    Requires("ter", "data", "`--ter` needs references: name a dataset with `--data`."),
    Requires("card", "data", "`--card` enters scores: name a dataset with `--data`."),
    # Everything that changes translations but is not recorded with a score: see `ScoreRecord`.
    Excludes(
        "ensemble exit sample prefix precision length_penalty coverage_penalty nbest changes "
        "replace_unknown max_source long_lines",
        "card",
        "`--card` is for translations of MODEL on its own, by its own settings (beam and weights "
        "are recorded): leave out {options}.",
    ),
    Requires(
        "k threshold policy finish_reading metric",
        "stream",
        "{option} belongs to `--stream`: add it, or see `online-eval`.",
    ),
    Requires(
        "temperature top_k top_p seed", "sample", "{option} has no effect without `--sample`."
    ),
]
_ONE_POLICY = "`--stream` needs one of `--k`, `--threshold` and `--policy`, but two are given."
# Used instead of the rules above: streaming has little in common with decoding whole sentences.
STREAM_RULES = [
    Excludes(
        "out data split ter card forced energies beam length_penalty coverage_penalty nbest sample "
        "temperature top_k top_p seed prefix alignments replace_unknown batch_tokens long_lines",
        "stream",
        "`--stream` cannot be combined with {options}: each word is written to standard output "
        "as soon as it is final, and never taken back.",
    ),
    Requires("metric", "json", "{option} is a value of the report: add `--json FILE`."),
    Excludes("k", "threshold", _ONE_POLICY),
    Excludes("policy", "k", _ONE_POLICY),
    Excludes("policy", "threshold", _ONE_POLICY),
    EXIT_EXCLUDES_ENSEMBLE,
]
# Checked after the model is loaded, which determines whether it reads text or pictures.
PICTURE_RULES = [
    Excludes(
        "replace_unknown max_source long_lines prefix ter card",
        message="{option} applies to text, but this model captions pictures.",
        advice="Leave it out.",
    )
]
