"""`nmtgrid analyze difficulty`: how far one must lag behind each source, by word alignments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
from nmtgrid.cli.options import JsonFile, check_outputs


def command(
    reference: Reference,
    source: Annotated[
        Path, typer.Option("--source", "-s", metavar="FILE", help="Source, a line each.")
    ],
    systems: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]FILE", help="Translations: sentence BLEU by difficulty, a bar each."
        ),
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Links of source and reference, `i-j` from 0.  [default: learned]"
        ),
    ] = None,
    train: Train = None,
    heuristic: Heuristic = "grow-diag-final-and",
    edges: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Where buckets begin: 1,2,4.  [default: thesis]"),
    ] = None,
    difficulty_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a number a line, for `analyze buckets`."),
    ] = None,
    alignments_out: LinksOut = None,
    tokenize: Tokenize = "13a",
    lowercase: Lowercase = False,
    out: Out = None,
    picture: Format = "png",
    json: JsonFile = None,
) -> None:
    """Show how far one must lag behind each source to write its reference, and who does it well.

    Words are what spaces separate: give tokenised text, or raw text and more of it with `--train`.
    """
    given = [split_label(one)[1] for one in systems or []]
    inputs = {"--reference": reference, "--source": source, "--alignments": alignments}
    inputs |= {**trained(train), **{f"FILE {path}": path for path in given}}
    check_out(out, json, [*inputs.values()])
    check_outputs({"--difficulty-out": difficulty_out, "--alignments-out": alignments_out}, inputs)
    check_aligned(alignments, train)
    bounds, faults = read_edges(edges, "1,2,4")
    if faults:
        raise ConfigError(faults)
    from nmtgrid.analysis.alignment.aligner import AlignerSettings, read_pairs
    from nmtgrid.analysis.alignment.pharaoh import write_links
    from nmtgrid.analysis.quality import difficulty
    from nmtgrid.analysis.quality.evaluation import read_evaluation

    evaluation, lines = None, None
    if systems:
        evaluation = read_evaluation(systems, reference, source, tokenize, lowercase)
        lines = (evaluation.source_lines or [], evaluation.reference_lines)
    settings = AlignerSettings(heuristic=heuristic)
    with aligning() as advance:
        pairs = read_pairs(source, reference, alignments, train, settings, advance, lines)
    if alignments is None and train is None:
        warn_of_little(len(pairs.links))
    found = difficulty.measure_difficulty(pairs)
    if difficulty_out is not None:
        difficulty.write_numbers(difficulty_out, found.lagging)
        console.say(f"Written: {difficulty_out}")
    if alignments_out is not None:
        write_links(alignments_out, pairs.links)
        console.say(f"Written: {alignments_out}")
    show([difficulty.difficulty_section(pairs, found, evaluation, bounds)], out, picture, json)
