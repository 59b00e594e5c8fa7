"""Comparison of systems with the first one: scores and tests, words, n-grams, sentences.

Scores and tests are sacreBLEU's, the rest is compare-mt's (`words`). `nmtgrid analyze compare` and
the report show the section.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.quality.evaluation import MEASURE_KINDS, Evaluation, digits_of, title_of
from nmtgrid.analysis.quality.words import differing, examples, word_accuracy
from nmtgrid.analysis.section import (
    Cell,
    Picture,
    Section,
    Table,
    format_interval,
    format_signed,
    percent,
)
from nmtgrid.metrics import bootstrap
from nmtgrid.metrics.bootstrap import ROUNDING
from nmtgrid.metrics.quality import SEED, TestName, mean_of_samples

_TESTS: Mapping[TestName, str] = {
    "bootstrap": "paired bootstrap",
    "randomisation": "approximate randomisation",
}
_SIDES = (("first", "second"), ("second", "first"))


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """Settings of a comparison: samples of the tests (0: none), n-grams and examples."""

    bootstrap: int = 0
    randomisation: int = 0
    ter: bool = False
    ngrams: int = 10
    examples: int = 5
    seed: int = SEED


def corpus_scores(evaluation: Evaluation, metrics: Sequence[str]) -> dict[str, list[float]]:
    """Return the corpus scores of each system by metric, in percent equal to sacreBLEU's.

    Sentence scores of other programs are averaged.
    """
    return {
        metric: [
            evaluation.scorer(metric).score(counts.sum(axis=0).tolist())
            for counts in evaluation.counts(metric)
        ]
        for metric in metrics
    }


def test_against_first(
    evaluation: Evaluation,
    kind: TestName,
    samples: int,
    metrics: Sequence[str] = ("bleu", "chrf"),
    seed: int = SEED,
) -> dict[str, Any]:
    """Return the test of each system against the first, by metric, as JSON keys.

    The paired bootstrap and approximate randomisation are sacreBLEU's, with its random numbers. The
    bootstrap gives the mean of the samples, half the width of their 95 % interval, and the 95 %
    interval of the differences to the first. The first system has no p-value; neither has one that
    is `identical` to it, all of whose sentences have the same statistics.
    """
    is_bootstrap = kind == "bootstrap"
    if is_bootstrap:
        drawn = evaluation.resampled(metrics, None, samples, seed)
    else:
        drawn = evaluation.swapped(metrics, samples, seed)
    rows = []
    for metric, scores in corpus_scores(evaluation, metrics).items():
        counts = evaluation.counts(metric)
        compared: list[dict[str, Any]] = []
        for index, name in enumerate(evaluation.names):
            own, change = drawn[metric][index], scores[index] - scores[0]
            tested: dict[str, Any] = dict.fromkeys(("p_value", "bootstrap_mean", "interval_95"))
            interval = None
            if is_bootstrap:
                tested["bootstrap_mean"], tested["interval_95"] = mean_of_samples(own)
            is_identical = index > 0 and numpy.array_equal(counts[index], counts[0])
            if index and not is_identical and is_bootstrap:
                differences = own - drawn[metric][0]
                interval = bootstrap.interval(differences)
                sizes = abs(differences)
                tested["p_value"] = bootstrap.p_value(sizes - sizes.mean(), abs(change))
            elif index and not is_identical:
                tested["p_value"] = bootstrap.p_value(abs(own), abs(change))
            compared.append({
                "system": name,
                "score": scores[index],
                **tested,
                "identical": is_identical,
                "difference": change if index else None,
                "difference_interval_95": interval,
            })  # fmt: skip
        signature = evaluation.scorer(metric).tested(kind, samples, seed)
        rows.append({"metric": metric, "signature": signature, "systems": compared})
    return {
        "test": kind,
        "samples": samples,
        "seed": seed,
        "against": evaluation.names[0],
        "metrics": rows,
    }


def comparison_section(
    evaluation: Evaluation,
    options: ComparisonOptions,
    frequencies: dict[int, int] | None = None,
) -> Section:
    """Return the comparison, each system with the first.

    `frequencies` of words in training text, by number (`words.frequencies_in`), replace those in
    the references for putting words into buckets.
    """
    metrics = _metrics(options)
    scores = corpus_scores(evaluation, metrics)
    others = corpus_scores(evaluation, list(evaluation.segment_scores))
    tested = [*metrics, *others]
    tests = [
        test_against_first(evaluation, kind, getattr(options, kind), tested, options.seed)
        for kind in _TESTS
        if getattr(options, kind) and len(evaluation.systems) > 1 and _is_testable(evaluation)
    ]
    words = word_accuracy(evaluation, frequencies)
    ngrams = differing(evaluation, options.ngrams) if options.ngrams else []
    pairs = [
        examples(evaluation, system, options.examples)
        for system in range(1, len(evaluation.systems))
    ]
    # The text in which words are counted, for headings and for the JSON.
    where = "references" if frequencies is None else "training text"
    rows, scores_table = _scores("Corpus scores (percent)", evaluation, scores, 2)
    other_rows, others_table = _scores("Mean scores by other programs", evaluation, others, 4)
    words_table, words_picture = _words(words, where)
    tables = [
        scores_table,
        others_table,
        *(table for test in tests for table in _test_tables(test)),
        words_table,
        *(table for pair in ngrams for table in _ngram_tables(pair)),
        *(table for pair in pairs for table in _example_tables(evaluation, pair)),
    ]
    signatures = {metric: evaluation.scorer(metric).signature for metric in metrics}
    return Section(
        "compare",
        "Systems compared",
        _text(evaluation, signatures, tests, where),
        [table for table in tables if table.rows],
        [_scores_picture(evaluation.names, scores, tests), words_picture],
        {
            "scores": {
                "systems": rows,
                **{f"signature_{metric}": text for metric, text in signatures.items()},
            },
            **({"segment_scores": other_rows} if others else {}),
            "tests": tests,
            "word_accuracy": {"frequency_in": where, **words},
            "ngrams": ngrams,
            "examples": pairs,
            **evaluation.settings,
        },
        evaluation.corpus,
        _finding(evaluation, scores["bleu"], tests, options),
    )


def _metrics(options: ComparisonOptions) -> list[str]:
    """Return the measures that have corpus scores; TER is slow, so it must be requested."""
    metrics = [name for name, kind in MEASURE_KINDS.items() if kind.scorer is not None]
    return [name for name in metrics if options.ter or name != "ter"]


def _scores(
    title: str, evaluation: Evaluation, scores: Mapping[str, Sequence[float]], digits: int
) -> tuple[list[dict[str, Any]], Table]:
    """Return the scores of all systems as JSON and as a table, without rows if there are none."""
    rows = [
        {"system": name, **{metric: own[index] for metric, own in scores.items()}}
        for index, name in enumerate(evaluation.names if scores else [])
    ]
    columns = {"system": "system", **{title_of(metric): metric for metric in scores}}
    return rows, Table.of(title, columns, rows, digits)


_SIGNIFICANT = 0.05


def _is_testable(evaluation: Evaluation) -> bool:
    """Return whether sentences can be resampled: all samples of a single one are equal."""
    return len(evaluation.reference_lines) > 1


def _finding(
    evaluation: Evaluation,
    bleu: Sequence[float],
    tests: Sequence[dict[str, Any]],
    options: ComparisonOptions,
) -> str:
    """Return which system has the better BLEU, by how much and how surely, and warnings."""
    names = evaluation.names
    best = max(range(len(names)), key=lambda index: bleu[index])
    sentences = [f"On {evaluation.corpus}:"] if evaluation.corpus else []
    if len(names) == 1 and options.bootstrap and _is_testable(evaluation):
        drawn = evaluation.resampled(["bleu"], None, options.bootstrap, options.seed)["bleu"][0]
        interval = format_interval(bootstrap.interval(drawn))
        sentences.append(f"{names[0]} has {bleu[0]:.2f} BLEU (95 % interval {interval}).")
    elif len(names) == 1:
        sentences.append(f"{names[0]} has {bleu[0]:.2f} BLEU.")
    elif len(names) > 2:
        equal = [
            name for name, score in zip(names, bleu, strict=True) if bleu[best] - score < ROUNDING
        ]
        have = "has" if len(equal) == 1 else "have"
        sentences.append(f"{', '.join(equal)} {have} the highest BLEU, {bleu[best]:.2f}.")
    order = sorted(range(1, len(names)), key=lambda index: -bleu[index])
    sentences += [_verdict(evaluation, index, bleu, tests) for index in order]
    how = f"Signature of BLEU: {evaluation.scorer('bleu').signature}."
    if tests:
        how = f"Test: {_TESTS[tests[0]['test']]} with {tests[0]['samples']:,} samples. {how}"
    elif len(names) > 1:
        why = "" if _is_testable(evaluation) else ": it would need two sentences or more"
        how = f"No test says whether that is chance{why}. {how}"
    mismatches = [*evaluation.case_mismatches(), *evaluation.token_mismatches()]
    warnings = [f"Beware: {mismatch}" for mismatch in mismatches]
    return "\n\n".join([" ".join(sentences), *warnings, how])


def _verdict(
    evaluation: Evaluation, index: int, bleu: Sequence[float], tests: Sequence[dict[str, Any]]
) -> str:
    """Return how a system compares with the first."""
    names, own, first = evaluation.names, bleu[index], bleu[0]
    if evaluation.systems[index].lines == evaluation.systems[0].lines:
        return f"{names[index]} and {names[0]} are identical ({own:.2f} BLEU)."
    is_equal = abs(own - first) < ROUNDING
    if is_equal and not tests:
        return f"{names[index]} and {names[0]} have the same BLEU ({own:.2f})."
    # The better of the two is named before the other.
    (high, better), (low, worse) = sorted([(own, names[index]), (first, names[0])], reverse=True)
    difference = f"{better} has {high - low:.2f} BLEU more than {worse}"
    facts = [f"{high:.2f} against {low:.2f}"]
    if not tests:
        return f"{difference} ({facts[0]})."
    tested, *others = (row["systems"][index] for row in tests[0]["metrics"])
    if tested["p_value"] is None or is_equal:
        return f"BLEU sees no difference between {names[index]} and {names[0]} ({own:.2f})."
    if (interval := tested["difference_interval_95"]) is not None:
        # `-x` would give a zero a minus sign.
        ends = interval if own >= first else (0.0 - interval[1], 0.0 - interval[0])
        facts.append(f"95 % interval of the difference {format_interval(ends, 2, '+')}")
    facts.append(f"p = {tested['p_value']:.4f}")
    for row, other in zip(tests[0]["metrics"][1:], others, strict=True):
        change = other["difference"] if own >= first else -other["difference"]
        chance = "identical" if other["p_value"] is None else f"p = {other['p_value']:.4f}"
        by = format_signed(change, digits_of(row["metric"]))
        facts.append(f"{title_of(row['metric'])} {by}, {chance}")
    if tested["p_value"] < _SIGNIFICANT:
        difference = f"{better} is better than {worse} by {high - low:.2f} BLEU"
    else:
        difference += ", which may be chance"
    return f"{difference} ({'; '.join(facts)})."


def _text(
    evaluation: Evaluation,
    signatures: Mapping[str, str],
    tests: Sequence[dict[str, Any]],
    where: str,
) -> str:
    signed = "; ".join(f"{title_of(name)} {text}" for name, text in signatures.items())
    sentences = [
        f"Corpus scores are sacreBLEU's, in percent: {signed}"
        + ("; for TER, lower is better." if "ter" in signatures else "."),
        evaluation.describe_tokens(),
    ]
    for test in tests:
        sentences.append(
            f"SacreBLEU's {_TESTS[test['test']]} with {test['samples']:,} samples (seed "
            f"{test['seed']}): p "
            f"is the probability of a difference from {evaluation.names[0]} at least this large by "
            "chance. "
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


def _test_tables(test: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a test: of metrics in percent, and of scores by other programs."""
    metrics = [row for row in test["metrics"] if row["metric"] in MEASURE_KINDS]
    others = [row for row in test["metrics"] if row["metric"] not in MEASURE_KINDS]
    tables = [_test_table(test, metrics, "percent", 2)]
    return [*tables, _test_table(test, others, "score", 4)] if others else tables


def _test_table(
    test: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], unit: str, digits: int
) -> Table:
    """Return a test: scores, intervals if there are any, p-values."""
    rows: list[list[Cell]] = []
    has_intervals = test["test"] == "bootstrap"
    for row in metrics:
        for tested in row["systems"]:
            # As text with four digits: 0.00 would claim more than a few hundred samples can show.
            p_value = None if tested["p_value"] is None else f"{tested['p_value']:.4f}"
            p_value = "identical" if tested["identical"] else p_value
            change = tested["difference"]
            cells: list[Cell] = [None if change is None else format_signed(change, digits)]
            if has_intervals:
                interval = format_interval(tested["difference_interval_95"], digits, "+")
                cells = [tested["bootstrap_mean"], tested["interval_95"], *cells, interval]
            metric = title_of(row["metric"])
            rows.append([metric, tested["system"], tested["score"], *cells, p_value])
    title = f"{_TESTS[test['test']].capitalize()} against {test['against']}"
    headings = ["metric", "system", unit, "difference", "p"]
    if has_intervals:
        headings[3:] = ["mean", "mean ± (95 %)", "difference", "difference (95 %)", "p"]
    return Table(f"{title} ({test['samples']:,} samples)", headings, rows, digits)


def _ngram_tables(pair: Mapping[str, Any]) -> list[Table]:
    """Return the n-grams on which two systems differ, one table per system."""
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
    """Return the sentences on which two systems differ most, one table per system."""
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


def _scores_picture(
    names: Sequence[str],
    scores: Mapping[str, Sequence[float]],
    tests: Sequence[dict[str, Any]],
) -> Picture:
    bootstrap = next((test for test in tests if test["test"] == "bootstrap"), None)
    note = ""
    if bootstrap is not None:
        note = f"Lines: 95 % of {bootstrap['samples']:,} bootstrap samples"
    caption = "Corpus scores of all systems." + (f" {note}." if note else "")
    series = []
    for index, system in enumerate(names):
        ends: list[list[float]] = []
        if bootstrap is not None:
            metrics = [row for row in bootstrap["metrics"] if row["metric"] in scores]
            tested = [row["systems"][index] for row in metrics]
            # The interval is around the mean of the samples, which is not quite the score.
            ends = [
                [test["bootstrap_mean"] + sign * test["interval_95"] for test in tested]
                for sign in (-1, 1)
            ]
        series.append(Series(system, [own[index] for own in scores.values()], *ends))
    x_label = "metric" + (" (for TER, lower is better)" if "ter" in scores else "")
    groups = [Group(title_of(metric)) for metric in scores]
    return Picture(
        "scores",
        caption,
        lambda path: draw_bars(
            groups,
            series,
            path,
            title="Corpus scores",
            x_label=x_label,
            y_label="score (percent)",
            note=note,
        ),
    )


def _words(words: Mapping[str, Any], where: str) -> tuple[Table, Picture]:
    systems, sizes = words["systems"], words["reference_words"]
    names = [system["system"] for system in systems]
    # If the references have no words, there is no F-measure.
    kept = [index for index, size in enumerate(sizes) if size]
    columns = [[percent(system["f_measure"][n]) for n in kept] for system in systems]
    groups = [Group(words["buckets"][n], sizes[n]) for n in kept]
    table = Table(
        "Word accuracy by frequency (F-measure in percent)",
        [f"times in the {where}", "reference words", *names],
        [[group.label, group.size, *row] for group, *row in zip(groups, *columns, strict=True)],
    )
    picture = Picture(
        "word-accuracy",
        f"Accuracy of words by their frequency in the {where}. Under each bucket "
        "is the number of its words in the references.",
        lambda path: draw_bars(
            groups,
            [Series(*pair) for pair in zip(names, columns, strict=True)],
            path,
            title="Word accuracy by frequency",
            x_label=f"occurrences of the word in the {where}",
            y_label="F-measure (percent)",
            size_label="words",
        ),
    )
    return table, picture
