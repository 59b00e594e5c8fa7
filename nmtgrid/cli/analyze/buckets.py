"""`nmtgrid analyze buckets`: quality by length, ratio of lengths, difficulty."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

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
from nmtgrid.cli.options import CommandArguments, JsonFile, option, takes

PropertyName = Literal[
    "reference-length", "length-ratio", "difficulty", "source-length", "sentence-bleu"
]
MeasureName = Literal["bleu", "sentence-bleu", "chrf"]
_PROPERTIES, _MEASURES = get_args(PropertyName), get_args(MeasureName)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketsArguments(CommandArguments):
    """The arguments of `analyze buckets`."""

    systems: Systems
    reference: Reference
    source: Source = None
    by: list[str] | None = option(
        f"{', '.join(_PROPERTIES)} (length-ratio: |y| / |x|); may be repeated.  "
        "[default: reference-length, and length-ratio with `--source`; difficulty with "
        "`--difficulty`]",
        "PROPERTY",
    )
    metric: list[str] | None = option(
        f"{', '.join(_MEASURES)}; may be repeated (JSON has all).  [default: bleu; "
        "sentence-bleu by difficulty]",
        "METRIC",
    )
    edges: str | None = option("Where buckets begin: 10,20,30.  [default: thesis]", "N,N,...")
    difficulty: Path | None = option(
        "A number a line, as `analyze difficulty` writes them.", "FILE"
    )
    tokenize: Tokenize = "13a"
    lowercase: Lowercase = False
    out: Out = None
    picture: Format = "png"
    json: JsonFile = None

    @property
    def properties(self) -> list[str]:
        """What sentences are put into buckets by: `--by`, or what the files allow."""
        if self.by:
            return self.by
        if self.difficulty is not None:
            return ["difficulty"]
        return ["reference-length", *([] if self.source is None else ["length-ratio"])]


@takes(BucketsArguments)
def command(arguments: BucketsArguments) -> None:
    """Show where systems are better: BLEU, sentence BLEU or chrF in buckets of sentences."""
    systems, reference, source = arguments.systems, arguments.reference, arguments.source
    difficulty, properties = arguments.difficulty, arguments.properties
    inputs = [split_label(text)[1] for text in systems]
    check_out(arguments.out, arguments.json, [*inputs, reference, source, difficulty])
    bounds = _check(arguments)
    from nmtgrid.analysis.quality import buckets
    from nmtgrid.analysis.quality.buckets import read_numbers
    from nmtgrid.analysis.quality.evaluation import read_evaluation

    evaluation = read_evaluation(
        systems, reference, source, arguments.tokenize, arguments.lowercase
    )
    numbers = None
    if difficulty is not None:
        numbers = read_numbers(difficulty, reference, len(evaluation.reference_lines))
    # In the order of the names' declaration, each once, however they were asked for.
    section = buckets.buckets_section(
        evaluation,
        [text for text in _PROPERTIES if text in properties],
        [text for text in _MEASURES if text in (arguments.metric or [])],
        bounds,
        numbers,
    )
    if source is None and not arguments.by and difficulty is None:
        console.say("Buckets by length ratio too: give `--source FILE`.")
    show([section], arguments.out, arguments.picture, arguments.json)


def _check(arguments: BucketsArguments) -> list[float] | None:
    """Return the edges as numbers; all faults at once.

    What goes together depends on the values of `--by`, also of its default, so that no table of
    rules can say it.
    """
    by, metric = arguments.properties, arguments.metric or []
    faults = [
        f"`{flag} {name}` is not known. {nearest(name, known)}"
        for flag, names, known in (("--by", by, _PROPERTIES), ("--metric", metric, _MEASURES))
        for name in names
        if name not in known
    ]
    faults += [
        f"`--by {name}` takes the source: add `--source FILE`."
        for name in ("source-length", "length-ratio")
        if name in by and arguments.source is None
    ]
    if "difficulty" in by and arguments.difficulty is None:
        faults.append("`--by difficulty` takes the difficulty of each line: `--difficulty FILE`.")
    if "difficulty" not in by and arguments.difficulty is not None:
        faults.append("`--difficulty` has no effect: add `--by difficulty`.")
    if by == ["sentence-bleu"] and metric:
        faults.append("`--by sentence-bleu` shows shares of sentences: leave out `--metric`.")
    if arguments.edges is not None and len(set(by)) > 1:
        faults.append("`--edges` are of one property: give one `--by`.")
    bounds, wrong = read_edges(arguments.edges, "10,20,30")
    faults += wrong
    if faults:
        raise ConfigError(faults)
    return bounds
