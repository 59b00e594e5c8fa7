"""`nmtgrid analyze lengths`: how much longer or shorter translations are than references."""

from __future__ import annotations

import dataclasses

from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import (
    Format,
    Lowercase,
    Out,
    Reference,
    Systems,
    Tokenize,
    check_out,
    show,
)
from nmtgrid.cli.options import CommandArguments, JsonFile, takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthsArguments(CommandArguments):
    """The arguments of `analyze lengths`."""

    systems: Systems
    reference: Reference
    tokenize: Tokenize = "13a"
    lowercase: Lowercase = False
    out: Out = None
    picture: Format = "png"
    json: JsonFile = None


@takes(LengthsArguments)
def command(arguments: LengthsArguments) -> None:
    """Show how translations' lengths differ from the references', sentence by sentence."""
    systems, reference = arguments.systems, arguments.reference
    inputs = [split_label(text)[1] for text in systems]
    check_out(arguments.out, arguments.json, [*inputs, reference])
    from nmtgrid.analysis.quality import lengths
    from nmtgrid.analysis.quality.evaluation import read_evaluation

    evaluation = read_evaluation(systems, reference, None, arguments.tokenize, arguments.lowercase)
    section = lengths.lengths_section(evaluation)
    show([section], arguments.out, arguments.picture, arguments.json)
