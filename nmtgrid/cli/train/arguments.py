"""The arguments of `nmtgrid train`, and the rules on combining them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from nmtgrid.cli.options import (
    Alone,
    CommandArguments,
    Config,
    Device,
    Excludes,
    JsonFile,
    Needs,
    Overrides,
    Requires,
    argument,
    flag,
    option,
)

SETTINGS = ("precision", "max_updates", "max_minutes", "max_epochs", "seed", "average")
"""Options that are also settings `training.*`, which `--set` can change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainArguments(CommandArguments):
    not_in_file: ClassVar[frozenset[str]] = frozenset({"config", "dump_config", "list_", "changes"})
    file_settings: ClassVar[tuple[str, ...]] = SETTINGS

    data: Path | None = argument(
        "Dataset directory; optional with `--resume`.", "DATA", default=None
    )
    out: Path | None = option("Model directory to write.", "MODEL")
    arch: str | None = option("Architecture; see `--list`.", "NAME", show_default="pervasive")
    preset: str | None = option("Named settings of the architecture.", "NAME", show_default="none")
    objective: str | None = option("Training objective.", "NAME", show_default="likelihood")
    changes: Overrides = None
    device: Device = "auto"
    precision: Literal["auto", "fp32", "bf16"] | None = option(
        "`auto`: bf16 where it is faster than fp32.", show_default="auto"
    )
    max_updates: int | None = option(
        "Maximum number of updates; 0: no limit.", "N", show_default="the preset's, or 50,000"
    )
    max_minutes: float | None = option(
        "Maximum minutes, including validation and saving, cumulative over `--resume`; the final "
        "validation is extra; 0: no limit.",
        "M",
        show_default="the preset's, or no limit",
    )
    max_epochs: int | None = option(
        "Maximum number of epochs; 0: no limit.", "N", show_default="the preset's, or no limit"
    )
    seed: int | None = option("Random seed.", "N", show_default="1")
    seeds: str | None = option(
        "Several runs with these seeds, such as 1,2,3 or 1..3, each into OUT/seed-N.", "LIST"
    )
    init: Path | None = option("Initialise with another model's weights.", "MODEL")
    resume: bool = flag("--resume", "Continue the run in OUT.")
    overwrite: bool = flag("--overwrite", "Replace the run in OUT.")
    average: int | None = option(
        "Also evaluate the average of the last N checkpoints.",
        "N",
        show_default="the preset's, or 0",
    )
    tensorboard: bool = flag("--tensorboard", "Also write TensorBoard events into OUT/tensorboard.")
    dry_run: bool = flag("--dry-run", "Print the plan and its cost without training.")
    list_: bool = flag("--list", "List architectures, presets, objectives and settings.")
    source_vocab_size: int | None = option(
        "With `--dry-run` without DATA: size of the source vocabulary.", "N"
    )
    target_vocab_size: int | None = option(
        "With `--dry-run` without DATA: size of the target vocabulary.", "N"
    )
    json: JsonFile = None
    config: Config = None
    dump_config: Path | None = option(
        "Write all settings as a `--config` file, without training (`-`: to standard output).",
        "FILE",
    )
    lengths: str | None = option(
        "With `--dry-run`: lengths of a sentence pair in units, end symbols included, such as "
        "20x25; the cost is for such pairs.",
        "SOURCExTARGET",
    )
    test_split: str | None = option(
        "Translate and score this split at the end, as `decode --data` does; `none`: do not.  "
        "[default: with `--seeds` test]",
        "NAME",
    )


PANELS = {
    "Model and objective": "arch preset objective changes config init",
    "Run": "out seed seeds resume overwrite tensorboard",
    "End of the run": "max_minutes max_updates max_epochs average test_split",
    "Instead of training": "list_ dump_config dry_run lengths source_vocab_size target_vocab_size",
}
_SIZES_MESSAGE = "{option} applies only to `--dry-run` without DATA: leave it out."
_OUT_MESSAGE = "`--out MODEL` is missing: the model directory to write."
LIST_RULES = [
    Alone(
        "list_",
        "arch objective json",
        "`--list` lists what can be set, so {options} would be ignored.",
    )
]
RULES = [
    Excludes(
        "json dry_run",
        "dump_config",
        "`--dump-config` writes the settings and nothing else, so {option} would be ignored.",
        "Leave out one of them.",
    ),
    Requires("source_vocab_size target_vocab_size", "dry_run", _SIZES_MESSAGE),
    Excludes("source_vocab_size target_vocab_size", "data", _SIZES_MESSAGE),
    Excludes(
        "init",
        "resume",
        "`--init` and `--resume` contradict each other: a resumed run continues with its own "
        "weights.",
        # With several runs, some may be resumed while others begin.
        unless="seeds",
    ),
    Needs(
        "data",
        "dry_run dump_config resume",
        "The dataset directory DATA is missing: `nmtgrid train DATA --out MODEL`.",
    ),
    Needs("out", "dry_run dump_config", _OUT_MESSAGE),
    Requires("lengths", "dry_run"),
    Requires("resume", "out", _OUT_MESSAGE),
    Excludes("resume", "overwrite"),
    Excludes("seed", "seeds"),
]
