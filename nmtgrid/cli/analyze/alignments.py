"""`nmtgrid analyze alignments`: what models look at, in numbers, heat maps and links."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.analyze.show import Format, Out, check_out, line_faults, show
from nmtgrid.cli.options import (
    CommandArguments,
    JsonFile,
    Requires,
    argument,
    check_outputs,
    check_rules,
    option,
    takes,
)

Lines = Annotated[
    list[int] | None,
    typer.Option(
        "--line", metavar="N", help="Lines to draw, from 1; may be repeated.  [default: one]"
    ),
]
Words = Annotated[
    bool, typer.Option("--words", help="Join BPE pieces to words, those of tokenised text.")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlignmentsArguments(CommandArguments):
    """The arguments of `analyze alignments`."""

    traces: list[str] = argument("Files of `decode --traces`, a model each.", "[NAME=]TRACES")
    out: Out = None
    line: Lines = None
    words: Words = False
    pharaoh: Path | None = option(
        "Write links, `i-j` from 0 (of several models: the name added).", "FILE"
    )
    threshold: float | None = option(
        "Link shares from this on.  [default: the largest]", min=0.0, max=1.0
    )
    gold: Path | None = option(
        "Links by people (possible ones `i?j`): gives the error rate.", "FILE"
    )
    picture: Format = "png"
    json: JsonFile = None


LINE_REQUIRES_OUT = Requires("line", "out", "`--line` says what to draw: say where with `--out`.")
RULES = [
    LINE_REQUIRES_OUT,
    Requires(
        "threshold",
        "pharaoh gold",
        "`--threshold` makes links: add `--pharaoh FILE` or `--gold FILE`.",
    ),
]


@takes(AlignmentsArguments)
def command(arguments: AlignmentsArguments) -> None:
    """Show how sharp alignments are and what they cover; draw them as heat maps side by side.

    Entropy is in nats per target token (lower is surer), coverage the mean share of a source
    token that is aligned to; end symbols count on both sides.
    """
    from nmtgrid.analysis.systems import named_files

    files, gold = named_files(arguments.traces), arguments.gold
    check_out(arguments.out, arguments.json, [*files.values(), gold])
    # None of the files of links, which are named after the models, may replace what is read.
    outputs = _outputs(arguments.pharaoh, [*files])
    inputs = {"--gold": gold, **{f"TRACES {path}": path for path in files.values()}}
    check_outputs({f"--pharaoh {name}": path for name, path in outputs.items()}, inputs)
    lines = arguments.line or []
    check_rules(arguments, RULES, line_faults(lines))
    from nmtgrid.analysis.alignment.models import AlignmentOptions, alignments_section, read_models
    from nmtgrid.analysis.alignment.pharaoh import write_links

    # A line that is asked for twice is drawn once.
    options = AlignmentOptions(list(dict.fromkeys(lines)), arguments.words, arguments.threshold)
    models = read_models(files, options, gold)
    for model in models if outputs else ():
        write_links(outputs[model.name], model.links)
        console.say(f"Written: {outputs[model.name]}")
    section = alignments_section(models, options)
    show([section], arguments.out, arguments.picture, arguments.json)


def _outputs(pharaoh: Path | None, names: list[str]) -> dict[str, Path]:
    """Return the file of links of each model."""
    if pharaoh is None:
        return {}
    if len(names) == 1:
        return {names[0]: pharaoh}
    if bad := [name for name in names if "/" in name]:
        raise ConfigError(
            f"`--pharaoh` makes files of the models' names, but `{bad[0]}` holds a `/`."
        )
    return {name: pharaoh.with_name(f"{pharaoh.stem}-{name}{pharaoh.suffix}") for name in names}
