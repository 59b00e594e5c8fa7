"""`nmtgrid analyze compare`: which system is better, how surely, and at what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import (
    Format,
    Lowercase,
    Out,
    Reference,
    Source,
    Systems,
    Tokenize,
    check_out,
    show,
)
from nmtgrid.cli.options import JsonFile


def command(
    systems: Systems,
    reference: Reference,
    source: Source = None,
    bootstrap: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Paired bootstrap against the first: 1000 is usual."),
    ] = 0,
    randomisation: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Approximate randomisation against the first: 10000 is usual."
        ),
    ] = 0,
    ter: Annotated[bool, typer.Option("--ter", help="TER too (slow).")] = False,
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Training text (target side): words are sorted by how often it has them.  "
            "[default: how often the references have them]",
        ),
    ] = None,
    ngrams: Annotated[
        int, typer.Option(metavar="N", min=0, help="N-grams to show of each kind.")
    ] = 10,
    examples: Annotated[
        int, typer.Option(metavar="N", min=0, help="Sentences to show of each kind.")
    ] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the tests.")] = 12345,
    tokenize: Tokenize = "13a",
    lowercase: Lowercase = False,
    out: Out = None,
    picture: Format = "png",
    json: JsonFile = None,
) -> None:
    """Compare systems with the first: scores and tests, words, n-grams, sentences."""
    check_out(out, json, [*(split_label(text)[1] for text in systems), reference, source, train])
    if len(systems) < 2 and (bootstrap or randomisation):
        raise ConfigError("A test compares systems: give two or more.")
    from nmtgrid.analysis.quality.compare import ComparisonOptions, comparison_section
    from nmtgrid.analysis.quality.evaluation import read_evaluation
    from nmtgrid.analysis.quality.words import frequencies_in
    from nmtgrid.analysis.systems import read_text

    evaluation = read_evaluation(systems, reference, source, tokenize, lowercase)
    frequencies = None if train is None else frequencies_in(read_text(train), evaluation)
    options = ComparisonOptions(bootstrap, randomisation, ter, ngrams, examples, seed)
    show([comparison_section(evaluation, options, frequencies)], out, picture, json)
