"""`nmtgrid analyze difficulty`: how far one must lag behind each source, by word alignments."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.align import (
    Heuristic,
    LinksOut,
    Train,
    aligning,
    check_aligned,
    trained,
    warn_of_little,
)
from nmtgrid.cli.analyze.show import (
    Format,
    Lowercase,
    Out,
    Reference,
    Tokenize,
    check_out,
    read_edges,
    show,
)
from nmtgrid.cli.options import (
    REQUIRED,
    CommandArguments,
    JsonFile,
    argument,
    check_outputs,
    option,
    takes,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifficultyArguments(CommandArguments):
    """The arguments of `analyze difficulty`."""

    reference: Reference
    source: Path = option("Source, a line each.", "FILE", "--source", "-s", default=REQUIRED)
    systems: list[str] | None = argument(
        "Translations: sentence BLEU by difficulty, a bar each.", "[NAME=]FILE", default=None
    )
    alignments: Path | None = option(
        "Links of source and reference, `i-j` from 0.  [default: learned]", "FILE"
    )
    train: Train = None
    heuristic: Heuristic = "grow-diag-final-and"
    edges: str | None = option("Where buckets begin: 1,2,4.  [default: thesis]", "N,N,...")
    difficulty_out: Path | None = option("Write a number a line, for `analyze buckets`.", "FILE")
    alignments_out: LinksOut = None
    tokenize: Tokenize = "13a"
    lowercase: Lowercase = False
    out: Out = None
    picture: Format = "png"
    json: JsonFile = None


@takes(DifficultyArguments)
def command(arguments: DifficultyArguments) -> None:
    """Show how far one must lag behind each source to write its reference, and who does it well.

    Words are what spaces separate: give tokenised text, or raw text and more of it with `--train`.
    """
    bounds = _check(arguments)
    from nmtgrid.analysis.alignment.aligner import AlignerSettings, read_pairs
    from nmtgrid.analysis.alignment.pharaoh import write_links
    from nmtgrid.analysis.quality import difficulty
    from nmtgrid.analysis.quality.evaluation import read_evaluation

    source, reference = arguments.source, arguments.reference
    evaluation, lines = None, None
    if arguments.systems:
        evaluation = read_evaluation(
            arguments.systems, reference, source, arguments.tokenize, arguments.lowercase
        )
        lines = (evaluation.source_lines or [], evaluation.reference_lines)
    settings = AlignerSettings(heuristic=arguments.heuristic)
    with aligning() as advance:
        pairs = read_pairs(
            source, reference, arguments.alignments, arguments.train, settings, advance, lines
        )
    if arguments.alignments is None and arguments.train is None:
        warn_of_little(len(pairs.links))
    lagging = difficulty.measure_difficulty(pairs)
    if arguments.difficulty_out is not None:
        difficulty.write_numbers(arguments.difficulty_out, lagging.lagging)
        console.say(f"Written: {arguments.difficulty_out}")
    if arguments.alignments_out is not None:
        write_links(arguments.alignments_out, pairs.links)
        console.say(f"Written: {arguments.alignments_out}")
    section = difficulty.difficulty_section(pairs, lagging, evaluation, bounds)
    show([section], arguments.out, arguments.picture, arguments.json)


def _check(arguments: DifficultyArguments) -> list[float] | None:
    """Return where buckets begin (None: as in the thesis). Raises ConfigError for any fault."""
    inputs = {
        "--reference": arguments.reference,
        "--source": arguments.source,
        "--alignments": arguments.alignments,
        **trained(arguments.train),
        **{f"FILE {(path := split_label(text)[1])}": path for text in arguments.systems or []},
    }
    check_out(arguments.out, arguments.json, [*inputs.values()])
    outputs = {
        "--difficulty-out": arguments.difficulty_out,
        "--alignments-out": arguments.alignments_out,
    }
    check_outputs(outputs, inputs)
    check_aligned(arguments.alignments, arguments.train)
    bounds, faults = read_edges(arguments.edges, "1,2,4")
    if faults:
        raise ConfigError(faults)
    return bounds
