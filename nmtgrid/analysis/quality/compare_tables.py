"""Tables of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from nmtgrid.analysis.quality.compare_analysis import WordAccuracy
from nmtgrid.analysis.quality.compare_scores import Scores, Test
from nmtgrid.analysis.quality.evaluation import TITLES, Evaluation
from nmtgrid.analysis.quality.words import Differing, Example, NGram
from nmtgrid.analysis.section import Cell, Table

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
