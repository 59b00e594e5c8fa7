"""The section on exits: its tables, pictures and numbers; `exits` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.exits import (
    ExitTraces,
    Histogram,
    correlation,
    length_edges,
    sentence_confidence,
    sentence_lengths,
    token_confidence,
    tokens_of,
)
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.search.traces import Trace

TEXT = (
    "A decoder with exits may predict each token from an earlier block than its last. The end "
    "symbol is a token with an exit here. The relative position of a token is 0 for the first of a "
    "hypothesis and 1 for its end symbol; the beginning is what lies before 0.1, the end what lies "
    "behind 0.9, the end symbol included. Confidence is the probability that the model gave the "
    "token at its exit; a sentence's is the mean of its tokens', its exit the mean of their exits, "
    "and its source length is in units without the end symbol. r is Pearson's correlation."
)


def section(systems: Sequence[ExitTraces], references: Sequence[str] | None = None) -> Section:
    """Return where the tokens of all systems left; references are shown beside the examples."""
    step = 1.0 if all(one.is_by_sentence for one in systems) else 0.5
    edges, blocks = length_edges(systems), max(one.num_exits for one in systems)
    systems = [dataclasses.replace(one, num_exits=blocks) for one in systems]
    by_token = [token_confidence(one) for one in systems]
    by_confidence = [sentence_confidence(one, step) for one in systems]
    by_length = [sentence_lengths(one, step, edges) for one in systems]
    pictures = [_places(systems), _tokens(by_token), *_sentences(by_length, by_confidence, step)]
    if any(one.examples for one in systems):
        pictures.append(_examples(systems, references))
    rows = zip(systems, by_token, by_confidence, by_length, strict=True)
    return Section(
        "exits",
        "Where tokens leave the decoder",
        TEXT,
        [_summary(systems), _shares(systems)],
        pictures,
        {"systems": [_values(*row, references) for row in rows]},
    )


def _summary(systems: Sequence[ExitTraces]) -> Table:
    return Table(
        "Average exits (blocks per token); r: with confidence, with the source's length",
        ["system", "tokens", "all", "begin", "end", "confidence", "r conf.", "r length"],
        [
            [
                one.system,
                len(one.exits),
                one.average_exit,
                _mean(one, one.at_beginning),
                _mean(one, one.near_end),
                float(one.confidence.mean()),
                correlation(one.exits, one.confidence),
                correlation(one.sentence_exits, one.source_lengths),
            ]
            for one in systems
        ],
    )


def _shares(systems: Sequence[ExitTraces]) -> Table:
    most = systems[0].num_exits
    rows: list[list[str | float | None]] = []
    for one in systems:
        for where, chosen in _wheres(one):
            shares = one.distribution(chosen)
            told = [None] * most if shares is None else [100 * share for share in shares]
            rows.append([one.system, where, *told])
    columns = ["system", "tokens", *(f"exit {exit}" for exit in range(1, most + 1))]
    return Table("Tokens that leave at each exit (percent)", columns, rows, 1)


def _wheres(one: ExitTraces) -> list[tuple[str, Any]]:
    return [("all", None), ("beginning", one.at_beginning), ("end", one.near_end)]


def _mean(one: ExitTraces, chosen: Any) -> float | None:
    return float(one.exits[chosen].mean()) if chosen.any() else None


def _values(
    one: ExitTraces,
    by_token: Histogram,
    by_confidence: Histogram,
    by_length: Histogram,
    references: Sequence[str] | None,
) -> dict[str, Any]:
    return {
        "system": one.system,
        "blocks": one.num_exits,
        "sentences": len(one.sentence_exits),
        "tokens": len(one.exits),
        "end_symbols_counted": True,
        "exits_by_sentence": one.is_by_sentence,
        "average_exit": one.average_exit,
        "average_exit_beginning": _mean(one, one.at_beginning),
        "average_exit_near_end": _mean(one, one.near_end),
        "mean_confidence": float(one.confidence.mean()),
        "correlation_exit_confidence": correlation(one.exits, one.confidence),
        "correlation_sentence_exit_confidence": correlation(
            one.sentence_exits, one.sentence_confidence
        ),
        "correlation_sentence_exit_source_length": correlation(
            one.sentence_exits, one.source_lengths
        ),
        "shares": {where: one.distribution(chosen) for where, chosen in _wheres(one)},
        "tokens_by_exit_and_confidence": by_token.values(),
        "sentences_by_exit_and_confidence": by_confidence.values(),
        "sentences_by_exit_and_source_length": by_length.values(),
        "examples": [_example(trace, references) for trace in one.examples],
    }


def _example(trace: Trace, references: Sequence[str] | None) -> dict[str, Any]:
    return {
        "line": trace.line,
        "source": list(trace.source),
        "reference": None if references is None else references[trace.line - 1],
        "tokens": [
            {"token": token, "exit": exit, "confidence": confidence}
            for token, exit, confidence in tokens_of(trace)
        ],
    }


def _places(systems: Sequence[ExitTraces]) -> Picture:
    def draw(path: Path) -> None:
        from nmtgrid.analysis.plots_exits import draw_places

        draw_places(systems, path)

    return Picture(
        "exits-places",
        "Exits at the beginning of the hypotheses (relative position below 0.1, filled) and near "
        "their end (above 0.9, the end symbol counted, outlined), in percent of those tokens.",
        draw,
    )


def _tokens(found: Sequence[Histogram]) -> Picture:
    return Picture(
        "exits-confidence",
        "Tokens by exit and confidence, in percent of all tokens, the end symbols counted; colours "
        "grow with the square root.",
        _histograms(found, "confidence (probability)", "exit (block)", "tokens"),
    )


def _sentences(
    by_length: Sequence[Histogram], by_confidence: Sequence[Histogram], step: float
) -> list[Picture]:
    what = "exit (block)" if step == 1 else "mean exit (blocks)"
    rounded = "" if step == 1 else f" Mean exits are rounded to the nearest {step:g}."
    told = f"in percent of all sentences; colours grow with the square root.{rounded}"
    return [
        Picture(
            "exits-source-lengths",
            f"Sentences by exit and source length, {told}",
            _histograms(by_length, "source length (units)", what, "sentences"),
        ),
        Picture(
            "exits-sentence-confidence",
            f"Sentences by exit and mean confidence, {told}",
            _histograms(by_confidence, "mean confidence (probability)", what, "sentences"),
        ),
    ]


def _histograms(
    found: Sequence[Histogram], x_label: str, y_label: str, unit: str
) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        from nmtgrid.analysis.plots_exits import draw_histograms

        draw_histograms(found, path, x_label=x_label, y_label=y_label, unit=unit)

    return draw


def _examples(systems: Sequence[ExitTraces], references: Sequence[str] | None) -> Picture:
    def draw(path: Path) -> None:
        from nmtgrid.analysis.plots_exit_examples import draw_examples

        draw_examples(systems, references, path)

    return Picture(
        "exits-examples",
        "Hypotheses with the exit of each token above it (blue) and its confidence below it "
        "(grey); </s> is the end symbol. Under each stands its source"
        + (" (units)." if references is None else " (units) and the reference."),
        draw,
    )
