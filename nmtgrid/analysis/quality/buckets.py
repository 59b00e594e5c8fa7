"""Quality in buckets of sentences: by length, by ratio of lengths, by difficulty, by quality."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.bucketing import AXES, EDGES, NAMES, Buckets, Property, split, values
from nmtgrid.analysis.quality.evaluation import TITLES, Evaluation, Measure
from nmtgrid.analysis.section import Picture, Section, Table

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


def section(
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
