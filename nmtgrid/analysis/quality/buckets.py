"""Quality in buckets of sentences: by length, length ratio, difficulty or sentence BLEU."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.evaluation import MEASURE_KINDS, Evaluation, digits_of, title_of
from nmtgrid.analysis.quality.names import MEASURES, Measure, Property
from nmtgrid.analysis.section import Cell, Interval, Picture, Section, Table, format_interval
from nmtgrid.analysis.systems import check_lengths, read_text
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.text import open_writer
from nmtgrid.base.spans import plural
from nmtgrid.metrics import bootstrap
from nmtgrid.metrics.bootstrap import RESAMPLES
from nmtgrid.metrics.quality import SEED

_LENGTHS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
EDGES: Mapping[Property, Sequence[float]] = {
    "reference-length": _LENGTHS,
    "length-ratio": (0.6, 0.8, 1.0, 1.2, 1.4),
    "difficulty": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    "source-length": _LENGTHS,
    "sentence-bleu": (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0),
}
"""Boundaries between buckets, as in the thesis' figures 3.10 and 4.15."""
AXES: Mapping[Property, str] = {
    "reference-length": "reference length |y| (tokens)",
    "length-ratio": "length ratio |y| / |x| (reference tokens per source token)",
    "difficulty": "difficulty: average lagging of the reference path (source words)",
    "source-length": "source length |x| (tokens)",
    "sentence-bleu": "sentence BLEU (percent)",
}
FEW = 30
"""Buckets with fewer sentences than this are unreliable: their bars are drawn pale."""
_DIGITS = 4
"""Digits after the point of a property: in files, and when it is compared with edges."""
NAMES: Mapping[Property, str] = {
    "reference-length": "reference length", "length-ratio": "length ratio",
    "difficulty": "difficulty", "source-length": "source length",
    "sentence-bleu": "sentence BLEU",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Sentences (from 0) in buckets, each from its `least` to below the next bucket's.

    The first has no `least` and the last no end (None); `without` counts sentences whose property
    is not known.
    """

    by: Property
    labels: Sequence[str]
    bounds: Sequence[tuple[float | None, float | None]]
    sentences: Sequence[NDArray[numpy.int64]]
    without: int

    @property
    def sizes(self) -> list[int]:
        return [len(lines) for lines in self.sentences]

    @property
    def groups(self) -> list[Group]:
        """Return the groups of bars: label and size of each."""
        pairs = zip(self.labels, self.sizes, strict=True)
        return [Group(label, size, size < FEW) for label, size in pairs]

    @property
    def note(self) -> str:
        """Return what pale bars mean, an empty string without any."""
        return f"pale: fewer than {FEW} sentences" if min(self.sizes) < FEW else ""

    def filled(self) -> Buckets:
        """Return the buckets without the empty ones; one at least."""
        kept = [index for index, size in enumerate(self.sizes) if size] or [0]
        return self.select(kept)

    def select(self, kept: Sequence[int]) -> Buckets:
        return dataclasses.replace(
            self,
            labels=[self.labels[n] for n in kept],
            bounds=[self.bounds[n] for n in kept],
            sentences=[self.sentences[n] for n in kept],
        )

    def bound_values(self) -> list[dict[str, Any]]:
        """Return the boundaries of the buckets as JSON: from `least` on, below `below`."""
        return [
            {"bucket": label, "least": least, "below": below}
            for label, (least, below) in zip(self.labels, self.bounds, strict=True)
        ]


def check_edges(edges: Sequence[float]) -> list[str]:
    """Return what is wrong with bucket boundaries, which must be finite and rise."""
    if not all(map(math.isfinite, edges)):
        return [f"boundaries must be finite, but one is {next(e for e in edges if e - e)}."]
    for before, after in itertools.pairwise(edges):
        if after <= before:
            return [f"boundaries must rise, but {after:g} follows {before:g}."]
    return []


def labels(edges: Sequence[float], is_whole: bool) -> list[str]:
    """Return the names of buckets; those of whole numbers include the last one: 10–19."""
    is_whole = is_whole and all(float(edge).is_integer() for edge in edges)
    digits = max(len(f"{edge:.10f}".rstrip("0").partition(".")[2]) for edge in edges)
    names = []
    for low, high in itertools.pairwise(edges):
        first, last = (f"{edge:,.{digits}f}" for edge in (low, high - is_whole))
        names.append(first if is_whole and high - low == 1 else f"{first}–{last}")
    return [f"< {edges[0]:,.{digits}f}", *names, f"≥ {edges[-1]:,.{digits}f}"]


def into_buckets(values: NDArray[Any], edges: Sequence[float], by: Property) -> Buckets:
    """Return the sentences by their values; NaN is in no bucket.

    An edge belongs to the bucket that it begins. Values count as written, with four digits after
    the point: a sum of fractions that comes to 1.9999999999999998 is 2.
    """
    rounded = numpy.round(numpy.asarray(values, float), _DIGITS)
    indices = numpy.searchsorted(numpy.asarray(edges, float), rounded, side="right")
    is_known = ~numpy.isnan(rounded)
    sentences = [
        numpy.flatnonzero((indices == bucket) & is_known) for bucket in range(len(edges) + 1)
    ]
    bounds = list(itertools.pairwise([None, *edges, None]))
    names = labels(edges, is_whole=by.endswith("-length"))
    return Buckets(by, names, bounds, sentences, int((~is_known).sum()))


def values(
    evaluation: Evaluation, by: Property, difficulty: Sequence[float] | None = None
) -> NDArray[Any]:
    """Return the property of each sentence. Raises ConfigError if it needs missing data."""
    lengths = evaluation.reference.lengths
    if by == "reference-length":
        return lengths
    if by == "difficulty":
        if difficulty is None:
            raise ConfigError("Difficulty is not known.", "Give it with `--difficulty FILE`.")
        return numpy.asarray(difficulty, float)
    if evaluation.source is None:
        raise ConfigError(f"The {NAMES[by]} needs the source.", "Give it with `--source FILE`.")
    if by == "source-length":
        return evaluation.source.lengths
    with numpy.errstate(divide="ignore", invalid="ignore"):
        # A pair of two empty lines has no ratio.
        return numpy.asarray(lengths / evaluation.source.lengths)


def write_numbers(path: Path, numbers: NDArray[numpy.float64]) -> None:
    """Write one number per line, as `into_buckets` reads it, `nan` for a missing one."""
    with open_writer(path) as file:
        for value in numpy.round(numbers, _DIGITS).tolist():
            file.write(f"{value:.{_DIGITS}f}\n".encode())


def read_numbers(path: Path, reference: Path, count: int) -> list[float]:
    """Return one number per line, `nan` for a missing one.

    Raises InputError for a line that is not a number, and unless there are `count`, one for each
    line of `reference` (a file or dataset).
    """
    numbers = []
    for number, line in enumerate(read_text(path), start=1):
        try:
            numbers.append(float(line))
        except ValueError:
            raise InputError(
                f"`{line.strip()[:40]}` is not a number.",
                "Give one number per line; `nan` if there is none.",
                path=path,
                line=number,
            ) from None
    check_lengths({reference: count, path: len(numbers)})
    return numbers


@dataclasses.dataclass(frozen=True)
class BucketScores:
    """Buckets, and scores by measure, bucket and system (None: an empty bucket).

    Scores of other programs are unchanged, the others in percent.

    `intervals` contain 95 % of the resamples of a bucket's sentences; None for fewer than two
    sentences, and without resamples.
    """

    buckets: Buckets
    scores: Mapping[str, Sequence[Sequence[float | None]]]
    intervals: Mapping[str, Sequence[Sequence[Interval | None]]]


def score_buckets(
    evaluation: Evaluation,
    by: Property = "reference-length",
    edges: Sequence[float] | None = None,
    difficulty: Sequence[float] | None = None,
    samples: int = RESAMPLES,
) -> BucketScores:
    """Return all measures of all systems in the buckets that are not empty.

    Without `edges`, those of the thesis.
    """
    properties = values(evaluation, by, difficulty)
    buckets = into_buckets(properties, edges or EDGES[by], by).filled()
    measures = (*MEASURES, *evaluation.segment_scores)
    scores = {measure: evaluation.scores(measure, buckets.sentences) for measure in measures}
    return BucketScores(buckets, scores, _intervals(evaluation, buckets, measures, samples))


def _intervals(
    evaluation: Evaluation, buckets: Buckets, measures: Sequence[str], samples: int
) -> dict[str, list[list[Interval | None]]]:
    intervals: dict[str, list[list[Interval | None]]] = {
        measure: [[] for _ in evaluation.systems] for measure in measures
    }
    for lines in buckets.sentences:
        has_any = samples and len(lines) > 1
        drawn = evaluation.resampled(measures, lines, samples) if has_any else {}
        for measure in measures:
            for index, own in enumerate(intervals[measure]):
                own.append(bootstrap.interval(drawn[measure][index]) if drawn else None)
    return intervals


def buckets_section(
    evaluation: Evaluation,
    by: Sequence[Property],
    measures: Sequence[Measure] | None = None,
    edges: Sequence[float] | None = None,
    difficulty: Sequence[float] | None = None,
    samples: int = RESAMPLES,
) -> Section:
    """Return tables and figures of `measures` by each property; JSON has all measures.

    `measures` is BLEU if not given, and sentence BLEU by difficulty; scores of other programs are
    shown in any case. Intervals come from `samples` resamples (0: no intervals).
    """
    drawn: list[tuple[Table, Picture]] = []
    reports: list[dict[str, Any]] = []
    for name in dict.fromkeys(by):
        if name == "sentence-bleu":
            table, picture, report = _by_sentence_bleu(evaluation, edges, samples)
            drawn.append((table, picture))
            reports.append(report)
            continue
        scored = score_buckets(evaluation, name, edges, difficulty, samples)
        # Section 4.5.6.1 shows the mean of sentence BLEU by difficulty, the other figures corpus
        # BLEU.
        usual: Sequence[Measure] = ("sentence-bleu",) if name == "difficulty" else ("bleu",)
        for measure in (*(measures or usual), *evaluation.segment_scores):
            drawn.append(_shown(evaluation.names, scored, measure))
        reports.append(_values(evaluation.names, scored))
    bleu, chrf = evaluation.scorer("bleu").signature, evaluation.scorer("chrf").signature
    return Section(
        "buckets",
        "Quality in buckets of sentences",
        "Sentences are put into buckets by properties of the source and the reference only, so "
        "that all systems are scored on the same sentences; a bucket includes its lower edge, not "
        "its upper one. BLEU and chrF are corpus scores of "
        "each bucket, sentence BLEU (smoothed, up to the longest n-gram there is) is the mean; "
        f"all in percent. {_describe_intervals(samples)}{evaluation.describe_tokens()} "
        f"BLEU: {bleu}; chrF: {chrf}.",
        [table for table, _ in drawn],
        [picture for _, picture in drawn],
        {
            "buckets": reports,
            **evaluation.settings,
            "signature_bleu": bleu,
            "signature_chrf": chrf,
            "bootstrap": {"samples": samples, "seed": SEED} if samples else None,
            "few_below": FEW,
        },
        evaluation.corpus,
    )


def _describe_intervals(samples: int) -> str:
    if not samples:
        return ""
    return (
        f"Intervals contain 95 % of {samples:,} bootstrap samples of a bucket's sentences (seed "
        f"{SEED}). Buckets with fewer than {FEW} sentences have pale bars, because their scores "
        "are unreliable. Empty buckets are omitted. "
    )


def _shown(names: Sequence[str], scored: BucketScores, measure: str) -> tuple[Table, Picture]:
    """Return one measure in all buckets as a table and as a figure."""
    heading, unit = title_of(measure), "percent" if measure in MEASURE_KINDS else "mean"
    buckets, columns = scored.buckets, scored.scores[measure]
    intervals = scored.intervals[measure]
    title = f"{heading} by {NAMES[buckets.by]}"
    # "sentence BLEU" begins a line here; "chrF" is a name.
    title = title[0].upper() + title[1:] if measure == "sentence-bleu" else title
    caption = f"{title}. Under each bucket is the number of its sentences."
    y_label = f"{heading} ({unit})"
    if buckets.without:
        caption += f" For {buckets.without:,} sentences it is not known."
        unit += f"; without {plural(buckets.without, 'sentence')} for which it is not known"
    return _table_and_picture(
        names,
        columns,
        intervals,
        buckets.groups,
        title=title,
        caption=caption,
        name=re.sub(r"[^\w.-]+", "-", f"{measure}-by-{buckets.by}"),
        x_label=AXES[buckets.by],
        y_label=y_label,
        note=buckets.note,
        unit=unit,
        digits=digits_of(measure),
    )


def _table_and_picture(
    names: Sequence[str],
    columns: Sequence[Sequence[float | None]],
    intervals: Sequence[Sequence[Interval | None]],
    groups: Sequence[Group],
    *,
    title: str,
    caption: str,
    name: str,
    x_label: str,
    y_label: str,
    unit: str,
    note: str = "",
    digits: int = 2,
) -> tuple[Table, Picture]:
    """Return the score of each system in each bucket, with intervals if there are any."""
    has_intervals = any(interval for own in intervals for interval in own)
    cells: list[list[Cell]] = [
        [
            f"{value:.{digits}f} {format_interval(interval, digits - 1) or ''}".rstrip()
            if has_intervals and value is not None
            else value
            for value, interval in zip(*own, strict=True)
        ]
        for own in zip(columns, intervals, strict=True)
    ]
    sizes = [[group.size for group in groups]] if groups[0].size is not None else []
    heading = f"{title} ({unit}" + ("; in brackets: 95 %)" if has_intervals else ")")
    rows = zip([group.label for group in groups], *sizes, *cells, strict=True)
    table = Table(
        heading,
        [x_label, *(["sentences"] if sizes else []), *names],
        [[*row] for row in rows],
        digits,
    )
    if has_intervals:
        note = f"lines: 95 % of the bootstrap samples{note and '; '}{note}"
    series = [
        Series(system, own, *([None if i is None else i[end] for i in ranges] for end in (0, 1)))
        for system, own, ranges in zip(names, columns, intervals, strict=True)
    ]
    picture = Picture(
        name,
        caption,
        lambda path: draw_bars(
            groups, series, path, title=title, x_label=x_label, y_label=y_label, note=note
        ),
    )
    return table, picture


def _of_others(scored: BucketScores, index: int) -> dict[str, Any]:
    """Return a system's scores by other programs, by name."""
    return {
        name: {"mean": means[index], "interval_95": scored.intervals[name][index]}
        for name, means in scored.scores.items()
        if name not in MEASURES
    }


def _values(names: Sequence[str], scored: BucketScores) -> dict[str, Any]:
    buckets, others = scored.buckets, len(scored.scores) > len(MEASURES)
    return {
        "by": buckets.by,
        "of": AXES[buckets.by],
        "buckets": buckets.bound_values(),
        "sentences": buckets.sizes,
        "sentences_without": buckets.without,
        "systems": [
            {
                "system": system,
                **{name.replace("-", "_"): scored.scores[name][index] for name in MEASURES},
                **{
                    f"{name.replace('-', '_')}_interval_95": scored.intervals[name][index]
                    for name in MEASURES
                },
                **({"segment_scores": _of_others(scored, index)} if others else {}),
            }
            for index, system in enumerate(names)
        ],
    }


def _by_sentence_bleu(
    evaluation: Evaluation, edges: Sequence[float] | None, samples: int
) -> tuple[Table, Picture, dict[str, Any]]:
    """Return the distribution of each system's sentences over sentence BLEU."""
    names = evaluation.names
    systems = [
        into_buckets(scores, edges or EDGES["sentence-bleu"], "sentence-bleu")
        for scores in evaluation.sentence_bleu
    ]
    # Without those that are empty for all systems.
    sizes = zip(*(buckets.sizes for buckets in systems), strict=True)
    kept = [index for index, of_systems in enumerate(sizes) if any(of_systems)]
    systems = [buckets.select(kept) for buckets in systems]
    total = len(evaluation.reference_lines)
    percents = [[100.0 * size / total for size in buckets.sizes] for buckets in systems]
    intervals = [_share_intervals(buckets, total, samples) for buckets in systems]
    title = "Sentences by sentence BLEU"
    table, picture = _table_and_picture(
        names,
        percents,
        intervals,
        [Group(label) for label in systems[0].labels],
        title=title,
        caption=f"{title}: the share of each system's sentences in each bucket.",
        name="sentences-by-sentence-bleu",
        x_label=AXES["sentence-bleu"],
        y_label="share of the sentences (percent)",
        unit=f"percent of the {total:,} sentences",
    )
    report = {
        "by": "sentence-bleu",
        "of": AXES["sentence-bleu"],
        "buckets": systems[0].bound_values(),
        "systems": [
            {"system": name, "sentences": buckets.sizes, "percent_interval_95": own}
            for name, buckets, own in zip(names, systems, intervals, strict=True)
        ],
    }
    return table, picture, report


def _share_intervals(buckets: Buckets, total: int, samples: int) -> list[Interval | None]:
    """Return intervals of the percentage of sentences in each bucket when they are resampled."""
    if not samples:
        return [None] * len(buckets.sizes)
    blocks = [
        numpy.stack([block[:, lines].sum(1) for lines in buckets.sentences])
        for block in bootstrap.weights(total, samples, SEED)
    ]
    drawn = numpy.concatenate(blocks, axis=1)
    return [bootstrap.interval(100.0 * counts / total) for counts in drawn]
