"""Systems side by side on one page: scores and tests, words, n-grams, sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.compare_analysis import WordAccuracy, word_accuracy
from nmtgrid.analysis.quality.compare_scores import Scores, Test, scores, test
from nmtgrid.analysis.quality.compare_tables import (
    TESTS,
    example_tables,
    ngram_tables,
    percent,
    scores_table,
    test_table,
    words_table,
)
from nmtgrid.analysis.quality.compare_values import (
    examples_report,
    scores_report,
    test_report,
    words_report,
)
from nmtgrid.analysis.quality.evaluation import TITLES, Evaluation
from nmtgrid.analysis.quality.words import differing, examples
from nmtgrid.analysis.section import Picture, Section
from nmtgrid.metrics.quality import SEED, MetricName, TestName


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is compared: resamples and trials (0: no test), n-grams and examples of each kind."""

    bootstrap: int = 0
    randomisation: int = 0
    ter: bool = False
    ngrams: int = 10
    examples: int = 5
    seed: int = SEED


def section(
    evaluation: Evaluation,
    wanted: Wanted | None = None,
    frequencies: Mapping[int, int] | None = None,
) -> Section:
    """Return the comparison, each system with the first.

    `frequencies` of words in training text, by number (`compare.frequencies_in`), put words into
    buckets in place of those in the references. Raises ConfigError for a test too large.
    """
    wanted = wanted or Wanted()
    metrics: tuple[MetricName, ...] = ("bleu", "chrf", *(("ter",) if wanted.ter else ()))
    found = scores(evaluation, metrics)
    asked: dict[TestName, int] = {
        "bootstrap": wanted.bootstrap, "randomisation": wanted.randomisation,
    }  # fmt: skip
    tests = [
        test(evaluation, kind, samples, metrics, wanted.seed)
        for kind, samples in asked.items()
        if samples and len(evaluation.systems) > 1
    ]
    words = word_accuracy(evaluation, None if frequencies is None else dict(frequencies))
    ngrams = differing(evaluation, wanted.ngrams) if wanted.ngrams else []
    shown = [
        examples(evaluation, system, wanted.examples)
        for system in range(1, len(evaluation.systems))
    ]
    where = "references" if frequencies is None else "training text"
    tables = [
        scores_table(found),
        *(test_table(evaluation.names, one) for one in tests),
        words_table(words, where),
        *(table for one in ngrams for table in ngram_tables(one)),
        *example_tables(evaluation, shown),
    ]
    return Section(
        "compare",
        "Systems compared",
        _text(evaluation, found, tests, where),
        [table for table in tables if table.rows],
        [_scores_picture(found, tests), _words_picture(words, where)],
        {
            "scores": scores_report(found),
            "tests": [test_report(evaluation.names, one) for one in tests],
            "word_accuracy": words_report(words, where),
            "ngrams": [dataclasses.asdict(one) for one in ngrams],
            "examples": examples_report(evaluation, shown),
            "tokenize": evaluation.tokenize,
            "lowercase": evaluation.lowercase,
        },
    )


def _text(evaluation: Evaluation, found: Scores, tests: Sequence[Test], where: str) -> str:
    told = [
        "Corpus scores are sacreBLEU's, in percent: "
        + "; ".join(f"{TITLES[name]} {signature}" for name, signature in found.signatures.items())
        + ("; of TER, less is better." if "ter" in found.values else "."),
        f"{evaluation.told()}",
    ]
    for one in tests:
        told.append(
            f"SacreBLEU's {TESTS[one.kind]} with {one.samples:,} samples (seed {one.seed}): p is "
            f"how likely so great a difference from {evaluation.names[0]} is by chance."
        )
    told.append(
        f"Words are in buckets by how often they stand in the {where}; a word counts as right as "
        "often as translation and reference both have it (compare-mt's word accuracy, F-measure "
        "in percent)."
    )
    if len(evaluation.systems) > 1:
        told.append(
            "N-grams are those that one system has right more often than the other; salience is "
            "compare-mt's (a + 1) / (a + b + 2), near 1 for those of the first, near 0 for those "
            "of the other. Examples are the sentences whose sentence BLEU differs most."
        )
    return " ".join(told)


def _scores_picture(found: Scores, tests: Sequence[Test]) -> Picture:
    resampled = next((one for one in tests if one.kind == "bootstrap"), None)
    caption = "Corpus scores of all systems."
    if resampled is not None:
        caption += f" Lines: 95 % of {resampled.samples:,} bootstrap samples."

    def ends(place: int, sign: int) -> list[float | None] | None:
        if resampled is None:
            return None
        held = [resampled.systems[name][place] for name in found.values]
        return [
            None if one.mean is None or one.interval is None else one.mean + sign * one.interval
            for one in held
        ]

    def draw(path: Path) -> None:
        draw_bars(
            [Group(TITLES[name]) for name in found.values],
            [
                Series(
                    system,
                    [held[place] for held in found.values.values()],
                    ends(place, -1),
                    ends(place, 1),
                )
                for place, system in enumerate(found.systems)
            ],
            path,
            title="Corpus scores",
            x_label="metric" + (" (of TER, less is better)" if "ter" in found.values else ""),
            y_label="score (percent)",
        )

    return Picture("scores", caption, draw)


def _words_picture(words: WordAccuracy, where: str) -> Picture:
    def draw(path: Path) -> None:
        draw_bars(
            [Group(*pair) for pair in zip(words.labels, words.reference_words, strict=True)],
            [Series(one.system, percent(one.f_measure)) for one in words.systems],
            path,
            title="Word accuracy by frequency",
            x_label=f"times that the word stands in the {where}",
            y_label="F-measure (percent)",
            size_label="words",
        )

    caption = (
        f"How well words are translated by how often they stand in the {where}. Under each bucket "
        "is the number of its words in the references."
    )
    return Picture("word-accuracy", caption, draw)
