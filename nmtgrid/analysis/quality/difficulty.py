"""Difficulty of sentence pairs for simultaneous translation: the lagging that they require.

The reference path reads, before each target word, up to the last source word aligned with it; its
average lagging AL is the pair's difficulty (section 4.5.6.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.alignment.aligner import AlignedPairs
from nmtgrid.analysis.alignment.pharaoh import Links
from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.buckets import AXES, buckets_section, into_buckets
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.metrics.bootstrap import RESAMPLES
from nmtgrid.metrics.latency import sentence_latency

EDGES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Edges of the distribution: about half of the pairs have an average lagging below 1."""


def reference_path(links: Links, target_words: int) -> list[int]:
    """Return the number of source words to be read before each target word (section 4.5.6.1).

    z_t = max(z_{t-1}, a_t), where a_t is the last source word aligned with target word t, counted
    from 1; z_0 = 1.

    Departs: The thesis does not define a_t for a word without links. Here it is 1, so that no
    further source words are needed.
    """
    last = [1] * target_words
    for source, target in links:
        last[target] = max(last[target], source + 1)
    path, reached = [], 1
    for needed in last:
        # Reads are never undone, so the path never turns back.
        reached = max(reached, needed)
        path.append(reached)
    return path


def measure_difficulty(pairs: AlignedPairs) -> NDArray[numpy.float64]:
    """Return the AL of each pair's reference path [B], in source words: NaN for an empty side."""
    paths = [
        reference_path(links, target)
        for links, (_, target) in zip(pairs.links, pairs.sizes, strict=True)
    ]
    return sentence_latency(paths, [source for source, _ in pairs.sizes]).al


def difficulty_section(
    pairs: AlignedPairs,
    lagging: NDArray[numpy.float64],
    evaluation: Evaluation,
    edges: Sequence[float] | None = None,
    samples: int = RESAMPLES,
) -> Section:
    """Return the distribution, and sentence BLEU of the systems of `evaluation` by difficulty."""
    by_difficulty = into_buckets(lagging, edges or EDGES, "difficulty").filled()
    known = lagging[~numpy.isnan(lagging)]
    numbers = _numbers(pairs, known)
    # Shares of the pairs that have a difficulty: both sides must have words.
    shares = [100.0 * size / len(known) if len(known) else None for size in by_difficulty.sizes]
    bins = list(zip(by_difficulty.labels, by_difficulty.sizes, strict=True))
    tables = [
        Table(
            "Difficulty: average lagging of the reference path (source words)",
            ["pairs", "mean", "5 %", "median", "95 %", "target words without link (percent)",
             "links per target word"],
            [[len(known), *numbers.values()]],
        ),
        Table(
            "Pairs by difficulty",
            [AXES["difficulty"], "pairs", "share (percent)"],
            [[label, size, share] for (label, size), share in zip(bins, shares, strict=True)],
            digits=1,
        ),
    ]  # fmt: skip
    pictures = [_picture([Group(*pair) for pair in bins], shares, by_difficulty.without)]
    values: dict[str, Any] = {
        "difficulty": {
            "of": AXES["difficulty"],
            "sentences": len(known),
            "sentences_without": by_difficulty.without,
            **numbers,
            "buckets": [{"bucket": label, "sentences": size} for label, size in bins],
            "alignments": pairs.origin,
        }
    }
    text = (
        "The difficulty of a pair is how far one must lag behind its source to write its "
        "reference: the reference path reads up to the last source word aligned with each target "
        "word, and never back; its average lagging AL (in source words, |y| the reference's "
        "length) is the difficulty. Words are separated by spaces. " + pairs.origin
    )
    if evaluation.systems:
        scored = buckets_section(
            evaluation, ["difficulty"], edges=edges, difficulty=lagging.tolist(), samples=samples
        )
        tables += scored.tables
        pictures += scored.pictures
        values |= scored.values
        text += f" {scored.text}"
    title = "Difficulty of the pairs"
    return Section("difficulty", title, text, tables, pictures, values, evaluation.corpus)


def _picture(groups: Sequence[Group], shares: Sequence[float | None], without: int) -> Picture:
    caption = "Pairs by difficulty. Under each bucket is the number of its pairs."
    if without:
        caption += f" {without:,} pairs with an empty side have none."
    return Picture(
        "difficulty",
        caption,
        lambda path: draw_bars(
            groups,
            [Series("all pairs", shares)],
            path,
            title="Pairs by difficulty",
            x_label=AXES["difficulty"],
            y_label="share of the pairs (percent)",
            size_label="pairs",
        ),
    )


def _numbers(pairs: AlignedPairs, known: NDArray[numpy.float64]) -> dict[str, float | None]:
    """Return mean and percentiles of the difficulty, and how much is aligned, as JSON keys."""
    words, links = sum(map(len, pairs.target)), sum(map(len, pairs.links))
    low, median, high = numpy.percentile(known, [5, 50, 95]).tolist() if len(known) else [None] * 3
    return {
        "mean": float(known.mean()) if len(known) else None,
        "percentile_5": low,
        "median": median,
        "percentile_95": high,
        "unaligned_target_words_percent": 100.0 * pairs.unaligned,
        "links_per_target_word": links / words if words else None,
    }
