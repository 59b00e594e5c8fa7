"""`nmtgrid analyze report`: all analyses of some systems on one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmtgrid import __version__
from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label, write_text
from nmtgrid.cli.analyze.align import Train, aligning, trained
from nmtgrid.cli.analyze.show import Lowercase, Source, Tokenize, line_faults
from nmtgrid.cli.options import JsonFile, check_outputs, write_report

if TYPE_CHECKING:
    from nmtgrid.analysis.section import Section

Named = list[str] | None


def command(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page: .html.")],
    systems: Annotated[
        Named,
        typer.Argument(
            metavar="[NAME=]FILE",
            help="Translations: text of any system, or traces of `decode` (.jsonl): more.",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", metavar="FILE", help="References, a line each."),
    ] = None,
    source: Source = None,
    title: Annotated[str, typer.Option(help="Of the page.")] = "Translation systems compared",
    text: Annotated[str, typer.Option(help="What stands under the title.")] = "",
    alignments: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Links of source and reference, `i-j` from 0.  [default: learned]"
        ),
    ] = None,
    train: Train = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="Resamples of the paired test; 0: none.")
    ] = 0,
    line: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="A line to show as an example; may be repeated."),
    ] = None,
    latency: Annotated[
        Named, typer.Option(metavar="[NAME=]DIR", help="Results of `online-eval --out`.")
    ] = None,
    depth: Annotated[
        Named, typer.Option(metavar="[NAME=]DIR", help="Results of `adaptive-tune --out`.")
    ] = None,
    curves: Annotated[
        Named, typer.Option(metavar="[NAME=]MODEL", help="Show how it was trained.")
    ] = None,
    activations: Annotated[
        Named, typer.Option(metavar="[NAME=]MODEL", help="Show its activations on --data.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Dataset for --activations.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Of DATA.")] = "valid",
    tokenize: Tokenize = "13a",
    lowercase: Lowercase = False,
    json: JsonFile = None,
) -> None:
    """Lay out all analyses of some systems on one page that can be sent to a colleague.

    Scores, buckets, lengths and examples of all; difficulty where there is a source; alignments,
    reading paths and exits of the systems whose traces have them; and whatever results are named.
    The page is one file that asks nothing of a network, for screens light and dark, and for paper.
    """
    _check(locals())
    inputs = _inputs(systems, reference, source, alignments, trained(train))
    check_outputs({"--out": out, "--json": json}, inputs)
    from nmtgrid.analysis.report import ReportInputs, page, sections

    given = ReportInputs(
        systems or [], reference, source, alignments, train, bootstrap, line or [], latency or [],
        depth or [], curves or [], tokenize, lowercase,
    )  # fmt: skip
    with aligning() as advance:
        found = list(sections(given, advance))
    if activations and data is not None:
        found.append(_activations(activations, data, split))
    written = page(title, text, found, _foot(inputs))
    write_text(out, written)
    for section in found:
        console.say(
            f"{section.title}: figures {len(section.pictures)}, tables {len(section.tables)}"
        )
    console.say(f"Written: {out} ({len(written.encode()) / 1000:,.0f} kB)")
    write_report(json, {section.name: dict(section.values) for section in found})


def _check(values: dict[str, Any]) -> None:
    """Raise ConfigError, all faults at once, for options that lack or contradict each other."""
    faults = []
    if not any(values[name] for name in ("systems", "latency", "depth", "curves", "activations")):
        faults.append("There is nothing to report on: name translations, NAME=FILE.")
    if values["systems"] and values["reference"] is None:
        faults.append("`--reference FILE` is missing: what the translations are compared with.")
    if values["out"].suffix.lower() not in (".html", ".htm"):
        faults.append(f"`--out {values['out']}` is a page: end it in .html.")
    if values["activations"] and values["data"] is None:
        faults.append("`--activations` takes the sentences of a dataset: add `--data DATA`.")
    if values["data"] is not None and not values["activations"]:
        faults.append("`--data` is for `--activations MODEL`: add it, or leave `--data` out.")
    if values["alignments"] is not None and values["source"] is None:
        faults.append("`--alignments` are links from the source: add `--source FILE`.")
    if values["alignments"] is not None and values["train"] is not None:
        faults.append("`--alignments` are given, so none are learned: leave out `--train`.")
    faults += _without_effect(values)
    faults += line_faults(values["line"] or [])
    if faults:
        raise ConfigError(faults)


def _without_effect(values: dict[str, Any]) -> list[str]:
    """Return a sentence for each option that nothing on the page would be made of."""
    systems = [split_label(one)[1] for one in values["systems"] or []]
    if not systems:
        return [
            f"`--{name}` is about translations: name them, NAME=FILE, or leave it out."
            for name in ("reference", "source", "alignments", "train", "bootstrap")
            if values[name]
        ]
    found = []
    if values["bootstrap"] and len(systems) < 2:
        found.append("`--bootstrap` compares systems: give two or more, or leave it out.")
    if values["train"] is not None and values["source"] is None:
        from nmtgrid.analysis.systems import is_traces

        if not any(map(is_traces, systems)):
            found.append("`--train` is to learn links from the source by: add `--source FILE`.")
    return found


def _inputs(
    systems: Named,
    reference: Path | None,
    source: Path | None,
    alignments: Path | None,
    more: dict[str, Path | None],
) -> dict[str, Path | None]:
    """Return the files that the page is made of, by what they are."""
    named = {f"FILE {one}": split_label(one)[1] for one in systems or []}
    others = {"--reference": reference, "--source": source, "--alignments": alignments}
    return {**named, **others, **more}


def _activations(models: list[str], data: Path, split: str) -> Section:
    from nmtgrid.analysis.activations import activations_section
    from nmtgrid.cli.analyze.activations import measure

    return activations_section(measure(models, data, split, 64, []), split)


def _foot(inputs: dict[str, Path | None]) -> str:
    """Return what stands at the foot: the program, and the files' names."""
    files = ", ".join(path.name for path in inputs.values() if path is not None)
    made = f"Made by nmtgrid {__version__}, `nmtgrid analyze report`"
    return f"{made}, of {files}." if files else f"{made}."
