"""`nmtgrid analyze report`: all analyses of some systems on one self-contained page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid import __version__
from nmtgrid.base import console
from nmtgrid.base.io.atomic import split_label, write_text
from nmtgrid.base.io.text import check_file
from nmtgrid.cli.analyze.align import Train, aligning, trained
from nmtgrid.cli.analyze.show import Lowercase, Source, Tokenize, line_faults
from nmtgrid.cli.options import (
    GENERAL,
    INPUT_OUTPUT,
    REQUIRED,
    CommandArguments,
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
class ReportArguments(CommandArguments):
    """The arguments of `analyze report`."""

    out: Path = option("The page: .html.", "FILE", default=REQUIRED)
    systems: list[str] | None = argument(
        "Translations: text of any system, or traces of `decode` (.jsonl): more.",
        "[NAME=]FILE",
        default=None,
    )
    reference: Path | None = option("References, a line each.", "FILE", "--reference", "-r")
    source: Source = None
    title: str = option("Of the page.", default="Translation systems compared")
    text: str = option("What stands under the title.", default="")
    alignments: Path | None = option(
        "Links of source and reference, `i-j` from 0.  [default: learned]", "FILE"
    )
    train: Train = None
    bootstrap: int = option("Resamples of the paired test; 0: none.", "N", default=0, min=0)
    line: list[int] | None = option("A line to show as an example; may be repeated.", "N")
    latency: list[str] | None = option("Results of `online-eval --out`.", "[NAME=]DIR")
    depth: list[str] | None = option("Results of `adaptive-tune --out`.", "[NAME=]DIR")
    curves: list[str] | None = option("Show how it was trained.", "[NAME=]MODEL")
    activations: list[str] | None = option("Show its activations on --data.", "[NAME=]MODEL")
    data: Path | None = option("Dataset for --activations.", "DATA")
    split: str = option("Of DATA.", "NAME", default="valid")
    tokenize: Tokenize = "13a"
    lowercase: Lowercase = False
    json: JsonFile = None

    @property
    def inputs(self) -> dict[str, Path | None]:
        """The files that the page is made of, by what they are."""
        named = {f"FILE {text}": split_label(text)[1] for text in self.systems or []}
        others = {
            "--reference": self.reference,
            "--source": self.source,
            "--alignments": self.alignments,
        }
        return {**named, **others, **trained(self.train)}


RULES = [
    Requires(
        "systems",
        "reference",
        "`--reference FILE` is missing: what the translations are compared with.",
    ),
    Requires(
        "activations",
        "data",
        "`--activations` takes the sentences of a dataset: add `--data DATA`.",
    ),
    Requires(
        "data",
        "activations",
        "`--data` is for `--activations MODEL`: add it, or leave `--data` out.",
    ),
    Requires(
        "alignments", "source", "`--alignments` are links from the source: add `--source FILE`."
    ),
    Excludes(
        "alignments", "train", "`--alignments` are given, so none are learned: leave out `--train`."
    ),
    Requires(
        "reference source alignments train bootstrap",
        "systems",
        "{option} is about translations: name them, NAME=FILE, or leave it out.",
    ),
]


@takes(
    ReportArguments,
    {
        INPUT_OUTPUT: "out reference source title text line",
        "Scores": "bootstrap tokenize lowercase",
        "Word alignments": "alignments train",
        "Further sections": "latency depth curves activations data split",
        GENERAL: "json",
    },
    "nmtgrid analyze report ours=ours.jsonl theirs=theirs.en -r test.en -s test.de "
    "--out report.html",
)
def report(arguments: ReportArguments) -> None:
    """Lay out all analyses of some systems on one page that can be sent to a colleague.

    Scores, buckets, lengths and examples of all; difficulty where there is a source; alignments,
    reading paths and exits of the systems whose traces have them; and whatever results are named.
    The page is one file that asks nothing of a network, for screens light and dark, and for paper.
    """
    check_rules(arguments, RULES, _faults(arguments))
    inputs = arguments.inputs
    check_outputs({"--out": arguments.out, "--json": arguments.json}, inputs)
    # The sections read them one after the other.
    for path in inputs.values():
        if path is not None:
            check_file(path)
    from nmtgrid.analysis.report import ReportInputs, page, sections

    fields = [field.name for field in dataclasses.fields(ReportInputs)]
    named = ReportInputs(**{name: getattr(arguments, name) for name in fields})
    with aligning() as advance:
        parts = list(sections(named, advance))
    if arguments.activations and arguments.data is not None:
        from nmtgrid.analysis.activations import activations_section
        from nmtgrid.cli.analyze.models import ActivationsArguments, measure

        probed = ActivationsArguments(
            models=arguments.activations, data=arguments.data, split=arguments.split
        )
        parts.append(activations_section(measure(probed), arguments.split))
    origin = [f"Made by nmtgrid {__version__}, `nmtgrid analyze report`"]
    if files := [path.name for path in inputs.values() if path is not None]:
        origin.append(f"of {', '.join(files)}")
    html = page(arguments.title, arguments.text, parts, f"{', '.join(origin)}.")
    write_text(arguments.out, html)
    for section in parts:
        console.say(
            f"{section.title}: figures {len(section.pictures)}, tables {len(section.tables)}"
        )
    console.say(f"Written: {arguments.out} ({len(html.encode()) / 1000:,.0f} kB)")
    write_report(arguments.json, {section.name: dict(section.values) for section in parts})


def _faults(arguments: ReportArguments) -> list[str]:
    """Return what no rule says: values that are wrong, options that nothing would be made of."""
    faults = []
    systems = [split_label(text)[1] for text in arguments.systems or []]
    others = arguments.latency, arguments.depth, arguments.curves, arguments.activations
    if not systems and not any(others):
        faults.append("There is nothing to report on: name translations, NAME=FILE.")
    if arguments.out.suffix.lower() not in (".html", ".htm"):
        faults.append(f"`--out {arguments.out}` is a page: end it in .html.")
    if arguments.bootstrap and len(systems) == 1:
        faults.append("`--bootstrap` compares systems: give two or more, or leave it out.")
    if systems and arguments.train is not None and arguments.source is None:
        from nmtgrid.analysis.systems import is_traces

        # Traces have sources of their own.
        if not any(map(is_traces, systems)):
            faults.append("`--train` is to learn links from the source by: add `--source FILE`.")
    return faults + line_faults(arguments.line or [])
