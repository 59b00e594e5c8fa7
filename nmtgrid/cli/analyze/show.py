"""What the commands of `nmtgrid analyze` share: their options, and how a section is shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, StorageError
from nmtgrid.base.io.atomic import link_target, reason
from nmtgrid.base.spans import real_number, shortened
from nmtgrid.cli.options import check_outputs, write_report

if TYPE_CHECKING:
    from nmtgrid.analysis.section import Picture, Section

Systems = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]FILE",
        help="Translations, a line each: text of any system, or traces of `decode` (.jsonl).",
    ),
]
Reference = Annotated[
    Path, typer.Option("--reference", "-r", metavar="FILE", help="References, a line each.")
]
Source = Annotated[
    Path | None, typer.Option("--source", "-s", metavar="FILE", help="Source, a line each.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR|FILE",
        help="Draw: into a folder, or into this .png or .svg (several: each with its name added).",
    ),
]
Format = Annotated[
    Literal["png", "svg"], typer.Option("--format", help="Kind of pictures in a folder.")
]
Tokenize = Annotated[
    Literal["13a", "none", "intl", "char", "zh"],
    typer.Option(
        "--tokenize",
        help="How BLEU and all that counts words splits text (sacreBLEU's names); "
        "`none`: it is tokenised already.",
    ),
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Compare without regard to case.")]


def check_out(out: Path | None, json: Path | None, inputs: Sequence[Path | None] = ()) -> None:
    """Raise ConfigError unless pictures and JSON can be written and replace no input."""
    outputs = {"--json": json}
    if out is not None:
        if is_file(out):
            from nmtgrid.analysis.plotting.figure import check_suffix

            check_suffix(out)
        elif out.exists() and not out.is_dir():
            raise ConfigError(
                f"`--out {out}` is a file and no folder.", "Give a folder or a picture."
            )
        folder = out.parent if is_file(out) else out
        above = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ConfigError(
                f"`--out`: the folder {folder} cannot be made: {above} is "
                + ("no folder." if not above.is_dir() else "one that may only be read."),
                "Choose another `--out`.",
            )
        if is_file(out) and out.parent.is_dir():
            outputs["--out"] = out
    check_outputs(outputs, {f"FILE {path}": path for path in inputs if path is not None})


def is_file(out: Path) -> bool:
    """Return whether `--out` names a picture, not a folder."""
    return bool(out.suffix) and not out.is_dir()


def line_faults(lines: Sequence[int]) -> list[str]:
    """Return what is wrong with the numbers of `--line`."""
    return [f"`--line` counts from 1, but is {number}." for number in lines if number < 1]


def read_edges(text: str | None, example: str) -> tuple[list[float] | None, list[str]]:
    """Return where buckets begin, of `--edges` (None: not given), and what is wrong with them."""
    if text is None:
        return None, []
    from nmtgrid.analysis.quality.buckets import check_edges

    try:
        edges = [real_number(edge) for edge in text.split(",")]
    except ValueError:
        return None, [f"`--edges {shortened(text)}` are no numbers with commas between: {example}."]
    return edges, [f"`--edges {shortened(text)}`: {fault}" for fault in check_edges(edges)]


def show(section: Section, out: Path | None, picture: str, json: Path | None) -> None:
    """Print the tables, draw the pictures, write the values."""
    for table in section.tables:
        numeric = [table.is_numeric(column) for column in range(len(table.columns))]
        console.table(table.title, table.columns, table.formatted(), numeric)
    drawn = [] if out is None else _draw(section.pictures, out, picture)
    for path in drawn:
        console.say(f"Drawn: {path}")
    write_report(json, {**section.values, "pictures": [str(path) for path in drawn]})


def _draw(pictures: Sequence[Picture], out: Path, picture: str) -> list[Path]:
    """Draw all pictures into a folder, or beside the file `out`; return their paths."""
    try:
        link_target(out.parent if is_file(out) else out).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise StorageError(
            f"The folder of {out} cannot be made: {reason(fault)}.", "Choose another `--out`."
        ) from fault
    paths = []
    for figure in pictures:
        if not is_file(out):
            path = out / f"{figure.name}.{picture}"
        elif len(pictures) == 1:
            path = out
        else:
            path = out.with_name(f"{out.stem}-{figure.name}{out.suffix}")
        figure.draw(path)
        paths.append(path)
    return paths
