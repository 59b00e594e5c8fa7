"""How hard pairs are to translate while the source is still coming: the lagging of their path.

The reference path reads, before each target word, up to the last source word aligned with it; its
average lagging AL is the pair's difficulty (section 4.5.6.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.alignment.aligner import AlignedPairs
from nmtgrid.analysis.alignment.pharaoh import Links
from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality import buckets
from nmtgrid.analysis.quality.buckets import AXES, Buckets, split
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.base.io.text import open_writer
from nmtgrid.metrics.latency import sentence_latency

EDGES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Of the distribution: an average lagging is as often below 1 as not."""
_DIGITS = 4


@dataclasses.dataclass(frozen=True)
class Difficulty:
    """The reference path of each pair in source words, and its AL [B]: NaN for an empty side."""

    paths: Sequence[Sequence[int]]
    lagging: NDArray[numpy.float64]


def reference_path(links: Links, target_words: int) -> list[int]:
    """Return how many source words must be read before each target word, as section 4.5.6.1 says.

    z_t = max(z_{t-1}, a_t), where a_t is the last source word aligned with t (from 1); z_0 = 1.

    Departs: the print has no a_t for a word without links; here it is 1, so that z stays.
    """
    last = [1] * target_words
    for source, target in links:
        last[target] = max(last[target], source + 1)
    path, reached = [], 1
    for wanted in last:
        reached = max(reached, wanted)
        path.append(reached)
    return path


def measure(pairs: AlignedPairs) -> Difficulty:
    """Return the paths and difficulties of all pairs."""
    paths = [
        reference_path(links, target)
        for links, (_, target) in zip(pairs.links, pairs.sizes, strict=True)
    ]
    lagging = sentence_latency(paths, [source for source, _ in pairs.sizes]).al
    return Difficulty(paths, lagging)


def write_numbers(path: Path, lagging: NDArray[numpy.float64]) -> None:
    """Write a number a line, `nan` where there is none."""
    with open_writer(path) as file:
        for value in lagging.tolist():
            file.write(f"{round(value, _DIGITS):.{_DIGITS}f}\n".encode())


def difficulty_section(
    pairs: AlignedPairs,
    found: Difficulty,
    evaluation: Evaluation | None = None,
    edges: Sequence[float] | None = None,
) -> Section:
    """Return the distribution and, of the systems of `evaluation`, sentence BLEU by difficulty."""
    held = split(found.lagging, edges or EDGES, "difficulty").trimmed()
    known = found.lagging[~numpy.isnan(found.lagging)]
    tables = [_summary(pairs, known), _table(held, len(known))]
    pictures = [_picture(held, len(known))]
    values: dict[str, Any] = {
        "difficulty": {
            "of": AXES["difficulty"],
            "sentences": len(known),
            "sentences_without": held.without,
            **_numbers(pairs, known),
            "buckets": [
                {"bucket": label, "sentences": size}
                for label, size in zip(held.labels, held.sizes, strict=True)
            ],
            "alignments": pairs.told,
        }
    }
    text = (
        "The difficulty of a pair is how far one must lag behind its source to write its "
        "reference: the reference path reads up to the last source word aligned with each target "
        "word, and never back; its average lagging AL (in source words, |y| the reference's "
        "length) is the difficulty. Words are what spaces separate. " + pairs.told
    )
    if evaluation is not None:
        scored = buckets.buckets_section(
            evaluation, ["difficulty"], edges=edges, difficulty=found.lagging.tolist()
        )
        tables += scored.tables
        pictures += scored.pictures
        values |= scored.values
        text += f" {scored.text}"
    return Section("difficulty", "Difficulty of the pairs", text, tables, pictures, values)


def _numbers(pairs: AlignedPairs, known: NDArray[numpy.float64]) -> dict[str, Any]:
    """Return mean and percentiles of the difficulty, and how much is aligned, as JSON keys."""
    held: dict[str, Any] = {"mean": float(known.mean()) if len(known) else None}
    for name, share in (("percentile_5", 5), ("median", 50), ("percentile_95", 95)):
        held[name] = float(numpy.percentile(known, share)) if len(known) else None
    held["unaligned_target_words_percent"] = 100.0 * pairs.unaligned
    held["links_per_target_word"] = _per_word(pairs)
    return held


def _per_word(pairs: AlignedPairs) -> float | None:
    words = sum(map(len, pairs.target))
    return sum(map(len, pairs.links)) / words if words else None


def _summary(pairs: AlignedPairs, known: NDArray[numpy.float64]) -> Table:
    return Table(
        "Difficulty: average lagging of the reference path (source words)",
        ["pairs", "mean", "5 %", "median", "95 %", "target words without link (percent)",
         "links per target word"],
        [[len(known), *_numbers(pairs, known).values()]],
    )  # fmt: skip


def _table(held: Buckets, known: int) -> Table:
    return Table(
        "Pairs by difficulty",
        [AXES["difficulty"], "pairs", "share (percent)"],
        [
            [label, size, _share(size, known)]
            for label, size in zip(held.labels, held.sizes, strict=True)
        ],
        digits=1,
    )


def _share(size: int, known: int) -> float | None:
    return 100.0 * size / known if known else None


def _picture(held: Buckets, known: int) -> Picture:
    def draw(path: Path) -> None:
        draw_bars(
            [Group(*pair) for pair in zip(held.labels, held.sizes, strict=True)],
            [Series("all pairs", [_share(size, known) for size in held.sizes])],
            path,
            title="Pairs by difficulty",
            x_label=AXES["difficulty"],
            y_label="share of the pairs (percent)",
            size_label="pairs",
        )

    caption = "Pairs by difficulty. Under each bucket is the number of its pairs."
    if held.without:
        caption += f" {held.without:,} pairs with an empty side have none."
    return Picture("difficulty", caption, draw)
