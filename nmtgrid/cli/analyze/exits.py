"""`nmtgrid analyze exits`: where tokens leave a decoder that has many exits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import Format, Out, check_out, line_faults, show
from nmtgrid.cli.options import CommandArguments, JsonFile, argument, option, takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExitsArguments(CommandArguments):
    """The arguments of `analyze exits`."""

    systems: list[str] = argument("Files of `decode --exit ... --traces FILE`.", "[NAME=]TRACES")
    reference: Path | None = option("Shown at the examples.", "FILE", "--reference", "-r")
    line: list[int] | None = option("An example to draw, from 1; may be repeated.", "N")
    examples: int = option("Without `--line`: the first so many lines.", "N", default=3, min=0)
    out: Out = None
    picture: Format = "png"
    json: JsonFile = None


@takes(ExitsArguments)
def command(arguments: ExitsArguments) -> None:
    """Show where tokens leave a decoder that has many exits, and what that goes with.

    Average exits, at the beginning and near the end of hypotheses, by confidence and by source
    length; a few hypotheses token for token. The end symbol is a token with an exit.
    """
    systems, reference, lines = arguments.systems, arguments.reference, arguments.line or []
    inputs = [split_label(text)[1] for text in systems]
    check_out(arguments.out, arguments.json, [*inputs, reference])
    if faults := line_faults(lines):
        raise ConfigError(faults)
    from nmtgrid.analysis.exits import exits_section, read_exits
    from nmtgrid.analysis.systems import named_files, read_text

    named = named_files(systems)
    references, lengths = None, {}
    if reference is not None:
        references = read_text(reference)
        # The traces must have as many lines.
        lengths = {reference: len(references)}
    traces = read_exits(named, lines, arguments.examples, lengths)
    section = exits_section(traces, references)
    show([section], arguments.out, arguments.picture, arguments.json)
