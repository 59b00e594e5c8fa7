"""`nmtgrid analyze report`: all analyses of some systems on one self-contained page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid import __version__
from nmtgrid.base import console
from nmtgrid.base.config import from_attributes
from nmtgrid.base.io.atomic import split_label, write_text
from nmtgrid.base.io.text import check_file
from nmtgrid.cli.analyze.align import Train, aligning, trained, warn_of_little
from nmtgrid.cli.analyze.arguments import ScoredArguments, line_faults
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    REQUIRED,
    Excludes,
    JsonFile,
    Requires,
    argument,
    check_outputs,
    check_rules,
    option,
    takes,
    write_report,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportArguments(ScoredArguments):
    out: Path = option("The page: .html.", "FILE", default=REQUIRED)
    systems: list[str] | None = argument(
        "Translations: text of any system, or traces of `decode` (.jsonl), which show more.",
        "[NAME=]FILE",
        default=None,
    )
    title: str | None = option(
        "Title of the page.  [default: Translation systems compared, and on what]"
    )
    text: str = option("Subtitle.", default="")
    alignments: Path | None = option(
        "Links of source and reference, `i-j` from 0.  [default: learned]", "FILE"
    )
    train: Train = None
    bootstrap: int | None = option(
        "Bootstrap samples for intervals and p-values; 0: none.  [default: 1000]",
        "N",
        min=0,
    )
    line: list[int] | None = option("Line to show as an example; may be repeated.", "N")
    latency: list[str] | None = option("Results of `online-eval --out`.", "[NAME=]DIR")
    depth: list[str] | None = option("Results of `adaptive-tune --out`.", "[NAME=]DIR")
    curves: list[str] | None = option("Model whose training curves are shown.", "[NAME=]MODEL")
    activations: list[str] | None = option(
        "Model whose activations on --data are shown.", "[NAME=]MODEL"
    )
    data: Path | None = option(
        "A dataset: references and source, unless `--reference` names some, and sentences for "
        "`--activations`.",
        "DATA",
    )
    split: str | None = option("Split of DATA.  [default: test; valid for activations]", "NAME")
    json: JsonFile = None

    @property
    def inputs(self) -> dict[str, Path | None]:
        """The input files of the page, by their options or arguments."""
        named = {f"FILE {text}": split_label(text)[1] for text in self.systems or []}
        others = {
            "--reference": self.reference,
            "--source": self.source,
            "--alignments": self.alignments,
        }
        scored = {f"--segment-scores {path}": path for path in self.scored_files}
        return {**named, **others, **scored, **trained(self.train)}


RULES = [
    Requires(
        "systems",
        "reference data",
        "`--reference FILE` is missing: give references to compare with, or a dataset, `--data "
        "DATA --split test`.",
    ),
    Requires(
        "activations",
        "data",
        "`--activations` takes the sentences of a dataset: add `--data DATA`.",
    ),
    Requires(
        "data",
        "systems activations",
        "`--data` applies to translations or `--activations MODEL`: add one of them, or leave out "
        "`--data`.",
    ),
    Excludes(
        "reference source",
        "data",
        "`--data` provides what {option} gives: leave one of them out.",
        unless="activations",
    ),
    Requires("split", "data", "`--split` names a part of a dataset: add `--data DATA`."),
    Excludes(
        "alignments", "train", "`--alignments` are given, so none are learned: leave out `--train`."
    ),
    Requires(
        "reference source alignments train bootstrap segment_scores tokenize lowercase line",
        "systems",
        "{option} applies to translations: give some, as in NAME=FILE, or leave it out.",
    ),
]


@takes(
    ReportArguments,
    {
        INPUT_OUTPUT: "out reference source data split corpus title text line",
        "Scores": "bootstrap segment_scores tokenize lowercase",
        "Word alignments": "alignments train",
        "Further sections": "latency depth curves activations",
    },
    "nmtgrid analyze report ours=ours.jsonl theirs=theirs.en -r test.en -s test.de "
    "--out report.html",
)
def report(arguments: ReportArguments) -> None:
    """Write all analyses of some systems to one self-contained page.

    It has scores, buckets, lengths and examples of all systems; difficulty if there is a source;
    alignments, reading paths and exits of systems whose traces have them; and the given results.
    The page is one file without network requests, for light and dark screens and for printing.
    """
    check_rules(arguments, RULES, _faults(arguments))
    inputs = arguments.inputs
    check_outputs({"--out": arguments.out, "--json": arguments.json}, inputs)
    # Checked now, because the sections read them one after the other.
    for path in inputs.values():
        if path is not None:
            check_file(path)
    from nmtgrid.analysis.report import ReportInputs, page, sections
    from nmtgrid.analysis.systems import told_apart

    named = from_attributes(ReportInputs, arguments)
    evaluation = arguments.evaluate(arguments.systems) if arguments.systems else None
    with aligning() as advance:
        parts = list(sections(named, evaluation, advance))
    are_learned = arguments.alignments is None and arguments.train is None
    if are_learned and evaluation is not None and evaluation.source is not None:
        dataset = arguments.data if arguments.reference is None else None
        warn_of_little(len(evaluation.reference_lines), dataset)
    if arguments.activations and arguments.data is not None:
        from nmtgrid.cli.analyze.models import ActivationsArguments, probed_section

        split = arguments.split or "valid"
        probed = ActivationsArguments(
            models=arguments.activations, data=arguments.data, split=split
        )
        parts.append(probed_section(probed))
    if arguments.corpus is not None:
        parts = [dataclasses.replace(part, corpus=arguments.corpus) for part in parts]
    origin = [f"Made by nmtgrid {__version__}, `nmtgrid analyze report`"]
    if paths := [path for path in inputs.values() if path is not None]:
        origin.append(f"of {', '.join(told_apart([path.name for path in paths], paths))}")
    title = arguments.title or "Translation systems compared"
    if arguments.title is None and parts[0].corpus:
        title += f": {parts[0].corpus}"
    html = page(title, arguments.text, parts, f"{', '.join(origin)}.")
    write_text(arguments.out, html)
    for section in parts:
        console.say(
            f"{section.title}: figures {len(section.pictures)}, tables {len(section.tables)}"
        )
    console.say(f"Written: {arguments.out} ({len(html.encode()) / 1000:,.0f} kB)")
    write_report(arguments.json, {section.name: section.report() for section in parts})


def _faults(arguments: ReportArguments) -> list[str]:
    """Return errors that no rule covers: invalid values, options without effect."""
    faults = []
    systems = [split_label(text)[1] for text in arguments.systems or []]
    others = arguments.latency, arguments.depth, arguments.curves, arguments.activations
    if not systems and not any(others):
        faults.append("There is nothing to report on: give translations, as in NAME=FILE.")
    if arguments.out.suffix.lower() not in (".html", ".htm"):
        faults.append(f"`--out {arguments.out}` must be a page: give a name that ends in .html.")
    faults += line_faults(arguments.line or [])
    if not systems:
        return faults
    from nmtgrid.analysis.systems import is_traces
    from nmtgrid.search.traces import read_traces

    if arguments.line and not any(map(is_traces, systems)):
        faults.append("`--line` names lines of traces, but there are none: leave it out.")
    # With `--reference`, a dataset is only for `--activations`.
    has_dataset = arguments.data is not None and arguments.reference is None
    if has_dataset and arguments.source is not None:
        faults.append("`--data` provides what `--source` gives: leave one of them out.")
    if has_dataset or arguments.source is not None:
        return faults
    if arguments.alignments is not None:
        faults.append("`--alignments` are links from the source: add `--source FILE`.")
    # Traces with reading paths have sources of their own, which are aligned.
    if arguments.train is not None and not any(
        trace.reads is not None
        for path in systems
        if is_traces(path) and path.is_file()
        for trace in read_traces(path)
    ):
        faults.append(
            "`--train` needs the source, from which alignments are learned: add `--source FILE`."
        )
    return faults
