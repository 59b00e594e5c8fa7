"""Comparison of systems with the first one: scores and tests, words, n-grams, sentences.

Scores and tests are sacreBLEU's, the rest is compare-mt's (`words`). `nmtgrid analyze compare` and
the report show the section.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.evaluation import TITLES, Evaluation
from nmtgrid.analysis.quality.words import WordAccuracy, differing, examples, word_accuracy
from nmtgrid.analysis.section import (
    Cell,
    Interval,
    Picture,
    Section,
    Table,
    format_interval,
    percent,
)
from nmtgrid.metrics import bootstrap
from nmtgrid.metrics.quality import SEED, MetricName, Tested, TestName, paired_test

_TESTS: Mapping[TestName, str] = {
    "bootstrap": "paired bootstrap",
    "randomisation": "approximate randomisation",
}
_SIDES = (("first", "second"), ("second", "first"))


@dataclasses.dataclass(frozen=True)
class CorpusScores:
    """Percent of each system by metric, with signatures."""

    systems: Sequence[str]
    values: Mapping[MetricName, Sequence[float]]
    signatures: Mapping[MetricName, str]

    def report(self) -> dict[str, Any]:
        """Return the scores as JSON."""
        return {
            "systems": [
                {"system": name, **{metric: own[index] for metric, own in self.values.items()}}
                for index, name in enumerate(self.systems)
            ],
            **{f"signature_{metric}": text for metric, text in self.signatures.items()},
        }


@dataclasses.dataclass(frozen=True)
class PairedTest:
    """A paired test of all systems against the first, by metric.

    `intervals` hold 95 % of the differences to the first in the bootstrap's samples.
    """

    kind: TestName
    samples: int
    seed: int
    systems: Mapping[MetricName, Sequence[Tested]]
    signatures: Mapping[MetricName, str]
    intervals: Mapping[MetricName, Sequence[Interval | None]]

    def compared(self, metric: MetricName) -> list[tuple[Tested, float | None, Interval | None]]:
        """Return each system, its difference to the first and the difference's interval."""
        first, *others = self.systems[metric]
        differences = [None, *(other.score - first.score for other in others)]
        return [*zip(self.systems[metric], differences, self.intervals[metric], strict=True)]


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """Settings of a comparison: samples of the tests (0: none), n-grams and examples."""

    bootstrap: int = 0
    randomisation: int = 0
    ter: bool = False
    ngrams: int = 10
    examples: int = 5
    seed: int = SEED


def corpus_scores(
    evaluation: Evaluation, metrics: Sequence[MetricName] = ("bleu", "chrf")
) -> CorpusScores:
    """Return the corpus scores, equal to sacreBLEU's."""
    scorers = {metric: evaluation.scorer(metric) for metric in metrics}
    values = {
        metric: [scorer.score(lines.sum(axis=0).tolist()) for lines in _counts(evaluation, metric)]
        for metric, scorer in scorers.items()
    }
    signatures = {metric: scorer.signature for metric, scorer in scorers.items()}
    return CorpusScores(evaluation.names, values, signatures)


def test_against_first(
    evaluation: Evaluation,
    kind: TestName,
    samples: int,
    metrics: Sequence[MetricName] = ("bleu", "chrf"),
    seed: int = SEED,
) -> PairedTest:
    """Return sacreBLEU's test against the first system. Raises ConfigError: see `paired_test`."""
    counts = {metric: _counts(evaluation, metric) for metric in metrics}
    tested = paired_test(kind, samples, counts, evaluation.tokenize, evaluation.lowercase, seed)
    intervals: dict[MetricName, list[Interval | None]] = {
        metric: [None] * len(evaluation.systems) for metric in metrics
    }
    if kind == "bootstrap":
        drawn = evaluation.resampled(metrics, None, samples, seed)
        for metric, own in intervals.items():
            for index, other in enumerate(tested[metric][0]):
                if other.p_value is not None:
                    own[index] = bootstrap.interval(drawn[metric][index] - drawn[metric][0])
    return PairedTest(
        kind,
        samples,
        seed,
        {metric: systems for metric, (systems, _) in tested.items()},
        {metric: signature for metric, (_, signature) in tested.items()},
        intervals,
    )


def _counts(evaluation: Evaluation, metric: MetricName) -> Sequence[NDArray[Any]]:
    counts: Sequence[NDArray[Any]] = getattr(evaluation, metric)
    return counts


def comparison_section(
    evaluation: Evaluation,
    options: ComparisonOptions | None = None,
    frequencies: dict[int, int] | None = None,
) -> Section:
    """Return the comparison, each system with the first.

    `frequencies` of words in training text, by number (`words.frequencies_in`), put words into
    buckets in place of those in the references. Raises ConfigError for a test too large.
    """
    options = options or ComparisonOptions()
    metrics: tuple[MetricName, ...] = ("bleu", "chrf", *(("ter",) if options.ter else ()))
    scores = corpus_scores(evaluation, metrics)
    tests = [
        test_against_first(evaluation, kind, getattr(options, kind), metrics, options.seed)
        for kind in _TESTS
        if getattr(options, kind) and len(evaluation.systems) > 1
    ]
    words = word_accuracy(evaluation, frequencies)
    differences = differing(evaluation, options.ngrams) if options.ngrams else []
    ngrams = [dataclasses.asdict(pair) for pair in differences]
    pairs = [
        _example_values(evaluation, system, options.examples)
        for system in range(1, len(evaluation.systems))
    ]
    # What the words' frequencies are of, for headings and for the JSON.
    where = "references" if frequencies is None else "training text"
    score_values = scores.report()
    columns = {"system": "system", **{TITLES[metric]: metric for metric in metrics}}
    words_table, words_picture = _words(words, where)
    tables = [
        Table.of("Corpus scores (percent)", columns, score_values["systems"]),
        *(_test_table(evaluation.names, test) for test in tests),
        words_table,
        *(table for pair in ngrams for table in _ngram_tables(pair)),
        *(table for pair in pairs for table in _example_tables(evaluation, pair)),
    ]
    return Section(
        "compare",
        "Systems compared",
        _text(evaluation, scores, tests, where),
        [table for table in tables if table.rows],
        [_scores_picture(scores, tests), words_picture],
        {
            "scores": score_values,
            "tests": [_test_values(evaluation.names, test) for test in tests],
            "word_accuracy": {
                "frequency_in": where,
                "buckets": list(words.labels),
                "reference_words": list(words.reference_words),
                "systems": [dataclasses.asdict(system) for system in words.systems],
            },
            "ngrams": ngrams,
            "examples": pairs,
            **evaluation.settings,
        },
        evaluation.corpus,
        _finding(evaluation, scores, tests, options),
    )


_SIGNIFICANT = 0.05


def _finding(
    evaluation: Evaluation,
    scores: CorpusScores,
    tests: Sequence[PairedTest],
    options: ComparisonOptions,
) -> str:
    """Return who is better by BLEU, by how much and how surely; what makes scores not compare."""
    names, bleu = evaluation.names, scores.values["bleu"]
    best = max(range(len(names)), key=lambda index: bleu[index])
    sentences = [f"On {evaluation.corpus}:"] if evaluation.corpus else []
    if len(names) == 1 and options.bootstrap:
        drawn = evaluation.resampled(["bleu"], None, options.bootstrap, options.seed)["bleu"][0]
        interval = format_interval(bootstrap.interval(drawn))
        sentences.append(f"{names[0]} has {bleu[0]:.2f} BLEU (95 % interval {interval}).")
    elif len(names) == 1:
        sentences.append(f"{names[0]} has {bleu[0]:.2f} BLEU.")
    elif len(names) > 2:
        sentences.append(f"{names[best]} has the highest BLEU, {bleu[best]:.2f}.")
    order = sorted(range(1, len(names)), key=lambda index: -bleu[index])
    sentences += [_verdict(evaluation, index, scores, tests) for index in order]
    how = f"Signature of BLEU: {scores.signatures['bleu']}."
    if tests:
        how = f"Test: {_TESTS[tests[0].kind]} with {tests[0].samples:,} samples. {how}"
    elif len(names) > 1:
        how = f"No test says whether that is chance. {how}"
    warnings = [f"Beware: {mismatch}" for mismatch in evaluation.case_mismatches()]
    return "\n\n".join([" ".join(sentences), *warnings, how])


def _verdict(
    evaluation: Evaluation, index: int, scores: CorpusScores, tests: Sequence[PairedTest]
) -> str:
    """Return how a system stands against the first."""
    names = evaluation.names
    own, first = scores.values["bleu"][index], scores.values["bleu"][0]
    if evaluation.systems[index].lines == evaluation.systems[0].lines:
        return f"{names[index]} and {names[0]} are identical ({own:.2f} BLEU)."
    # The better of the two is named before the other.
    (high, better), (low, worse) = sorted([(own, names[index]), (first, names[0])], reverse=True)
    difference = f"{better} has {high - low:.2f} BLEU more than {worse}"
    facts = [f"{high:.2f} against {low:.2f}"]
    if not tests:
        return f"{difference} ({facts[0]})."
    tested, _, interval = tests[0].compared("bleu")[index]
    if tested.p_value is None:
        return f"BLEU sees no difference between {names[index]} and {names[0]} ({own:.2f})."
    if interval is not None:
        ends = interval if own >= first else (-interval[1], -interval[0])
        facts.append(f"95 % interval of the difference {format_interval(ends, 2, '+')}")
    facts.append(f"p = {tested.p_value:.4f}")
    for metric in tests[0].systems:
        other, change, _ = tests[0].compared(metric)[index]
        if metric != "bleu" and change is not None:
            change = change if own >= first else -change
            chance = "identical" if other.p_value is None else f"p = {other.p_value:.4f}"
            facts.append(f"{TITLES[metric]} {change:+.2f}, {chance}".replace("-", "−"))
    if tested.p_value < _SIGNIFICANT:
        difference = f"{better} is better than {worse} by {high - low:.2f} BLEU"
    else:
        difference += ", which may be chance"
    return f"{difference} ({'; '.join(facts)})."


def _text(
    evaluation: Evaluation, scores: CorpusScores, tests: Sequence[PairedTest], where: str
) -> str:
    signatures = "; ".join(f"{TITLES[name]} {text}" for name, text in scores.signatures.items())
    sentences = [
        f"Corpus scores are sacreBLEU's, in percent: {signatures}"
        + ("; of TER, less is better." if "ter" in scores.values else "."),
        evaluation.describe_tokens(),
    ]
    for test in tests:
        sentences.append(
            f"SacreBLEU's {_TESTS[test.kind]} with {test.samples:,} samples (seed {test.seed}): p "
            f"is the probability of a difference from {evaluation.names[0]} this large by chance. "
            "Systems whose sentences all have the same statistics are identical, and have no p."
        )
    sentences.append(
        f"Words are grouped by their frequency in the {where}. A word counts as correct as often "
        "as both translation and reference contain it (compare-mt's word accuracy, F-measure in "
        "percent)."
    )
    if len(evaluation.systems) > 1:
        sentences.append(
            "N-grams that one system produces correctly more often than the other. Salience is "
            "compare-mt's (a + 1) / (a + b + 2): near 1 for n-grams of the first system, near 0 "
            "for those of the other. Examples are the sentences whose sentence BLEU differs most."
        )
    return " ".join(sentences)


def _test_table(names: Sequence[str], test: PairedTest) -> Table:
    """Return a test: scores, intervals where there are any, p-values."""
    rows: list[list[Cell]] = []
    has_intervals = test.kind == "bootstrap"
    for metric in test.systems:
        for name, (tested, difference, interval) in zip(names, test.compared(metric), strict=True):
            # As text: a p of 0.00 would say more than a few hundred samples can.
            p_value = None if tested.p_value is None else f"{tested.p_value:.4f}"
            own: list[Cell] = [tested.mean, tested.interval] if has_intervals else []
            change = None if difference is None else f"{difference:+.2f}".replace("-", "−")
            of_change: list[Cell] = [format_interval(interval, 2, "+")] if has_intervals else []
            p_value = "identical" if tested.is_identical else p_value
            rows.append([TITLES[metric], name, tested.score, *own, change, *of_change, p_value])
    title = f"{_TESTS[test.kind].capitalize()} against {names[0]} ({test.samples:,} samples)"
    headings = ["metric", "system", "percent", "difference", "p"]
    if has_intervals:
        headings[3:] = ["mean", "± 95 %", "difference", "95 % of it", "p"]
    return Table(title, headings, rows)


def _test_values(names: Sequence[str], test: PairedTest) -> dict[str, Any]:
    return {
        "test": test.kind,
        "samples": test.samples,
        "seed": test.seed,
        "against": names[0],
        "metrics": [
            {
                "metric": metric,
                "signature": test.signatures[metric],
                "systems": [
                    {
                        "system": name,
                        "score": tested.score,
                        "p_value": tested.p_value,
                        "bootstrap_mean": tested.mean,
                        "interval_95": tested.interval,
                        "identical": tested.is_identical,
                        "difference": difference,
                        "difference_interval_95": interval,
                    }
                    for name, (tested, difference, interval) in zip(
                        names, test.compared(metric), strict=True
                    )
                ],
            }
            for metric in test.systems
        ],
    }


def _ngram_tables(pair: Mapping[str, Any]) -> list[Table]:
    """Return the n-grams on which two systems differ, a table for each side."""
    return [
        Table(
            f"N-grams that {pair[better]} has right more often than {pair[worse]}",
            ["n-gram", f"right in {pair['first']}", f"right in {pair['second']}", "salience"],
            [[*gram.values()] for gram in pair[f"better_{better}"]],
            digits=3,
        )
        for better, worse in _SIDES
    ]


def _example_tables(evaluation: Evaluation, pair: Mapping[str, Any]) -> list[Table]:
    """Return the sentences where two systems differ most, a table for each side."""
    tables = []
    for better, worse in _SIDES:
        rows: list[list[Cell]] = []
        for example in pair[f"better_{better}"]:
            line = example["line"]
            if evaluation.source_lines is not None:
                rows.append([line, "source", evaluation.source_lines[line - 1], None])
            rows.append([line, "reference", example["reference"], None])
            for side in ("first", "second"):
                rows.append([line, pair[side], example[side], example[f"sentence_bleu_{side}"]])
        title = f"Sentences where {pair[better]} is most ahead of {pair[worse]}"
        tables.append(Table(title, ["line", "", "text", "sentence BLEU"], rows))
    return tables


def _example_values(evaluation: Evaluation, system: int, count: int) -> dict[str, Any]:
    """Return as JSON the sentences in which the first system leads or trails another most."""
    first, second = evaluation.systems[0], evaluation.systems[system]
    better_first, better_second = (
        [
            {
                "line": example.line,
                "reference": evaluation.reference_lines[example.line - 1],
                "first": first.lines[example.line - 1],
                "second": second.lines[example.line - 1],
                "sentence_bleu_first": example.first,
                "sentence_bleu_second": example.second,
            }
            for example in side
        ]
        for side in examples(evaluation, system, count)
    )
    return {
        "first": first.name,
        "second": second.name,
        "better_first": better_first,
        "better_second": better_second,
    }


def _scores_picture(scores: CorpusScores, tests: Sequence[PairedTest]) -> Picture:
    bootstrap = next((test for test in tests if test.kind == "bootstrap"), None)
    caption = "Corpus scores of all systems."
    if bootstrap is not None:
        caption += f" Lines: 95 % of {bootstrap.samples:,} bootstrap samples."

    series = []
    for index, system in enumerate(scores.systems):
        values = [of_systems[index] for of_systems in scores.values.values()]
        ends: list[list[float]] = []
        if bootstrap is not None:
            tested = [bootstrap.systems[metric][index] for metric in scores.values]
            # The interval is around the mean of the samples, which is not quite the score.
            ends = [
                [(test.mean or 0.0) + sign * (test.interval or 0.0) for test in tested]
                for sign in (-1, 1)
            ]
        series.append(Series(system, values, *ends))
    x_label = "metric" + (" (of TER, less is better)" if "ter" in scores.values else "")
    groups = [Group(TITLES[metric]) for metric in scores.values]
    return Picture(
        "scores",
        caption,
        lambda path: draw_bars(
            groups, series, path, title="Corpus scores", x_label=x_label, y_label="score (percent)"
        ),
    )


def _words(words: WordAccuracy, where: str) -> tuple[Table, Picture]:
    names = [system.system for system in words.systems]
    # Where the references have no words, there is no F-measure.
    kept = [index for index, size in enumerate(words.reference_words) if size]
    columns = [[percent(system.f_measure[n]) for n in kept] for system in words.systems]
    groups = [Group(words.labels[n], words.reference_words[n]) for n in kept]
    table = Table(
        "Word accuracy by frequency (F-measure in percent)",
        [f"times in the {where}", "reference words", *names],
        [
            [group.label, group.size, *row]
            for group, *row in zip(groups, *columns, strict=True)
        ],
    )
    picture = Picture(
        "word-accuracy",
        f"How well words are translated by how often they stand in the {where}. Under each bucket "
        "is the number of its words in the references.",
        lambda path: draw_bars(
            groups,
            [Series(*pair) for pair in zip(names, columns, strict=True)],
            path,
            title="Word accuracy by frequency",
            x_label=f"times that the word stands in the {where}",
            y_label="F-measure (percent)",
            size_label="words",
        ),
    )
    return table, picture
