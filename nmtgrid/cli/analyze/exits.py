"""`nmtgrid analyze exits`: where tokens leave a decoder that has many exits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import Format, Out, check_out, line_faults, show
from nmtgrid.cli.options import JsonFile


def command(
    systems: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]TRACES", help="Files of `decode --exit ... --traces FILE`."),
    ],
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", metavar="FILE", help="Shown at the examples."),
    ] = None,
    line: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="An example to draw, from 1; may be repeated."),
    ] = None,
    examples: Annotated[
        int, typer.Option(metavar="N", min=0, help="Without `--line`: the first so many lines.")
    ] = 3,
    out: Out = None,
    picture: Format = "png",
    json: JsonFile = None,
) -> None:
    """Show where tokens leave a decoder that has many exits, and what that goes with.

    Average exits, at the beginning and near the end of hypotheses, by confidence and by source
    length; a few hypotheses token for token. The end symbol is a token with an exit.
    """
    paths = [split_label(text)[1] for text in systems]
    check_out(out, json, [*paths, reference])
    lines = line or []
    if faults := line_faults(lines):
        raise ConfigError(faults)
    from nmtgrid.analysis.exits import exits_section, read_exits
    from nmtgrid.analysis.systems import named_files, read_text

    named = named_files(systems)
    references = None if reference is None else read_text(reference)
    lengths = {} if reference is None or references is None else {reference: len(references)}
    traces = read_exits(named, lines, examples, lengths)
    show([exits_section(traces, references)], out, picture, json)
