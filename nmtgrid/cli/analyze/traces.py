"""Analyses of traces of `nmtgrid decode`: `analyze alignments`, `exits` and `paths`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.align import Heuristic, Train, aligning, trained, warn_of_little
from nmtgrid.cli.analyze.arguments import ShownArguments, line_faults
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    Excludes,
    Requires,
    argument,
    check_outputs,
    check_rules,
    flag,
    option,
    takes,
)

if TYPE_CHECKING:
    from nmtgrid.analysis.alignment.pharaoh import Links
    from nmtgrid.search.traces import Trace

Words = Annotated[
    bool, typer.Option("--words", help="Join subwords into the words of tokenised text.")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlignmentsArguments(ShownArguments):
    traces: list[str] = argument("Files of `decode --traces`, one per model.", "[NAME=]TRACES")
    line: list[int] | None = option(
        "Line to plot, from 1; may be repeated.  [default: the first with an alignment]", "N"
    )
    words: Words = False
    pharaoh: Path | None = option(
        "Write links, `i-j` from 0 (several models: with their names as suffixes).", "FILE"
    )
    threshold: float | None = option(
        "Minimum weight of a link.  [default: only the largest of each target unit]",
        min=0.0,
        max=1.0,
    )
    gold: Path | None = option(
        "Gold links (possible ones `i?j`), of words with `--words`: reports the alignment error "
        "rate.",
        "FILE",
    )


LINE_REQUIRES_OUT = Requires("line", "out", "`--line` says what to draw: say where with `--out`.")
ALIGNMENTS_RULES = [
    LINE_REQUIRES_OUT,
    Requires(
        "threshold",
        "pharaoh gold",
        "`--threshold` makes links: add `--pharaoh FILE` or `--gold FILE`.",
    ),
]


@takes(
    AlignmentsArguments,
    {
        INPUT_OUTPUT: "line words out picture corpus",
        "Links": "pharaoh threshold gold",
    },
    "nmtgrid analyze alignments grid=grid.jsonl other=other.jsonl --line 3 --out DIR",
)
def alignments(arguments: AlignmentsArguments) -> None:
    """Show the sharpness and coverage of alignments; plot them as heat maps side by side.

    Entropy is in nats per target token (lower is sharper), coverage the mean proportion of each
    source token that is aligned; end symbols count on both sides.
    """
    from nmtgrid.analysis.systems import named_files

    files, gold = named_files(arguments.traces), arguments.gold
    arguments.check(*files.values(), gold)
    # The files of links, which are named after the models, must not replace an input.
    outputs = {} if arguments.pharaoh is None else dict.fromkeys(files, arguments.pharaoh)
    if len(outputs) > 1:
        if bad := [name for name in files if "/" in name]:
            raise ConfigError(
                f"`--pharaoh` names files after the models, but `{bad[0]}` contains a `/`: give it "
                "another name, as in `name=FILE`."
            )
        outputs = {
            n: path.with_name(f"{path.stem}-{n}{path.suffix}") for n, path in outputs.items()
        }
    inputs = {"--gold": gold, **{f"TRACES {path}": path for path in files.values()}}
    inputs |= arguments.other_outputs
    check_outputs({f"--pharaoh {name}": path for name, path in outputs.items()}, inputs)
    lines = arguments.line or []
    check_rules(arguments, ALIGNMENTS_RULES, line_faults(lines))
    from nmtgrid.analysis.alignment.models import AlignmentOptions, alignments_section, read_models
    from nmtgrid.analysis.alignment.pharaoh import write_links

    # A line that is given twice is drawn once.
    options = AlignmentOptions(list(dict.fromkeys(lines)), arguments.words, arguments.threshold)
    models = read_models(files, options, gold)
    if gold is not None and not options.words and any(model.has_subwords for model in models):
        console.warn(
            f"The links of {gold} are read as links between units, such as subwords: add `--words` "
            "if they are between words."
        )
    for model in models if outputs else ():
        write_links(outputs[model.name], model.links)
        console.say(f"Written: {outputs[model.name]}")
    arguments.show(alignments_section(models, options))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExitsArguments(ShownArguments):
    systems: list[str] = argument("Files of `decode --exit ... --traces FILE`.", "[NAME=]TRACES")
    reference: Path | None = option(
        "References shown with the examples.", "FILE", "--reference", "-r"
    )
    line: list[int] | None = option("Example to plot, from 1; may be repeated.", "N")
    examples: int = option(
        "Without `--line`: number of examples from the start.", "N", default=3, min=0
    )


EXITS_RULES = [
    Requires(
        "reference line examples",
        "out json",
        "{option} is for the examples, which are in figures and in the JSON: add `--out DIR` or "
        "`--json FILE`.",
    ),
    Excludes(
        "examples", "line", "{other} names the examples, so {option} would be ignored.",
        "Leave out one of them.",
    ),
]  # fmt: skip


@takes(
    ExitsArguments,
    {INPUT_OUTPUT: "reference line examples out picture corpus"},
    "nmtgrid analyze exits early=early.jsonl --reference test.en --out DIR",
)
def exits(arguments: ExitsArguments) -> None:
    """Show after which block tokens exit, and what that depends on.

    Shows average exits, overall and by position, confidence and source length, and a few hypotheses
    token by token. The end symbol counts as a token.
    """
    systems, reference, lines = arguments.systems, arguments.reference, arguments.line or []
    inputs = [split_label(text)[1] for text in systems]
    arguments.check(*inputs, reference)
    check_rules(arguments, EXITS_RULES, line_faults(lines))
    from nmtgrid.analysis.exits import exits_section, read_exits
    from nmtgrid.analysis.paths import read_references
    from nmtgrid.analysis.systems import named_files

    files = named_files(systems)
    traces = read_exits(files, lines, arguments.examples, warn=console.warn)
    references = None
    if reference is not None:
        examples = chain.from_iterable(system.examples for system in traces)
        references = read_references(reference, examples)
    arguments.show(exits_section(traces, references))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathsArguments(ShownArguments):
    traces: list[str] = argument(
        "Files of `decode --stream --traces`, one per system.", "[NAME=]TRACES"
    )
    line: list[int] | None = option(
        "Line to plot, from 1; may be repeated.  [default: three of medium length]", "N"
    )
    words: Words = False
    alignments: list[str] | None = option(
        "Links between words of the source and of a system's translations, `i-j` from 0; one file "
        "per system.  [default: learned]",
        "[NAME=]FILE",
    )
    attention: bool = flag("--attention", "Show the attention of the models instead of links.")
    train: Train = None
    heuristic: Heuristic = "grow-diag-final-and"
    reference: Path | None = option(
        "References shown above the paths.", "FILE", "--reference", "-r"
    )


_EXCLUDE = "{option} and {other} exclude each other: leave one out."
PATHS_RULES = [
    LINE_REQUIRES_OUT,
    Excludes("alignments", "attention train", _EXCLUDE),
    Excludes("attention", "train", _EXCLUDE),
    Excludes(
        "heuristic",
        "alignments attention",
        "{option} is for learned links; with {other} there are none: leave it out.",
    ),
]


@takes(
    PathsArguments,
    {
        INPUT_OUTPUT: "reference line words out picture corpus",
        "Word alignments": "alignments attention train heuristic",
    },
    "nmtgrid analyze paths wait3=wait3.jsonl oracle=oracle.jsonl --line 3 --words --out DIR",
)
def paths(arguments: PathsArguments) -> None:
    """Show when simultaneous systems read and write: paths over word alignments, side by side.

    A word is anticipated if it is written before a source word aligned with it has been read; with
    `--words` a word counts as read with its first unit, as it does in latency. Attention covers
    only the source read so far, so it shows no anticipation.
    """
    from nmtgrid.analysis.systems import named_files

    files, reference = named_files(arguments.traces), arguments.reference
    link_files = [split_label(text)[1] for text in arguments.alignments or []]
    inputs = [*files.values(), *link_files, reference, *trained(arguments.train).values()]
    arguments.check(*inputs)
    faults = line_faults(arguments.line or [])
    if link_files and len(link_files) != len(files):
        faults.append(
            f"There are {len(files)} systems, but {len(link_files)} files of `--alignments`: give "
            "one file per system, in the same order or by name."
        )
    check_rules(arguments, PATHS_RULES, faults)
    from nmtgrid.analysis.paths import as_paths, paths_section, read_references, read_traced

    traced = read_traced(files)
    references = None
    if reference is not None:
        references = read_references(reference, chain.from_iterable(traced.values()))
    # Known only from the traces: some systems, and some policies, have no alignment.
    if arguments.attention and not any(
        trace.alignment is not None for traces in traced.values() for trace in traces
    ):
        raise ConfigError(
            "The traces contain no alignments, so `--attention` has nothing to show.",
            "Leave out `--attention`: alignments are then learned from the translations.",
        )
    links, origin = _links(traced, arguments)
    unit: Literal["word", "token"] = "word" if arguments.words else "token"
    written = as_paths(files, traced, links, unit)
    section = paths_section(written, arguments.line or [], unit, origin, references)
    arguments.show(section)


def _links(
    traced: Mapping[str, Sequence[Trace]], arguments: PathsArguments
) -> tuple[dict[str, Sequence[Links]] | None, str]:
    """Return the links of each system (None: its attention), and their origin."""
    from nmtgrid.analysis.alignment.aligner import read_words
    from nmtgrid.analysis.paths import given_links, learned_links

    if arguments.attention:
        return None, "Grey is the models' attention, which covers only the source read so far."
    if arguments.alignments:
        split = [split_label(text) for text in arguments.alignments]
        files = {label: path for label, path in split if label is not None}
        if not files:
            files = dict(zip(traced, (path for _, path in split), strict=True))
        if missing := [name for name in traced if name not in files]:
            raise ConfigError(
                f"`--alignments {missing[0]}=FILE` is missing: name the files of all systems or of "
                "none."
            )
        links = given_links(traced, files)
        return links, "Word alignments are those of the given files."
    more = read_words(*arguments.train) if arguments.train is not None else ([], [])
    with aligning() as advance:
        learned, origin = learned_links(traced, more, arguments.heuristic, advance)
    if arguments.train is None:
        warn_of_little(sum(map(len, learned.values())))
    return learned, origin
