"""`nmtgrid analyze compare`: which system is better, how surely, and at what."""

from __future__ import annotations

import dataclasses
from pathlib import Path

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
from nmtgrid.cli.options import CommandArguments, JsonFile, flag, option, takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareArguments(CommandArguments):
    """The arguments of `analyze compare`."""

    systems: Systems
    reference: Reference
    source: Source = None
    bootstrap: int = option(
        "Paired bootstrap against the first: 1000 is usual.", "N", default=0, min=0
    )
    randomisation: int = option(
        "Approximate randomisation against the first: 10000 is usual.", "N", default=0, min=0
    )
    ter: bool = flag("--ter", "TER too (slow).")
    train: Path | None = option(
        "Training text (target side): words are sorted by how often it has them.  "
        "[default: how often the references have them]",
        "FILE",
    )
    ngrams: int = option("N-grams to show of each kind.", "N", default=10, min=0)
    examples: int = option("Sentences to show of each kind.", "N", default=3, min=0)
    seed: int = option("Of the tests.", default=12345, min=0)
    tokenize: Tokenize = "13a"
    lowercase: Lowercase = False
    out: Out = None
    picture: Format = "png"
    json: JsonFile = None


@takes(CompareArguments)
def command(arguments: CompareArguments) -> None:
    """Compare systems with the first: scores and tests, words, n-grams, sentences."""
    systems, reference, source = arguments.systems, arguments.reference, arguments.source
    inputs = [split_label(text)[1] for text in systems]
    check_out(arguments.out, arguments.json, [*inputs, reference, source, arguments.train])
    if len(systems) < 2 and (arguments.bootstrap or arguments.randomisation):
        raise ConfigError("A test compares systems: give two or more.")
    from nmtgrid.analysis.quality.compare import ComparisonOptions, comparison_section
    from nmtgrid.analysis.quality.evaluation import read_evaluation
    from nmtgrid.analysis.quality.words import frequencies_in
    from nmtgrid.analysis.systems import read_text

    evaluation = read_evaluation(
        systems, reference, source, arguments.tokenize, arguments.lowercase
    )
    frequencies = None
    if arguments.train is not None:
        frequencies = frequencies_in(read_text(arguments.train), evaluation)
    options = ComparisonOptions(
        bootstrap=arguments.bootstrap,
        randomisation=arguments.randomisation,
        ter=arguments.ter,
        ngrams=arguments.ngrams,
        examples=arguments.examples,
        seed=arguments.seed,
    )
    section = comparison_section(evaluation, options, frequencies)
    show([section], arguments.out, arguments.picture, arguments.json)
