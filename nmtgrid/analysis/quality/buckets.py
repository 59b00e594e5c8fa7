"""Quality in buckets of sentences: by length, by ratio of lengths, by difficulty, by quality."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.evaluation import TITLES, Evaluation, Measure
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.analysis.systems import check_lengths, read_text
from nmtgrid.base.errors import ConfigError, InputError

Property = Literal[
    "reference-length", "length-ratio", "difficulty", "source-length", "sentence-bleu"
]
_LENGTHS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
EDGES: Mapping[Property, Sequence[float]] = {
    "reference-length": _LENGTHS,
    "length-ratio": (0.6, 0.8, 1.0, 1.2, 1.4),
    "difficulty": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    "source-length": _LENGTHS,
    "sentence-bleu": (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0),
}
"""Where one bucket ends and the next begins, as in the thesis' figures 3.10 and 4.15."""
AXES: Mapping[Property, str] = {
    "reference-length": "reference length |y| (tokens)",
    "length-ratio": "length ratio |y| / |x| (reference tokens per source token)",
    "difficulty": "difficulty: average lagging of the reference path (source words)",
    "source-length": "source length |x| (tokens)",
    "sentence-bleu": "sentence BLEU (percent)",
}
NAMES: Mapping[Property, str] = {
    "reference-length": "reference length", "length-ratio": "length ratio",
    "difficulty": "difficulty", "source-length": "source length",
    "sentence-bleu": "sentence BLEU",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Sentences (from 0) in buckets, each from its `least` on and below the next one's.

    The first has no `least` and the last no end (None); `without` counts sentences for which the
    property is not known.
    """

    by: Property
    labels: Sequence[str]
    bounds: Sequence[tuple[float | None, float | None]]
    sentences: Sequence[NDArray[numpy.int64]]
    without: int = 0

    @property
    def sizes(self) -> list[int]:
        """Return the number of sentences in each."""
        return [len(lines) for lines in self.sentences]

    def trimmed(self) -> Buckets:
        """Return the buckets without the empty ones at both ends."""
        held = [place for place, size in enumerate(self.sizes) if size] or [0]
        kept = slice(held[0], held[-1] + 1)
        parts = (self.labels[kept], self.bounds[kept], self.sentences[kept])
        return Buckets(self.by, *parts, self.without)


def check_edges(edges: Sequence[float]) -> list[str]:
    """Return what is wrong with edges: they must be numbers, at least one, that rise."""
    if not edges:
        return ["No edges of buckets are given."]
    if not all(map(math.isfinite, edges)):
        return [f"Edges of buckets are numbers, but one is {next(e for e in edges if e - e)}."]
    for before, after in itertools.pairwise(edges):
        if after <= before:
            return [f"Edges of buckets must rise, but {after:g} follows {before:g}."]
    return []


def labels(edges: Sequence[float], is_whole: bool) -> list[str]:
    """Return the names of buckets; those of whole numbers say their last: 10–19."""
    is_whole = is_whole and all(float(edge).is_integer() for edge in edges)
    digits = max(len(f"{edge:.10g}".partition(".")[2]) for edge in edges)
    told = [f"{edge:,.{digits}f}" for edge in edges]
    found = [f"< {told[0]}"]
    for (low, high), (first, end) in zip(
        itertools.pairwise(edges), itertools.pairwise(told), strict=True
    ):
        if is_whole:
            found.append(first if high - low == 1 else f"{first}–{high - 1:,.0f}")
        else:
            found.append(f"{first}–{end}")
    return [*found, f"≥ {told[-1]}"]


def split(
    values: NDArray[Any], edges: Sequence[float], by: Property, is_whole: bool = False
) -> Buckets:
    """Return the sentences by their values; NaN stands in no bucket."""
    if faults := check_edges(edges):
        raise ConfigError(faults)
    places = numpy.searchsorted(numpy.asarray(edges, float), values, side="right")
    is_known = ~numpy.isnan(numpy.asarray(values, float))
    sentences = [
        numpy.flatnonzero((places == bucket) & is_known) for bucket in range(len(edges) + 1)
    ]
    bounds = list(itertools.pairwise([None, *edges, None]))
    return Buckets(by, labels(edges, is_whole), bounds, sentences, int((~is_known).sum()))


def values(
    evaluation: Evaluation, by: Property, difficulty: Sequence[float] | None = None
) -> NDArray[Any]:
    """Return the property of each sentence. Raises ConfigError where what it takes is missing."""
    wanted = evaluation.reference.lengths
    if by == "reference-length":
        return wanted
    if by == "difficulty":
        if difficulty is None:
            raise ConfigError("Difficulty is not known.", "Give it with `--difficulty FILE`.")
        return numpy.asarray(difficulty, float)
    if evaluation.source is None:
        raise ConfigError(f"The {NAMES[by]} takes the source.", "Give it with `--source FILE`.")
    if by == "source-length":
        return evaluation.source.lengths
    with numpy.errstate(divide="ignore", invalid="ignore"):
        # A pair of two empty lines has no ratio.
        return numpy.asarray(wanted / evaluation.source.lengths)


def read_numbers(path: Path, reference: Path, count: int) -> list[float]:
    """Return a number for each line, `nan` where there is none.

    Raises InputError for what is no number, and unless there are `count`, as many as lines of
    `reference`.
    """
    found = []
    for place, line in enumerate(read_text(path), start=1):
        try:
            found.append(float(line))
        except ValueError:
            raise InputError(
                f"`{line.strip()[:40]}` is no number.",
                "Give a number a line; `nan` where there is none.",
                path=path,
                line=place,
            ) from None
    check_lengths({reference: count, path: len(found)})
    return found


MEASURES: tuple[Measure, ...] = ("bleu", "sentence-bleu", "chrf")


@dataclasses.dataclass(frozen=True)
class Scored:
    """Buckets, and by measure the percent of each system in each (None: an empty bucket)."""

    buckets: Buckets
    scores: Mapping[Measure, Sequence[Sequence[float | None]]]


def measure(
    evaluation: Evaluation,
    by: Property = "reference-length",
    edges: Sequence[float] | None = None,
    difficulty: Sequence[float] | None = None,
) -> Scored:
    """Return all measures of all systems in buckets of sentences.

    Without `edges`, those of the thesis, as far as there are sentences.
    """
    held = values(evaluation, by, difficulty)
    buckets = split(held, edges or EDGES[by], by, is_whole=by.endswith("-length"))
    buckets = buckets if edges else buckets.trimmed()
    return Scored(buckets, {name: evaluation.scores(name, buckets.sentences) for name in MEASURES})


def shares(evaluation: Evaluation, edges: Sequence[float] | None = None) -> list[Buckets]:
    """Return the sentences of each system by their own sentence BLEU."""
    wanted = edges or EDGES["sentence-bleu"]
    return [split(held, wanted, "sentence-bleu") for held in evaluation.sentence_bleu]


def buckets_section(
    evaluation: Evaluation,
    by: Sequence[Property] = ("reference-length", "length-ratio"),
    measures: Sequence[Measure] | None = None,
    edges: Sequence[float] | None = None,
    difficulty: Sequence[float] | None = None,
) -> Section:
    """Return tables and pictures of `measures` by each property; JSON has all measures.

    `measures` is BLEU if not given, and sentence BLEU by difficulty.
    """
    tables: list[Table] = []
    pictures: list[Picture] = []
    reports: list[dict[str, Any]] = []
    for one in dict.fromkeys(by):
        if one == "sentence-bleu":
            table, picture, report = _shares(evaluation, edges)
            tables.append(table)
            pictures.append(picture)
            reports.append(report)
            continue
        found = measure(evaluation, one, edges, difficulty)
        usual: Sequence[Measure] = ("sentence-bleu",) if one == "difficulty" else ("bleu",)
        for name in measures or usual:
            tables.append(_table(evaluation.names, found, name))
            pictures.append(_picture(evaluation.names, found, name))
        reports.append(_report(evaluation.names, found))
    return Section(
        "buckets",
        "Quality in buckets of sentences",
        _text(evaluation),
        tables,
        pictures,
        {
            "buckets": reports,
            "tokenize": evaluation.tokenize,
            "lowercase": evaluation.lowercase,
            "signature_bleu": evaluation.scorer("bleu").signature,
            "signature_chrf": evaluation.scorer("chrf").signature,
        },
    )


def _text(evaluation: Evaluation) -> str:
    return (
        "Sentences are put into buckets by what is known of the source and the reference alone, so "
        "that all systems are scored on the same sentences; a bucket holds its lower edge, not its "
        "upper one. BLEU and chrF are corpus scores of "
        "each bucket, sentence BLEU (smoothed, up to the longest n-gram there is) is the mean; "
        f"all in percent. {evaluation.told()} BLEU: {evaluation.scorer('bleu').signature}; "
        f"chrF: {evaluation.scorer('chrf').signature}."
    )


def _title(name: str, by: Property) -> str:
    title = f"{TITLES[name]} by {NAMES[by]}"
    # "sentence BLEU" begins a line here; "chrF" is a name.
    return title if name == "chrf" else title[0].upper() + title[1:]


def _table(names: Sequence[str], found: Scored, name: Measure) -> Table:
    held = found.buckets
    return Table(
        f"{_title(name, held.by)} (percent)",
        [AXES[held.by], "sentences", *names],
        [
            [label, size, *(scores[place] for scores in found.scores[name])]
            for place, (label, size) in enumerate(zip(held.labels, held.sizes, strict=True))
        ],
    )


def _picture(names: Sequence[str], found: Scored, name: Measure) -> Picture:
    held = found.buckets
    title = _title(name, held.by)

    def draw(path: Path) -> None:
        draw_bars(
            [Group(*pair) for pair in zip(held.labels, held.sizes, strict=True)],
            [Series(*pair) for pair in zip(names, found.scores[name], strict=True)],
            path,
            title=title,
            x_label=AXES[held.by],
            y_label=f"{TITLES[name]} (percent)",
        )

    caption = f"{title}. Under each bucket is the number of its sentences."
    if held.without:
        caption += f" Of {held.without:,} sentences it is not known."
    return Picture(f"{name}-by-{held.by}", caption, draw)


def _report(names: Sequence[str], found: Scored) -> dict[str, Any]:
    held = found.buckets
    return {
        "by": held.by,
        "of": AXES[held.by],
        **_bounds(held),
        "sentences": held.sizes,
        "sentences_without": held.without,
        "systems": [
            {
                "system": system,
                **{name.replace("-", "_"): found.scores[name][place] for name in MEASURES},
            }
            for place, system in enumerate(names)
        ],
    }


def _bounds(held: Buckets) -> dict[str, Any]:
    """Return what the buckets are: from `least` on, below `below`."""
    return {
        "buckets": [
            {"bucket": label, "least": least, "below": below}
            for label, (least, below) in zip(held.labels, held.bounds, strict=True)
        ]
    }


def _shares(
    evaluation: Evaluation, edges: Sequence[float] | None
) -> tuple[Table, Picture, dict[str, Any]]:
    """Return how many sentences of each system have how good a sentence BLEU."""
    names, found = evaluation.names, shares(evaluation, edges)
    total = len(evaluation.reference_lines)
    held = [[100.0 * size / total for size in one.sizes] for one in found]
    title = "Sentences by sentence BLEU"

    def draw(path: Path) -> None:
        draw_bars(
            [Group(label) for label in found[0].labels],
            [Series(*pair) for pair in zip(names, held, strict=True)],
            path,
            title=title,
            x_label=AXES["sentence-bleu"],
            y_label="share of the sentences (percent)",
        )

    table = Table(
        f"{title} (percent of the {total:,} sentences)",
        [AXES["sentence-bleu"], *names],
        [[label, *(one[place] for one in held)] for place, label in enumerate(found[0].labels)],
    )
    caption = f"{title}: the share of each system's sentences in each bucket."
    report = {
        "by": "sentence-bleu",
        "of": AXES["sentence-bleu"],
        **_bounds(found[0]),
        "systems": [
            {"system": name, "sentences": one.sizes} for name, one in zip(names, found, strict=True)
        ],
    }
    return table, Picture("sentences-by-sentence-bleu", caption, draw), report
