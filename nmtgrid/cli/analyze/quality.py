"""Translations against references: `analyze buckets`, `compare`, `difficulty`, `lengths`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid.analysis.quality.names import MEASURES, PROPERTIES
from nmtgrid.base import console
from nmtgrid.base.config import from_attributes
from nmtgrid.base.errors import ConfigError, DataError, nearest
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.align import Heuristic, Train, aligning, trained, warn_of_little
from nmtgrid.cli.analyze.arguments import (
    QualityArguments,
    ScoredQualityArguments,
    Systems,
    read_edges,
)
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    Excludes,
    Needs,
    Requires,
    argument,
    check_outputs,
    check_rules,
    flag,
    option,
    takes,
)

BOOTSTRAP = "Bootstrap samples for intervals; 0: none."


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketsArguments(ScoredQualityArguments):
    systems: Systems
    by: list[str] | None = option(
        f"{', '.join(PROPERTIES)} (length-ratio: |y| / |x|); may be repeated.  "
        "[default: reference-length, and length-ratio with `--source`; only difficulty with "
        "`--difficulty`]",
        "PROPERTY",
    )
    metric: list[str] | None = option(
        f"{', '.join(MEASURES)}; may be repeated (JSON has all).  [default: bleu; "
        "sentence-bleu by difficulty]",
        "METRIC",
    )
    edges: str | None = option(
        "Bucket boundaries, such as 10,20,30.  [default: those of the thesis]", "N,N,..."
    )
    difficulty: Path | None = option(
        "Difficulties, one number per line, as `analyze difficulty` writes them.", "FILE"
    )
    bootstrap: int = option(BOOTSTRAP, "N", default=1000, min=0)

    @property
    def has_source(self) -> bool:
        return self.source is not None or self.data is not None

    @property
    def properties(self) -> list[str]:
        """The properties that define the buckets: `--by`, or those that the files allow."""
        if self.by:
            return self.by
        if self.difficulty is not None:
            return ["difficulty"]
        return ["reference-length", *(["length-ratio"] if self.has_source else [])]


@takes(
    BucketsArguments,
    {
        INPUT_OUTPUT: "reference source data split difficulty out picture corpus",
        "Buckets": "by edges metric",
        "Scores": "segment_scores tokenize lowercase bootstrap",
    },
    "nmtgrid analyze buckets ours=ours.en theirs=theirs.en -r test.en -s test.de --out DIR",
)
def buckets(arguments: BucketsArguments) -> None:
    """Compare systems by BLEU, sentence BLEU or chrF in buckets of sentences."""
    difficulty, properties = arguments.difficulty, arguments.properties
    arguments.check_files(arguments.systems, difficulty)
    bounds = _check_buckets(arguments)
    from nmtgrid.analysis.quality.buckets import buckets_section, read_numbers

    evaluation = arguments.evaluate(arguments.systems)
    numbers = None
    if difficulty is not None:
        count = len(evaluation.reference_lines)
        reference = arguments.reference or arguments.data
        assert reference is not None
        numbers = read_numbers(difficulty, reference, count)
    # Each once, in the order of declaration rather than that of the command line.
    section = buckets_section(
        evaluation,
        [text for text in PROPERTIES if text in properties],
        [text for text in MEASURES if text in (arguments.metric or [])],
        bounds,
        numbers,
        arguments.bootstrap,
    )
    if evaluation.source is None and not arguments.by and difficulty is None:
        console.say("For buckets by length ratio as well, give `--source FILE`.")
    arguments.show(section)


def _check_buckets(arguments: BucketsArguments) -> list[float] | None:
    """Return the edges as numbers. Raises ConfigError that names every error.

    Which options go together depends on the values of `--by`, including its default, so a table of
    rules cannot express it.
    """
    by, metric = arguments.properties, arguments.metric or []
    faults = [
        f"`{flag} {name}` is not known. {nearest(name, known)}"
        for flag, names, known in (("--by", by, PROPERTIES), ("--metric", metric, MEASURES))
        for name in names
        if name not in known
    ]
    faults += [
        f"`--by {name}` needs the source: add `--source FILE`."
        for name in ("source-length", "length-ratio")
        if name in by and not arguments.has_source
    ]
    if "difficulty" in by and arguments.difficulty is None:
        faults.append(
            "`--by difficulty` needs the difficulty of each line: give `--difficulty FILE`."
        )
    if "difficulty" not in by and arguments.difficulty is not None:
        faults.append("`--difficulty` has no effect: add `--by difficulty`.")
    if by == ["sentence-bleu"] and metric:
        faults.append("`--by sentence-bleu` shows shares of sentences: leave out `--metric`.")
    if arguments.edges is not None and len(set(by)) > 1:
        faults.append("`--edges` applies to a single property: give one `--by`.")
    bounds, wrong = read_edges(arguments.edges, "10,20,30")
    faults += wrong
    if faults:
        raise ConfigError(faults)
    return bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareArguments(ScoredQualityArguments):
    systems: Systems
    bootstrap: int = option(
        "Samples of the paired bootstrap against the first system: usually 1000.",
        "N",
        default=0,
        min=0,
    )
    randomisation: int = option(
        "Samples of approximate randomisation against the first system: usually 10000.",
        "N",
        default=0,
        min=0,
    )
    ter: bool = flag("--ter", "Also compute TER (slow).")
    train: Path | None = option(
        "Training text (target side): words are sorted by their frequency in it.  [default: "
        "frequency in the references]",
        "FILE",
    )
    ngrams: int = option("Number of n-grams of each kind.", "N", default=10, min=0)
    examples: int = option("Number of sentences of each kind.", "N", default=5, min=0)
    seed: int = option("Random seed of the tests.", default=12345, min=0)


COMPARE_RULES = [
    Requires(
        "seed",
        "bootstrap randomisation",
        "{option} is that of a test: add `--bootstrap N` or `--randomisation N`.",
    )
]


@takes(
    CompareArguments,
    {
        INPUT_OUTPUT: "reference source data split train out picture corpus",
        "Significance": "bootstrap randomisation seed",
        "Scores": "segment_scores ter tokenize lowercase",
        "Examples": "ngrams examples",
    },
    "nmtgrid analyze compare ours=ours.en theirs=theirs.en -r test.en --bootstrap 1000",
)
def compare(arguments: CompareArguments) -> None:
    """Compare systems with the first: scores and tests, words, n-grams, sentences."""
    systems = arguments.systems
    arguments.check_files(systems, arguments.train)
    check_rules(arguments, COMPARE_RULES)
    if len(systems) < 2 and (arguments.bootstrap or arguments.randomisation):
        raise ConfigError("A significance test compares systems: give two or more.")
    from nmtgrid.analysis.quality.compare import ComparisonOptions, comparison_section
    from nmtgrid.analysis.quality.words import frequencies_in
    from nmtgrid.analysis.systems import read_text

    evaluation = arguments.evaluate(systems)
    frequencies = None
    if arguments.train is not None:
        frequencies = frequencies_in(read_text(arguments.train), evaluation)
    options = from_attributes(ComparisonOptions, arguments)
    section = comparison_section(evaluation, options, frequencies)
    arguments.show(section)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifficultyArguments(ScoredQualityArguments):
    systems: list[str] | None = argument(
        "Translations: sentence BLEU by difficulty, one bar per system.",
        "[NAME=]FILE",
        default=None,
    )
    alignments: Path | None = option(
        "Links of source and reference, `i-j` from 0.  [default: learned]", "FILE"
    )
    train: Train = None
    heuristic: Heuristic = "grow-diag-final-and"
    edges: str | None = option(
        "Bucket boundaries, such as 1,2,4.  [default: those of the thesis]", "N,N,..."
    )
    difficulty_out: Path | None = option(
        "Write the difficulties, one number per line, for `analyze buckets`.", "FILE"
    )
    alignments_out: Path | None = option(
        "Write the links, `i-j` from 0, one line per sentence.", "FILE"
    )
    bootstrap: int = option(BOOTSTRAP, "N", default=1000, min=0)


@takes(
    DifficultyArguments,
    {
        INPUT_OUTPUT: (
            "reference source data split difficulty_out alignments_out out picture corpus"
        ),
        "Word alignments": "alignments train heuristic",
        "Scores": "edges segment_scores tokenize lowercase bootstrap",
    },
    "nmtgrid analyze difficulty ours=ours.en -r test.en -s test.de --train train.de train.en",
)
def difficulty(arguments: DifficultyArguments) -> None:
    """Show the lag that each source requires to write its reference, and scores by this lag.

    Words are separated by spaces: give tokenised text, or raw text and more of it with `--train`.
    """
    bounds = _check_difficulty(arguments)
    links, train = arguments.alignments, arguments.train
    import numpy

    from nmtgrid.analysis.alignment.aligner import AlignerSettings, link_pairs
    from nmtgrid.analysis.alignment.pharaoh import write_links
    from nmtgrid.analysis.quality.buckets import write_numbers
    from nmtgrid.analysis.quality.difficulty import difficulty_section, measure_difficulty

    evaluation = arguments.evaluate(arguments.systems or [])
    settings = AlignerSettings(heuristic=arguments.heuristic)
    with aligning() as advance:
        pairs = link_pairs(evaluation.word_pairs, links, train, settings, advance)
    if links is None and train is None:
        warn_of_little(len(pairs.links), arguments.data)
    lagging = measure_difficulty(pairs)
    if numpy.isnan(lagging).all():
        raise DataError("No pair has words on both sides, so none has a difficulty.")
    if arguments.difficulty_out is not None:
        write_numbers(arguments.difficulty_out, lagging)
        console.say(f"Written: {arguments.difficulty_out}")
    if arguments.alignments_out is not None:
        write_links(arguments.alignments_out, pairs.links)
        console.say(f"Written: {arguments.alignments_out}")
    section = difficulty_section(pairs, lagging, evaluation, bounds, arguments.bootstrap)
    arguments.show(section)


_DIFFICULTY_RULES = [
    Needs("source", "data", "`--source FILE` is missing."),
    Requires(
        "segment_scores tokenize lowercase bootstrap",
        "systems",
        "{option} is for scores of translations: give some, as in NAME=FILE.",
    ),
    Excludes(
        "train heuristic",
        "alignments",
        "{option} has no effect, because `--alignments` gives the links: leave one of them out.",
    ),
]


def _check_difficulty(arguments: DifficultyArguments) -> list[float] | None:
    """Return the edges as numbers. Raises ConfigError for bad outputs or ineffective options."""
    check_rules(arguments, _DIFFICULTY_RULES)
    systems, more = arguments.systems or [], trained(arguments.train)
    arguments.check_files(systems, arguments.alignments, *more.values())
    inputs = {
        "--reference": arguments.reference,
        "--source": arguments.source,
        "--alignments": arguments.alignments,
        **more,
        **{f"FILE {(path := split_label(text)[1])}": path for text in systems},
        **arguments.other_outputs,
    }
    outputs = {
        "--difficulty-out": arguments.difficulty_out,
        "--alignments-out": arguments.alignments_out,
    }
    check_outputs(outputs, inputs)
    bounds, faults = read_edges(arguments.edges, "1,2,4")
    if faults:
        raise ConfigError(faults)
    return bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthsArguments(QualityArguments):
    systems: Systems


@takes(
    LengthsArguments,
    {
        INPUT_OUTPUT: "reference source data split out picture corpus",
        "Scores": "tokenize lowercase",
    },
    "nmtgrid analyze lengths ours=ours.en theirs=theirs.en -r test.en --out lengths.png",
)
def lengths(arguments: LengthsArguments) -> None:
    """Show how translations' lengths differ from the references', sentence by sentence."""
    arguments.check_files(arguments.systems)
    from nmtgrid.analysis.quality.lengths import lengths_section

    evaluation = arguments.evaluate(arguments.systems)
    arguments.show(lengths_section(evaluation))
