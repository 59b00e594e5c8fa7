"""`nmtgrid analyze paths`: when online systems read and write, over word alignments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.align import Heuristic, Train, aligning, trained, warn_of_little
from nmtgrid.cli.analyze.alignments import LINE_REQUIRES_OUT, Lines, Words
from nmtgrid.cli.analyze.show import Format, Out, check_out, line_faults, show
from nmtgrid.cli.options import (
    CommandArguments,
    Excludes,
    JsonFile,
    argument,
    check_rules,
    flag,
    option,
    takes,
)

if TYPE_CHECKING:
    from nmtgrid.analysis.alignment.pharaoh import Links
    from nmtgrid.search.traces import Trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathsArguments(CommandArguments):
    """The arguments of `analyze paths`."""

    traces: list[str] = argument(
        "Files of `decode --stream --traces`, a system each.", "[NAME=]TRACES"
    )
    out: Out = None
    line: Lines = None
    words: Words = False
    alignments: list[str] | None = option(
        "Links of words of a system's translations, `i-j` from 0, one for each system.  "
        "[default: learned]",
        "[NAME=]FILE",
    )
    attention: bool = flag("--attention", "Show what the models looked at instead of links.")
    train: Train = None
    heuristic: Heuristic = "grow-diag-final-and"
    reference: Path | None = option("Shown above the paths.", "FILE", "--reference", "-r")
    picture: Format = "png"
    json: JsonFile = None


_EXCLUDE = "{option} and {other} exclude each other: leave one out."
RULES = [
    LINE_REQUIRES_OUT,
    Excludes("alignments", "attention train", _EXCLUDE),
    Excludes("attention", "train", _EXCLUDE),
]


@takes(PathsArguments)
def command(arguments: PathsArguments) -> None:
    """Show when online systems read and write: their paths over word alignments, side by side.

    What is written before a source word aligned with it has been read is anticipated. What models
    look at has always been read, so that it tells no anticipation.
    """
    from nmtgrid.analysis.systems import named_files

    files, reference = named_files(arguments.traces), arguments.reference
    link_files = [split_label(text)[1] for text in arguments.alignments or []]
    inputs = [*files.values(), *link_files, reference, *trained(arguments.train).values()]
    check_out(arguments.out, arguments.json, inputs)
    check_rules(arguments, RULES, _faults(arguments, len(files)))
    from nmtgrid.analysis import paths
    from nmtgrid.analysis.systems import read_text

    traced = paths.read_traced(files)
    # Only the traces tell: some systems, and some policies, have no alignment.
    if arguments.attention and not any(
        trace.alignment is not None for traces in traced.values() for trace in traces
    ):
        raise ConfigError(
            "There is no alignment in the traces: `--attention` has nothing to show.",
            "Leave it out: alignments are then learned from the translations.",
        )
    links, origin = _links(traced, arguments)
    unit: Literal["word", "token"] = "word" if arguments.words else "token"
    written = paths.as_paths(files, traced, links, unit)
    references = None if reference is None else read_text(reference)
    section = paths.paths_section(written, arguments.line or [], unit, origin, references)
    show([section], arguments.out, arguments.picture, arguments.json)


def _faults(arguments: PathsArguments, systems: int) -> list[str]:
    """Return what no rule says: lines that are none, links of too many or too few systems."""
    faults = line_faults(arguments.line or [])
    alignments = arguments.alignments or []
    if alignments and len(alignments) != systems:
        faults.append(
            f"There are {systems} systems, but {len(alignments)} files of `--alignments`: "
            "give one for each, in their order or by name."
        )
    return faults


def _links(
    traced: Mapping[str, Sequence[Trace]], arguments: PathsArguments
) -> tuple[dict[str, Sequence[Links]] | None, str]:
    """Return the links of each system (None: what models looked at), and where they come from."""
    from nmtgrid.analysis import paths
    from nmtgrid.analysis.alignment.aligner import read_words

    if arguments.attention:
        return None, "Grey is what the models looked at, which had been read in any case."
    if arguments.alignments:
        links = paths.given_links(traced, _by_system(arguments.alignments, [*traced]))
        return links, "Word alignments are those of the given files."
    more = read_words(*arguments.train) if arguments.train is not None else ([], [])
    with aligning() as advance:
        learned, origin = paths.learned_links(traced, more, arguments.heuristic, advance)
    if arguments.train is None:
        warn_of_little(sum(map(len, learned.values())))
    return learned, origin


def _by_system(alignments: list[str], names: list[str]) -> dict[str, Path]:
    """Return the file of each system: by name, or in order where none is named."""
    split = [split_label(text) for text in alignments]
    if all(label is None for label, _ in split):
        return dict(zip(names, (path for _, path in split), strict=True))
    files = {label: path for label, path in split if label is not None}
    if missing := [name for name in names if name not in files]:
        raise ConfigError(f"`--alignments {missing[0]}=FILE` is missing: name all or none.")
    return {name: files[name] for name in names}
