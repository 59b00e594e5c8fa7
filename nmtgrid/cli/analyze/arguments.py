"""Arguments that the commands of `nmtgrid analyze` share, and how they show a section."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeGuard

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import make_folder, split_label
from nmtgrid.base.spans import real_number, shortened
from nmtgrid.cli.options import (
    CommandArguments,
    Excludes,
    JsonFile,
    Needs,
    Requires,
    check_outputs,
    check_rules,
    explicit_options,
    flag,
    option,
    unusable,
    write_report,
)

if TYPE_CHECKING:
    from nmtgrid.analysis.quality.evaluation import Evaluation
    from nmtgrid.analysis.section import Section

Systems = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]FILE",
        help="Translations, one per line: text of any system, or traces of `decode` (.jsonl).",
    ),
]


CORPUS = option("Name of the corpus in titles.  [default: its dataset or file, if known]", "NAME")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownArguments(CommandArguments):
    """Where the tables, figures and numbers of an analysis are written."""

    out: Path | None = option(
        "Write figures: into a folder, or to this .png or .svg (several: each with a suffix).",
        "DIR|FILE",
    )
    picture: Literal["png", "svg"] = option(
        "Format of figures in a folder.", None, "--format", default="png"
    )
    json: JsonFile = None
    corpus: str | None = CORPUS

    def check(self, *inputs: Path | None) -> None:
        """Raise ConfigError unless figures and JSON can be written and replace no input."""
        faults = []
        if is_file(self.out) and "picture" in explicit_options(self):
            faults.append("`--format` is for figures in a folder: a file's suffix is its format.")
        check_rules(
            self, [Requires("picture", "out", "`--format` is for figures: add `--out`.")], faults
        )
        outputs, out = {"--json": self.json}, self.out
        if is_file(out):
            from nmtgrid.analysis.plotting.figure import check_suffix

            check_suffix(out)
            folder = out.parent
            above = next(parent for parent in (folder, *folder.parents) if parent.exists())
            if not above.is_dir() or not os.access(above, os.W_OK):
                problem = f"the folder {folder} cannot be created: {above} is not a folder."
                if above.is_dir():
                    problem = f"{out} cannot be written: {above} is read-only."
                raise ConfigError(f"`--out`: {problem}", "Choose another `--out`.")
            if folder.is_dir():
                outputs["--out"] = out
        elif wrong := unusable("--out", out):
            raise ConfigError(wrong, "Figures may also be one file that ends in .png or .svg.")
        from nmtgrid.analysis.section import NAME

        files = [path for path in inputs if path is not None]
        # This is the file that is read from the folder of an evaluation or a tuning.
        files += [path / NAME for path in files if path.is_dir()]
        check_outputs(outputs, {f"FILE {path}": path for path in files})

    @property
    def other_outputs(self) -> dict[str, Path | None]:
        """The files of `--json` and `--out`, which no further output may replace."""
        return {"--json": self.json, "--out": self.out if is_file(self.out) else None}

    def show(self, section: Section) -> None:
        """Print the finding and the tables, draw the figures, write the values."""
        if self.corpus is not None:
            section = dataclasses.replace(section, corpus=self.corpus)
        for paragraph in section.finding.split("\n\n"):
            # The warning of a case mismatch has been printed already.
            if paragraph and not paragraph.startswith("Beware"):
                console.say(paragraph)
        for table in section.tables:
            console.table(table.title, table.columns, table.formatted(), table.is_numeric)
        drawn = [] if self.out is None else _draw(section, self.out, self.picture)
        for path in drawn:
            console.say(f"Drawn: {path}")
        write_report(self.json, {**section.report(), "pictures": [str(path) for path in drawn]})


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationArguments(CommandArguments):
    """The references and how scores are computed."""

    reference: Path | None = option("References, one per line.", "FILE", "--reference", "-r")
    source: Path | None = option("Source, one sentence per line.", "FILE", "--source", "-s")
    data: Path | None = option(
        "A dataset, instead of references and source: scores are those of `decode`.", "DATA"
    )
    split: str | None = option("Split of DATA.  [default: test]", "NAME")
    corpus: str | None = CORPUS
    tokenize: Literal["13a", "none", "intl", "char", "zh"] | None = option(
        "Tokeniser of BLEU and of word counts (sacreBLEU's names); `none`: text is tokenised "
        "already; `zh`, `char`: TER counts Chinese characters too.  [default: 13a; for DATA none "
        "if its text was tokenised before; characters if references have no spaces]"
    )
    lowercase: bool = flag("--lowercase", "Ignore case.")

    def evaluate(self, systems: Sequence[str]) -> Evaluation:
        """Return the evaluation of systems (NAME=FILE) on the references; warn of mismatches."""
        from nmtgrid.analysis.quality.evaluation import evaluate_split, read_evaluation

        how = self.tokenize, self.lowercase, self.corpus
        if self.reference is not None:
            evaluation = read_evaluation(systems, self.reference, self.source, *how)
        else:
            assert self.data is not None  # by EVALUATION_RULES
            evaluation = evaluate_split(systems, self.data, self.split or "test", *how)
        advice = "To compare without regard to case, add `--lowercase`."
        if self.data is None:
            advice = (
                "To compare without regard to case, as `decode` does for a lower-cased dataset, "
                "add `--lowercase` or give the dataset with `--data`."
            )
        for mismatch in evaluation.case_mismatches():
            console.warn(f"{mismatch} {advice}")
        for mismatch in evaluation.token_mismatches():
            console.warn(f"{mismatch} Compare detokenised text, or tokenise both alike.")
        for mismatch in evaluation.source_mismatches():
            console.warn(mismatch)
        return evaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredArguments(EvaluationArguments):
    """The same with sentence scores of other programs."""

    segment_scores: list[str] | None = option(
        "Sentence scores of another program, such as COMET: one line per sentence with a number "
        "for each system, or the JSON of `comet-score --to_json`; may be repeated.",
        "[NAME=]FILE",
    )

    @property
    def scored_files(self) -> list[Path]:
        """The files of `--segment-scores`."""
        return [split_label(text)[1] for text in self.segment_scores or []]

    def evaluate(self, systems: Sequence[str]) -> Evaluation:
        from nmtgrid.analysis.quality.segment_scores import with_segment_scores

        return with_segment_scores(super().evaluate(systems), self.segment_scores or [])


EVALUATION_RULES = [
    Needs(
        "reference",
        "data",
        "`--reference FILE` is missing: give references to compare with, or a dataset, `--data "
        "DATA --split test`.",
    ),
    Excludes(
        "reference source", "data", "`--data` provides what {option} gives: leave one of them out."
    ),
    Requires("split", "data", "`--split` names a part of a dataset: add `--data DATA`."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QualityArguments(ShownArguments, EvaluationArguments):
    """The options of analyses of translations, and of their output."""

    def check_files(self, systems: Sequence[str], *others: Path | None) -> None:
        """Raise ConfigError unless references are named once, and outputs replace no input."""
        check_rules(self, EVALUATION_RULES)
        inputs = [split_label(text)[1] for text in systems]
        self.check(*inputs, self.reference, self.source, *others)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredQualityArguments(QualityArguments, ScoredArguments):
    """The same with `--segment-scores`."""

    def check_files(self, systems: Sequence[str], *others: Path | None) -> None:
        super().check_files(systems, *others, *self.scored_files)


def is_file(out: Path | None) -> TypeGuard[Path]:
    """Return whether `--out` names a figure's file rather than a folder."""
    return out is not None and bool(out.suffix) and not out.is_dir()


def line_faults(lines: Sequence[int]) -> list[str]:
    """Return errors in the numbers of `--line`."""
    return [f"`--line` counts from 1, but is {number}." for number in lines if number < 1]


def read_edges(text: str | None, example: str) -> tuple[list[float] | None, list[str]]:
    """Return the bucket boundaries of `--edges` (None: not given), and errors in them."""
    if text is None:
        return None, []
    from nmtgrid.analysis.quality.buckets import check_edges

    try:
        edges = [real_number(edge) for edge in text.split(",")]
    except ValueError:
        problem = f"`--edges {shortened(text)}`: numbers separated by commas are needed"
        return None, [f"{problem}, such as {example}."]
    return edges, [f"`--edges {shortened(text)}`: {fault}" for fault in check_edges(edges)]


def _draw(section: Section, out: Path, picture: str) -> list[Path]:
    """Draw all figures into the folder `out`, or next to the file `out`; return their paths."""
    from nmtgrid.analysis.plotting.figure import naming_corpus

    pictures = section.pictures
    make_folder(out.parent if is_file(out) else out)
    paths = []
    for figure in pictures:
        if not is_file(out):
            path = out / f"{figure.name}.{picture}"
        elif len(pictures) == 1:
            path = out
        else:
            path = out.with_name(f"{out.stem}-{figure.name}{out.suffix}")
        with naming_corpus(section.corpus):
            figure.draw(path)
        paths.append(path)
    return paths
