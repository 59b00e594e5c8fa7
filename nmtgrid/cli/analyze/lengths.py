"""`nmtgrid analyze lengths`: how much longer or shorter translations are than references."""

from __future__ import annotations

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
from nmtgrid.cli.options import JsonFile


def command(
    systems: Systems,
    reference: Reference,
    tokenize: Tokenize = "13a",
    lowercase: Lowercase = False,
    out: Out = None,
    picture: Format = "png",
    json: JsonFile = None,
) -> None:
    """Show how translations' lengths differ from the references', sentence by sentence."""
    check_out(out, json, [*(split_label(text)[1] for text in systems), reference])
    from nmtgrid.analysis.quality import lengths
    from nmtgrid.analysis.quality.evaluation import read_evaluation

    evaluation = read_evaluation(systems, reference, None, tokenize, lowercase)
    show([lengths.lengths_section(evaluation)], out, picture, json)
