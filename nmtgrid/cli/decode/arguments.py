"""The arguments of `nmtgrid decode`, and which of them go together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nmtgrid.cli.options import (
    EXIT_EXCLUDES_ENSEMBLE,
    CommandArguments,
    Device,
    Ensemble,
    Excludes,
    JsonFile,
    Needs,
    Overrides,
    Precision,
    Requires,
    Weights,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeArguments(CommandArguments):
    """The arguments of `decode`."""

    model: Annotated[Path, Argument(metavar="MODEL", help="A model directory.")]
    source: Annotated[
        Path | None,
        Argument(
            metavar="INPUT|-",
            help="Raw text, one sentence a line; or features of pictures (.safetensors).  "
            "[default: -]",
        ),
    ] = None
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Where the text goes.  [default: -]")
    ] = None
    data: Annotated[Path | None, Option(metavar="DATA", help="Translate a split and score it.")] = (
        None
    )
    split: Annotated[
        str | None, Option(metavar="NAME", help="The split of `--data`.  [default: test]")
    ] = None
    ter: Annotated[
        bool, Option("--ter", help="With `--data`: TER too (slow, minutes for bad ones).")
    ] = False
    forced: Annotated[
        bool,
        Option(
            "--forced", help="Write no translations: force the split's references (perplexity)."
        ),
    ] = False
    energies: Annotated[
        bool, Option("--energies", help="With `--forced`: what each source unit adds to a score.")
    ] = False
    beam: Annotated[
        int | None, Option(metavar="N", help="Width; 1 is greedy.  [default: the model's]")
    ] = None
    length_penalty: Annotated[
        float | None,
        Option(
            metavar="A",
            help="Score = log-probability / ((mu + length) / (mu + 1))^A, end symbol counted in "
            "the length.  [default: the model's]",
        ),
    ] = None
    coverage_penalty: Annotated[
        float | None, Option(metavar="B", help="Weight of what is left untranslated.")
    ] = None
    nbest: Annotated[
        int | None,
        Option(metavar="N", help="Write N lines `line ||| text ||| log-prob. ||| score`."),
    ] = None
    ensemble: Ensemble = None
    sample: Annotated[
        bool, Option("--sample", help="Draw translations instead of seeking the best.")
    ] = False
    temperature: Annotated[
        float | None, Option(help="Of sampling; below 1 is sharper.  [default: 1]")
    ] = None
    top_k: Annotated[int | None, Option(help="Sample among the K likeliest.")] = None
    top_p: Annotated[
        float | None, Option(help="Sample among the likeliest that hold this share.")
    ] = None
    seed: Annotated[int | None, Option(help="Of sampling.  [default: 1]")] = None
    prefix: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Raw text, a line for each of INPUT: whole words that its translation begins "
            "with, perhaps none.",
        ),
    ] = None
    traces: Annotated[
        Path | None, Option(metavar="FILE", help="Write one JSON record a line, with alignments.")
    ] = None
    alignments: Annotated[
        Path | None, Option(metavar="FILE", help="Write links of words, `source-target` from 0.")
    ] = None
    replace_unknown: Annotated[
        bool, Option("--replace-unknown", help="Copy the aligned word for `<unk>`.")
    ] = False
    batch_tokens: Annotated[
        int | None, Option(metavar="N", help="Source tokens x beam of a batch.  [default: 4000]")
    ] = None
    max_source: Annotated[
        int | None,
        Option(metavar="N", help="Units of the longest source taken whole.  [default: 512]"),
    ] = None
    long_lines: Annotated[
        Literal["split", "cut"] | None,
        Option(help="Translate longer ones in pieces, or cut them.  [default: split]"),
    ] = None
    weights: Weights = "best"
    exit: Annotated[
        str | None,
        Option(
            metavar="NAME|N|auto",
            help="Leave the decoder early: by the thresholds that `adaptive-tune` kept under NAME, "
            "after block N, or where the model's own predictor says so.",
        ),
    ] = None
    stream: Annotated[
        bool,
        Option("--stream", help="Translate words as they come; needs one of `--k`, `--threshold`."),
    ] = False
    k: Annotated[
        str | None,
        Option(metavar="N", help="Streams: stay N source units behind; `inf` waits for all."),
    ] = None
    threshold: Annotated[
        float | None, Option(metavar="TAU", help="Streams: the model's agent reads on above this.")
    ] = None
    finish_reading: Annotated[
        bool, Option("--finish-reading", help="Streams: no end before all has been read.")
    ] = False
    changes: Overrides = None
    precision: Precision = "fp32"
    device: Device = "auto"
    json: JsonFile = None

    @property
    def models(self) -> list[Path]:
        """All model directories that are averaged."""
        return [self.model, *(self.ensemble or [])]


RULES = [
    Excludes("source", "data", "Give INPUT or `--data`, not both."),
    Requires("forced", "data", "`--forced` needs references: name a dataset with `--data`."),
    Excludes(
        "out ensemble beam length_penalty coverage_penalty nbest sample prefix replace_unknown "
        "max_source long_lines changes ter",
        "forced",
        "{option} has no effect with `--forced`, which translates nothing.",
    ),
    Excludes(
        "exit", "forced", "`--exit` is for decoding; `--forced` runs all blocks: leave one of them."
    ),
    EXIT_EXCLUDES_ENSEMBLE,
    Requires("energies", "forced", "`--energies` are those of given translations: add `--forced`."),
    Requires("split", "data", "`--split` belongs to `--data`: name the dataset."),
    Requires("ter", "data", "`--ter` needs references: name a dataset with `--data`."),
    Requires(
        "k threshold finish_reading",
        "stream",
        "{option} belongs to `--stream`: add it, or see `online-eval`.",
    ),
    Requires(
        "temperature top_k top_p seed", "sample", "{option} has no effect without `--sample`."
    ),
]
STREAM_RULES = [
    Excludes(
        "out data split ter forced energies beam length_penalty coverage_penalty nbest sample "
        "temperature top_k top_p seed prefix alignments replace_unknown batch_tokens long_lines",
        "stream",
        "With `--stream` there is no meaning in {options}: each word is written to standard output "
        "as soon as it is final, and never taken back.",
    ),
    Needs(
        "k",
        message="`--stream` needs one of `--k` and `--threshold`, but neither is given.",
        unless="threshold",
    ),
    Excludes(
        "k", "threshold", "`--stream` needs one of `--k` and `--threshold`, but both are given."
    ),
    EXIT_EXCLUDES_ENSEMBLE,
]
PICTURE_RULES = [
    Excludes(
        "replace_unknown max_source long_lines prefix ter",
        message="{option} is about text; this model captions pictures.",
        advice="Leave it out.",
    )
]
