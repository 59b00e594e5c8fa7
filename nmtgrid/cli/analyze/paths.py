"""`nmtgrid analyze paths`: when online systems read and write, over word alignments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmtgrid.analysis.alignment.pharaoh import Heuristic as HeuristicName
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.align import Heuristic, Train, aligning, trained, warn_of_little
from nmtgrid.cli.analyze.alignments import Lines, Words, check_lines
from nmtgrid.cli.analyze.show import Format, Out, check_out, show
from nmtgrid.cli.options import JsonFile

if TYPE_CHECKING:
    from nmtgrid.analysis.alignment.pharaoh import Links


def command(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]TRACES", help="Files of `decode --stream --traces`, a system each."
        ),
    ],
    out: Out = None,
    line: Lines = None,
    words: Words = False,
    alignments: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="Links of words of a system's translations, `i-j` from 0, one for each system.  "
            "[default: learned]",
        ),
    ] = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Show what the models looked at instead of links.")
    ] = False,
    train: Train = None,
    heuristic: Heuristic = "grow-diag-final-and",
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", metavar="FILE", help="Shown above the paths."),
    ] = None,
    picture: Format = "png",
    json: JsonFile = None,
) -> None:
    """Show when online systems read and write: their paths over word alignments, side by side.

    What is written before a source word aligned with it has been read is anticipated. What models
    look at has always been read, so that it tells no anticipation.
    """
    from nmtgrid.analysis.systems import named_files

    files = named_files(traces)
    link_files = [split_label(text)[1] for text in alignments or []]
    check_out(out, json, [*files.values(), *link_files, reference, *trained(train).values()])
    check_lines(line or [], out)
    _check(len(files), alignments or [], attention, train)
    from nmtgrid.analysis import paths
    from nmtgrid.analysis.systems import read_text

    traced = paths.read_traced(files)
    if attention and not any(
        trace.alignment is not None for traces in traced.values() for trace in traces
    ):
        raise ConfigError(
            "There is no alignment in the traces: `--attention` has nothing to show.",
            "Leave it out: alignments are then learned from the translations.",
        )
    links, origin = _links(traced, alignments or [], [*files], attention, train, heuristic)
    unit: Literal["word", "token"] = "word" if words else "token"
    written = paths.as_paths(files, traced, links, unit)
    references = None if reference is None else read_text(reference)
    section = paths.paths_section(written, line or [], unit, origin, references)
    show([section], out, picture, json)


def _check(
    systems: int, alignments: list[str], attention: bool, train: tuple[Path, Path] | None
) -> None:
    faults = []
    if alignments and len(alignments) != systems:
        faults.append(
            f"There are {systems} systems, but {len(alignments)} files of `--alignments`: "
            "give one for each, in their order or by name."
        )
    sources = [name for name, is_there in (
        ("--alignments", bool(alignments)), ("--attention", attention), ("--train", bool(train)),
    ) if is_there]  # fmt: skip
    if len(sources) > 1:
        faults.append(f"`{sources[0]}` and `{sources[1]}` exclude each other: leave one out.")
    if faults:
        raise ConfigError(faults)


def _links(
    traced: Any,
    alignments: list[str],
    names: list[str],
    attention: bool,
    train: tuple[Path, Path] | None,
    heuristic: HeuristicName,
) -> tuple[dict[str, Sequence[Links]] | None, str]:
    """Return the links of each system (None: what models looked at), and where they come from."""
    from nmtgrid.analysis import paths
    from nmtgrid.analysis.alignment.aligner import read_words

    if attention:
        return None, "Grey is what the models looked at, which had been read in any case."
    if alignments:
        links = paths.given_links(traced, _by_system(alignments, names))
        return links, "Word alignments are those of the given files."
    more = read_words(*train) if train is not None else ([], [])
    with aligning() as advance:
        learned, origin = paths.learned_links(traced, more, heuristic, advance)
    if train is None:
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
