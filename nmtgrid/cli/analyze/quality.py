"""Translations against references: `analyze buckets`, `compare`, `difficulty`, `lengths`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.align import Heuristic, Train, aligning, trained, warn_of_little
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
from nmtgrid.cli.options import (
    GENERAL,
    INPUT_OUTPUT,
    REQUIRED,
    CommandArguments,
    JsonFile,
    argument,
    check_outputs,
    flag,
    option,
    takes,
)

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


@takes(
    BucketsArguments,
    {
        INPUT_OUTPUT: "reference source difficulty out picture",
        "Buckets": "by edges metric",
        "Scores": "tokenize lowercase",
        GENERAL: "json",
    },
    "nmtgrid analyze buckets ours=ours.en theirs=theirs.en -r test.en -s test.de --out DIR",
)
def buckets(arguments: BucketsArguments) -> None:
    """Show where systems are better: BLEU, sentence BLEU or chrF in buckets of sentences."""
    systems, reference, source = arguments.systems, arguments.reference, arguments.source
    difficulty, properties = arguments.difficulty, arguments.properties
    inputs = [split_label(text)[1] for text in systems]
    check_out(arguments.out, arguments.json, [*inputs, reference, source, difficulty])
    bounds = _check_buckets(arguments)
    from nmtgrid.analysis.quality.buckets import buckets_section, read_numbers
    from nmtgrid.analysis.quality.evaluation import read_evaluation

    evaluation = read_evaluation(
        systems, reference, source, arguments.tokenize, arguments.lowercase
    )
    numbers = None
    if difficulty is not None:
        numbers = read_numbers(difficulty, reference, len(evaluation.reference_lines))
    # In the order of the names' declaration, each once, however they were asked for.
    section = buckets_section(
        evaluation,
        [text for text in _PROPERTIES if text in properties],
        [text for text in _MEASURES if text in (arguments.metric or [])],
        bounds,
        numbers,
    )
    if source is None and not arguments.by and difficulty is None:
        console.say("Buckets by length ratio too: give `--source FILE`.")
    show(section, arguments.out, arguments.picture, arguments.json)


def _check_buckets(arguments: BucketsArguments) -> list[float] | None:
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


@takes(
    CompareArguments,
    {
        INPUT_OUTPUT: "reference source train out picture",
        "Significance": "bootstrap randomisation seed",
        "Scores": "ter tokenize lowercase",
        "Examples": "ngrams examples",
        GENERAL: "json",
    },
    "nmtgrid analyze compare ours=ours.en theirs=theirs.en -r test.en --bootstrap 1000",
)
def compare(arguments: CompareArguments) -> None:
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
    fields = [field.name for field in dataclasses.fields(ComparisonOptions)]
    options = ComparisonOptions(**{name: getattr(arguments, name) for name in fields})
    section = comparison_section(evaluation, options, frequencies)
    show(section, arguments.out, arguments.picture, arguments.json)


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
    alignments_out: Path | None = option("Write the links: `i-j` from 0, a line.", "FILE")
    tokenize: Tokenize = "13a"
    lowercase: Lowercase = False
    out: Out = None
    picture: Format = "png"
    json: JsonFile = None


@takes(
    DifficultyArguments,
    {
        INPUT_OUTPUT: "reference source difficulty_out alignments_out out picture",
        "Word alignments": "alignments train heuristic",
        "Scores": "edges tokenize lowercase",
        GENERAL: "json",
    },
    "nmtgrid analyze difficulty ours=ours.en -r test.en -s test.de --train train.de train.en",
)
def difficulty(arguments: DifficultyArguments) -> None:
    """Show how far one must lag behind each source to write its reference, and who does it well.

    Words are what spaces separate: give tokenised text, or raw text and more of it with `--train`.
    """
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
    if arguments.alignments is not None and arguments.train is not None:
        raise ConfigError(
            "`--train` has no effect where `--alignments` gives the links: leave one out."
        )
    bounds, faults = read_edges(arguments.edges, "1,2,4")
    if faults:
        raise ConfigError(faults)
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
    links, train = arguments.alignments, arguments.train
    settings = AlignerSettings(heuristic=arguments.heuristic)
    with aligning() as advance:
        pairs = read_pairs(source, reference, links, train, settings, advance, lines)
    if links is None and train is None:
        warn_of_little(len(pairs.links))
    lagging = difficulty.measure_difficulty(pairs)
    if arguments.difficulty_out is not None:
        difficulty.write_numbers(arguments.difficulty_out, lagging)
        console.say(f"Written: {arguments.difficulty_out}")
    if arguments.alignments_out is not None:
        write_links(arguments.alignments_out, pairs.links)
        console.say(f"Written: {arguments.alignments_out}")
    section = difficulty.difficulty_section(pairs, lagging, evaluation, bounds)
    show(section, arguments.out, arguments.picture, arguments.json)


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


@takes(
    LengthsArguments,
    {INPUT_OUTPUT: "reference out picture", "Scores": "tokenize lowercase", GENERAL: "json"},
    "nmtgrid analyze lengths ours=ours.en theirs=theirs.en -r test.en --out lengths.png",
)
def lengths(arguments: LengthsArguments) -> None:
    """Show how translations' lengths differ from the references', sentence by sentence."""
    systems, reference = arguments.systems, arguments.reference
    inputs = [split_label(text)[1] for text in systems]
    check_out(arguments.out, arguments.json, [*inputs, reference])
    from nmtgrid.analysis.quality.evaluation import read_evaluation
    from nmtgrid.analysis.quality.lengths import lengths_section

    evaluation = read_evaluation(systems, reference, None, arguments.tokenize, arguments.lowercase)
    show(lengths_section(evaluation), arguments.out, arguments.picture, arguments.json)
