"""The arguments of `nmtgrid train`, and which of them go together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nmtgrid.cli.options import (
    CommandArguments,
    Device,
    Excludes,
    JsonFile,
    Needs,
    Overrides,
    Requires,
)

Precision = Annotated[
    Literal["auto", "fp32", "bf16"] | None,
    Option(help="`auto`: bf16 where it is faster than fp32.", show_default="auto"),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainArguments(CommandArguments):
    """The arguments of `train`."""

    data: Annotated[Path | None, Argument(metavar="DATA", help="Dataset directory.")] = None
    out: Annotated[Path | None, Option(metavar="MODEL", help="Model directory to write.")] = None
    arch: Annotated[
        str | None,
        Option(metavar="NAME", help="Architecture; see `--list`.", show_default="pervasive"),
    ] = None
    preset: Annotated[
        str | None,
        Option(metavar="NAME", help="The architecture's settings by name.", show_default="none"),
    ] = None
    objective: Annotated[
        str | None, Option(metavar="NAME", help="What is minimised.", show_default="likelihood")
    ] = None
    changes: Overrides = None
    device: Device = "auto"
    precision: Precision = None
    max_updates: Annotated[
        int | None,
        Option(
            metavar="N", help="Updates to do; 0: no limit.", show_default="the preset's, or 50,000"
        ),
    ] = None
    max_minutes: Annotated[
        float | None,
        Option(
            metavar="M",
            help="Minutes to train, validation and saving included, carried over `--resume`; "
            "the last validation comes after them.",
            show_default="the preset's, or no limit",
        ),
    ] = None
    max_epochs: Annotated[
        int | None,
        Option(metavar="N", help="Epochs to do.", show_default="the preset's, or no limit"),
    ] = None
    seed: Annotated[
        int | None, Option(metavar="N", help="Seed of everything that is random.", show_default="1")
    ] = None
    seeds: Annotated[
        str | None,
        Option(metavar="LIST", help="Several runs, such as 1,2,3 or 1..3, into OUT/seed-N."),
    ] = None
    init: Annotated[
        Path | None, Option(metavar="MODEL", help="Begin from another model's weights.")
    ] = None
    resume: Annotated[bool, Option("--resume", help="Go on with the run in OUT.")] = False
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the run in OUT.")] = False
    average: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Also try the mean of the last N checkpoints.",
            show_default="the preset's, or 0",
        ),
    ] = None
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the plan and its cost; train nothing.")
    ] = False
    list_: Annotated[
        bool, Option("--list", help="Show architectures, presets, objectives, settings.")
    ] = False
    source_vocab_size: Annotated[
        int | None, Option(metavar="N", help="For `--dry-run` without data.")
    ] = None
    target_vocab_size: Annotated[
        int | None, Option(metavar="N", help="For `--dry-run` without data.")
    ] = None
    json: JsonFile = None


_SIZES_MESSAGE = "{option} is for `--dry-run` alone, without DATA: leave it out."
_OUT_MESSAGE = "`--out MODEL` is missing: where shall the model be written?"
RULES = [
    Requires("source_vocab_size target_vocab_size", "dry_run", _SIZES_MESSAGE),
    Excludes("source_vocab_size target_vocab_size", "data", _SIZES_MESSAGE),
    Excludes(
        "init",
        "resume",
        "`--init` and `--resume` contradict each other: a resumed run goes on from its own "
        "weights.",
        # Of several runs some may be resumed while others begin.
        unless="seeds",
    ),
    Needs(
        "data",
        message="The dataset directory DATA is missing: `nmtgrid train DATA --out MODEL`.",
        unless="dry_run",
    ),
    Needs("out", message=_OUT_MESSAGE, unless="dry_run"),
    Requires("resume", "out", _OUT_MESSAGE),
    Excludes("resume", "overwrite"),
    Excludes("seed", "seeds"),
]
