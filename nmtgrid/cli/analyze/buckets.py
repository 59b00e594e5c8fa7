"""`nmtgrid analyze buckets`: quality by length, ratio of lengths, difficulty."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, nearest
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
    read_edges,
    show,
)
from nmtgrid.cli.options import JsonFile

PropertyName = Literal[
    "reference-length", "length-ratio", "difficulty", "source-length", "sentence-bleu"
]
MeasureName = Literal["bleu", "sentence-bleu", "chrf"]
_PROPERTIES, _MEASURES = get_args(PropertyName), get_args(MeasureName)


def command(
    systems: Systems,
    reference: Reference,
    source: Source = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROPERTY",
            help=f"{', '.join(_PROPERTIES)} (length-ratio: |y| / |x|); may be repeated.  "
            "[default: reference-length, and length-ratio with `--source`; difficulty with "
            "`--difficulty`]",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help=f"{', '.join(_MEASURES)}; may be repeated (JSON has all).  [default: bleu; "
            "sentence-bleu by difficulty]",
        ),
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Where buckets begin: 10,20,30.  [default: thesis]"),
    ] = None,
    difficulty: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A number a line, as `analyze difficulty` writes them."),
    ] = None,
    tokenize: Tokenize = "13a",
    lowercase: Lowercase = False,
    out: Out = None,
    picture: Format = "png",
    json: JsonFile = None,
) -> None:
    """Show where systems are better: BLEU, sentence BLEU or chrF in buckets of sentences."""
    inputs = [split_label(text)[1] for text in systems]
    check_out(out, json, [*inputs, reference, source, difficulty])
    properties = by or (["difficulty"] if difficulty else ["reference-length"])
    if source is not None and not by and not difficulty:
        properties.append("length-ratio")
    bounds = _check(properties, source, edges, difficulty, metric or [])
    from nmtgrid.analysis.quality import buckets
    from nmtgrid.analysis.quality.buckets import read_numbers
    from nmtgrid.analysis.quality.evaluation import read_evaluation

    evaluation = read_evaluation(systems, reference, source, tokenize, lowercase)
    numbers = None
    if difficulty is not None:
        numbers = read_numbers(difficulty, reference, len(evaluation.reference_lines))
    section = buckets.buckets_section(
        evaluation,
        [text for text in _PROPERTIES if text in properties],
        [text for text in _MEASURES if text in (metric or [])],
        bounds,
        numbers,
    )
    if source is None and not by and difficulty is None:
        console.say("Buckets by length ratio too: give `--source FILE`.")
    show([section], out, picture, json)


def _check(
    by: list[str],
    source: Path | None,
    edges: str | None,
    difficulty: Path | None,
    metric: list[str],
) -> list[float] | None:
    """Return the edges as numbers; all faults at once."""
    faults = [
        f"`{option} {name}` is not known. {nearest(name, known)}"
        for option, names, known in (("--by", by, _PROPERTIES), ("--metric", metric, _MEASURES))
        for name in names
        if name not in known
    ]
    faults += [
        f"`--by {name}` takes the source: add `--source FILE`."
        for name in ("source-length", "length-ratio")
        if name in by and source is None
    ]
    if "difficulty" in by and difficulty is None:
        faults.append("`--by difficulty` takes the difficulty of each line: `--difficulty FILE`.")
    if "difficulty" not in by and difficulty is not None:
        faults.append("`--difficulty` has no effect: add `--by difficulty`.")
    if by == ["sentence-bleu"] and metric:
        faults.append("`--by sentence-bleu` shows shares of sentences: leave out `--metric`.")
    if edges is not None and len(set(by)) > 1:
        faults.append("`--edges` are of one property: give one `--by`.")
    bounds, wrong = read_edges(edges, "10,20,30")
    faults += wrong
    if faults:
        raise ConfigError(faults)
    return bounds
