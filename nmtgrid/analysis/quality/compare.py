"""Systems side by side on one page: scores and tests, words, n-grams, sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.evaluation import TITLES, Evaluation
from nmtgrid.analysis.quality.words import (
    Differing,
    Example,
    NGram,
    WordAccuracy,
    differing,
    examples,
    word_accuracy,
)
from nmtgrid.analysis.section import Cell, Picture, Section, Table
from nmtgrid.metrics.quality import SEED, MetricName, Tested, TestName, paired_test


@dataclasses.dataclass(frozen=True)
class Scores:
    """Percent of each system by metric, with signatures."""

    systems: Sequence[str]
    values: Mapping[MetricName, Sequence[float]]
    signatures: Mapping[MetricName, str]


@dataclasses.dataclass(frozen=True)
class Test:
    """A paired test of all systems against the first, by metric."""

    kind: TestName
    samples: int
    seed: int
    systems: Mapping[MetricName, Sequence[Tested]]
    signatures: Mapping[MetricName, str]


def scores(evaluation: Evaluation, metrics: Sequence[MetricName] = ("bleu", "chrf")) -> Scores:
    """Return the corpus scores, equal to sacreBLEU's."""
    scorers = {name: evaluation.scorer(name) for name in metrics}
    return Scores(
        evaluation.names,
        {
            name: [scorer.score(held.sum(axis=0).tolist()) for held in _counts(evaluation, name)]
            for name, scorer in scorers.items()
        },
        {name: scorer.signature for name, scorer in scorers.items()},
    )


def test(
    evaluation: Evaluation,
    kind: TestName,
    samples: int,
    metrics: Sequence[MetricName] = ("bleu", "chrf"),
    seed: int = SEED,
) -> Test:
    """Return sacreBLEU's test against the first system. Raises ConfigError: see `paired_test`."""
    counts = {name: _counts(evaluation, name) for name in metrics}
    found = paired_test(kind, samples, counts, evaluation.tokenize, evaluation.lowercase, seed)
    return Test(
        kind,
        samples,
        seed,
        {name: held for name, (held, _) in found.items()},
        {name: signature for name, (_, signature) in found.items()},
    )


def _counts(evaluation: Evaluation, name: MetricName) -> Sequence[NDArray[Any]]:
    if name == "ter":
        return evaluation.ter
    return evaluation.bleu if name == "bleu" else evaluation.chrf


TESTS = {"bootstrap": "paired bootstrap", "randomisation": "approximate randomisation"}


def scores_table(found: Scores) -> Table:
    """Return the corpus scores."""
    return Table(
        "Corpus scores (percent)",
        ["system", *(TITLES[name] for name in found.values)],
        [
            [system, *(held[place] for held in found.values.values())]
            for place, system in enumerate(found.systems)
        ],
    )


def test_table(names: Sequence[str], one: Test) -> Table:
    """Return a test: scores, intervals where there are any, p-values."""
    rows: list[list[Cell]] = []
    for metric, held in one.systems.items():
        for name, tested in zip(names, held, strict=True):
            p_value = None if tested.p_value is None else f"{tested.p_value:.4f}"
            ends = [tested.mean, tested.interval] if one.kind == "bootstrap" else []
            rows.append([TITLES[metric], name, tested.score, *ends, p_value])
    title = f"{TESTS[one.kind].capitalize()} against {names[0]} ({one.samples:,} samples)"
    ends_told = ["mean", "± 95 %"] if one.kind == "bootstrap" else []
    return Table(title, ["metric", "system", "percent", *ends_told, "p"], rows)


def percent(values: Sequence[float | None]) -> list[float | None]:
    """Return shares in percent."""
    return [None if value is None else 100.0 * value for value in values]


def words_table(words: WordAccuracy, where: str) -> Table:
    """Return how well words are translated by frequency."""
    columns = [percent(one.f_measure) for one in words.systems]
    return Table(
        "Word accuracy by frequency (F-measure in percent)",
        [f"times in the {where}", "reference words", *(one.system for one in words.systems)],
        [
            [label, size, *(column[place] for column in columns)]
            for place, (label, size) in enumerate(
                zip(words.labels, words.reference_words, strict=True)
            )
        ],
    )


def ngram_tables(one: Differing) -> list[Table]:
    """Return the n-grams on which two systems differ, a table for each side."""

    def table(better: str, worse: str, held: Sequence[NGram]) -> Table:
        return Table(
            f"N-grams that {better} has right more often than {worse}",
            ["n-gram", f"right in {one.first}", f"right in {one.second}", "salience"],
            [[gram.words, gram.first, gram.second, gram.salience] for gram in held],
            digits=3,
        )

    return [
        table(one.first, one.second, one.better_first),
        table(one.second, one.first, one.better_second),
    ]


Shown = Sequence[tuple[list[Example], list[Example]]]
"""For each system but the first: where the first is ahead of it, and where behind."""


def example_tables(evaluation: Evaluation, shown: Shown) -> list[Table]:
    """Return the sentences where each system and the first differ most."""
    names = evaluation.names
    found = []
    for system, pair in enumerate(shown, start=1):
        for (better, worse), held in zip(((0, system), (system, 0)), pair, strict=True):
            rows = [row for one in held for row in _example_rows(evaluation, system, one)]
            title = f"Sentences where {names[better]} is most ahead of {names[worse]}"
            found.append(Table(title, ["line", "", "text", "sentence BLEU"], rows))
    return found


def _example_rows(evaluation: Evaluation, system: int, one: Example) -> list[list[Cell]]:
    place = one.line - 1
    rows: list[list[Cell]] = [[one.line, "reference", evaluation.reference_lines[place], None]]
    if evaluation.source_lines is not None:
        rows.insert(0, [one.line, "source", evaluation.source_lines[place], None])
    for number, score in ((0, one.first), (system, one.second)):
        held = evaluation.systems[number]
        rows.append([one.line, held.name, held.lines[place], score])
    return rows


def scores_report(found: Scores) -> dict[str, Any]:
    """Return the corpus scores and their signatures."""
    return {
        "systems": [
            {"system": system, **{name: held[place] for name, held in found.values.items()}}
            for place, system in enumerate(found.systems)
        ],
        **{f"signature_{name}": signature for name, signature in found.signatures.items()},
    }


def test_report(names: Sequence[str], one: Test) -> dict[str, Any]:
    """Return a test by metric and system."""
    return {
        "test": one.kind,
        "samples": one.samples,
        "seed": one.seed,
        "against": names[0],
        "metrics": [
            {
                "metric": metric,
                "signature": one.signatures[metric],
                "systems": [
                    {
                        "system": name,
                        "score": tested.score,
                        "p_value": tested.p_value,
                        "bootstrap_mean": tested.mean,
                        "interval_95": tested.interval,
                    }
                    for name, tested in zip(names, held, strict=True)
                ],
            }
            for metric, held in one.systems.items()
        ],
    }


def words_report(words: WordAccuracy, where: str) -> dict[str, Any]:
    """Return word accuracy, as shares."""
    return {
        "frequency_in": where,
        "buckets": list(words.labels),
        "reference_words": list(words.reference_words),
        "systems": [dataclasses.asdict(one) for one in words.systems],
    }


def examples_report(evaluation: Evaluation, shown: Shown) -> list[dict[str, Any]]:
    """Return the sentences that differ most, by system."""
    names = evaluation.names

    def told(system: int, held: Sequence[Example]) -> list[dict[str, Any]]:
        return [
            {
                "line": one.line,
                "reference": evaluation.reference_lines[one.line - 1],
                "first": evaluation.systems[0].lines[one.line - 1],
                "second": evaluation.systems[system].lines[one.line - 1],
                "sentence_bleu_first": one.first,
                "sentence_bleu_second": one.second,
            }
            for one in held
        ]

    return [
        {
            "first": names[0],
            "second": names[system],
            "better_first": told(system, ahead),
            "better_second": told(system, behind),
        }
        for system, (ahead, behind) in enumerate(shown, start=1)
    ]


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """What is compared: resamples and trials (0: no test), n-grams and examples of each kind."""

    bootstrap: int = 0
    randomisation: int = 0
    ter: bool = False
    ngrams: int = 10
    examples: int = 5
    seed: int = SEED


def comparison_section(
    evaluation: Evaluation,
    wanted: ComparisonOptions | None = None,
    frequencies: Mapping[int, int] | None = None,
) -> Section:
    """Return the comparison, each system with the first.

    `frequencies` of words in training text, by number (`compare.frequencies_in`), put words into
    buckets in place of those in the references. Raises ConfigError for a test too large.
    """
    wanted = wanted or ComparisonOptions()
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
