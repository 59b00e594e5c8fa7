"""Soft alignments of several models in one table and side by side (table 3.6, figure 3.9)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.alignment.pharaoh import AlignmentErrorRate, Links, error_rate, read_gold
from nmtgrid.analysis.alignment.soft_alignments import (
    AlignmentStatistics,
    by_words,
    coverage,
    entropy,
    join_units,
    links,
    shares,
    statistics,
)
from nmtgrid.analysis.plotting.grids import HeatMap, draw_maps
from nmtgrid.analysis.plotting.lines import draw_points
from nmtgrid.analysis.section import Cell, Picture, Section, Table
from nmtgrid.base.errors import InputError
from nmtgrid.base.spans import plural
from nmtgrid.search.traces import Trace, read_traces

_KINDS = {"weights": "shares", "energies": "energies"}
END = "</s>"


@dataclasses.dataclass(frozen=True)
class AlignmentOptions:
    """The lines to draw (none: the first that all models align), and how links are extracted.

    `words` joins units to words, `threshold` links all shares that reach it (None: the largest).
    """

    lines: Sequence[int] = ()
    words: bool = False
    threshold: float | None = None


@dataclasses.dataclass(frozen=True)
class ModelAlignments:
    """Alignment statistics of a model, the kind of its scores, its links, and lines to draw."""

    name: str
    path: Path
    kind: str
    averages: AlignmentStatistics
    links: Sequence[Links]
    sizes: Sequence[tuple[int, int]]
    examples: Mapping[int, Trace]
    has_subwords: bool
    """Whether some words of the source have several units."""
    error: AlignmentErrorRate | None = None


def read_models(
    files: Mapping[str, Path], options: AlignmentOptions, gold: Path | None = None
) -> list[ModelAlignments]:
    """Return the alignments of all files of traces, one pass over each.

    Raises InputError for a file without alignments or without a requested line, for files with
    different source lines, and for invalid gold links.
    """
    sources: dict[int, str] = {}
    models: list[ModelAlignments] = []
    for name, path in files.items():
        # If no lines are named, all models show the first one that the first model aligns.
        lines = options.lines or ([*models[0].examples] if models else [])
        model = _read(name, path, dataclasses.replace(options, lines=lines), sources, not models)
        if len(model.links) < len(sources):
            raise InputError(
                f"it has {plural(len(model.links), 'line')}, but those of the first model have "
                f"{len(sources):,}.",
                "Averages of different sentences do not compare: give traces of the same text.",
                path=path,
            )
        if gold is not None:
            error = error_rate(model.links, read_gold(gold, model.sizes))
            model = dataclasses.replace(model, error=error)
        models.append(model)
    return models


def _read(
    name: str, path: Path, options: AlignmentOptions, sources: dict[int, str], is_first: bool
) -> ModelAlignments:
    examples, kinds = dict[int, Trace](), list[str]()
    all_links: list[Links] = []
    has_subwords = False
    sizes: list[tuple[int, int]] = []

    def alignments() -> Iterator[NDArray[numpy.float64]]:
        nonlocal has_subwords
        for trace in read_traces(path):
            words = join_units(trace.source)
            has_subwords |= len(words) < len(trace.source)
            text = " ".join(words)
            if is_first:
                sources[trace.line] = text
            # One may be a prefix of the other, because models cut long lines. Words, not units:
            # models may split them differently.
            other = sources.get(trace.line)
            if other is None or not (text.startswith(other) or other.startswith(text)):
                raise InputError(
                    f"the source of line {trace.line} is not that of the first model's traces.",
                    "Give traces of the same text, preprocessed in the same way.",
                    path=path,
                    line=trace.line,
                )
            # Statistics are those of what is drawn, links those that the options name.
            merged = by_words(trace) if options.words else trace
            sizes.append((len(merged.source), len(merged.target)))
            all_links.append(links(trace, words=options.words, threshold=options.threshold))
            if (alignment := shares(merged)) is not None:
                kinds.append(trace.kind)
                if trace.line in options.lines if options.lines else not examples:
                    examples[trace.line] = merged
                yield alignment

    averages = statistics(alignments())
    if averages is None:
        raise InputError(
            "the file contains no alignments.",
            "Run `nmtgrid decode --traces FILE` with a model that aligns.",
            path=path,
        )
    if missing := [line for line in options.lines if line not in examples]:
        raise InputError(f"it has no aligned line {missing[0]}.", path=path)
    return ModelAlignments(
        name, path, kinds[-1], averages, all_links, sizes, examples, has_subwords
    )


def alignments_section(models: Sequence[ModelAlignments], options: AlignmentOptions) -> Section:
    """Return averages of all models, a figure of them, and the chosen lines side by side."""
    unit = "word" if options.words else "token"
    comparison = Picture(
        "entropy-and-coverage",
        "Entropy and coverage of each model's alignments; upper left: sharp and complete.",
        lambda path: draw_points(
            [(model.name, model.averages.entropy, model.averages.coverage) for model in models],
            path,
            title="Sharpness and coverage of alignments",
            x_label=f"entropy (nats per target {unit}); lower is sharper",
            y_label=f"coverage (share of a source {unit})",
        ),
    )
    pictures = [comparison] if len(models) > 1 else []
    pictures += [
        Picture(
            f"alignments-line-{line}",
            f"Alignments of line {line}: source {unit}s along the top, target {unit}s down the "
            "side; darker is more. H is the mean entropy (nats), C the mean coverage of this line.",
            functools.partial(
                draw_maps,
                [heat(model.name, model.examples[line]) for model in models],
                title=f"Line {line}",
            ),
        )
        for line in models[0].examples
    ]
    return Section(
        "alignments",
        "Soft alignments",
        _text(models, unit),
        [_table(models, unit)],
        pictures,
        {
            "unit": unit,
            "systems": [
                {
                    "system": model.name,
                    "traces": str(model.path),
                    "kind": model.kind,
                    **dataclasses.asdict(model.averages),
                    "links": sum(map(len, model.links)),
                    **({} if model.error is None else dataclasses.asdict(model.error)),
                }
                for model in models
            ],
        },
    )


def _text(models: Sequence[ModelAlignments], unit: str) -> str:
    text = (
        "The weight that each model gives to each source "
        f"{unit} when it writes a target {unit}. Entropy (Eq. 3.24) is in nats per target {unit}: "
        "the lower, the sharper. Coverage (Eq. 3.25) is the share of a source "
        f"{unit} that is aligned to, at most 1 each, averaged over the corpus: at 1 nothing is "
        "overlooked. The end symbols count on both sides."
    )
    if any(model.kind == "energies" for model in models):
        text += (
            " For energies, which each source position adds to the score, shares are proportional "
            "to the positive parts."
        )
    if any(model.error is not None for model in models):
        text += (
            " AER, the alignment error rate, compares the links with manual ones: "
            "1 - (|A and S| + |A and P|) / (|A| + |S|)."
        )
    return text


def _table(models: Sequence[ModelAlignments], unit: str) -> Table:
    columns = ["model", "of", "sentences", "entropy (nats)", "coverage (share)"]
    rows: list[list[Cell]] = []
    for model in models:
        averages, error = model.averages, model.error
        row: list[Cell] = [
            model.name, _KINDS[model.kind], averages.sentences, averages.entropy, averages.coverage,
        ]  # fmt: skip
        rows.append(row if error is None else [*row, error.aer, error.precision, error.recall])
    if any(model.error is not None for model in models):
        columns += ["AER", "precision", "recall"]
    title = f"Alignments: entropy of a target {unit}, coverage of a source {unit}"
    return Table(title, columns, rows, digits=3)


def heat(name: str, trace: Trace) -> HeatMap:
    """Return the heat map of a trace with an alignment."""
    weights = shares(trace)
    assert weights is not None and trace.alignment is not None
    is_energy = trace.kind == "energies"
    return HeatMap(
        name,
        [*trace.source, *([END] if trace.source_end else [])],
        [*trace.target, END],
        trace.alignment,
        "part of the score (logits)" if is_energy else "share of the alignment",
        f"H {entropy(weights).mean():.2f}, C {coverage(weights).mean():.2f}",
        is_energy,
    )
