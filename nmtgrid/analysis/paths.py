"""READ/WRITE paths of online systems over word alignments (figures 4.17 and 4.18).

A path is what traces of `nmtgrid decode --stream` call `reads`; `analyze paths` and the report show
the section.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.alignment import soft_alignments
from nmtgrid.analysis.alignment.aligner import Advance, AlignerSettings, align
from nmtgrid.analysis.alignment.pharaoh import Heuristic, Links, read_links
from nmtgrid.analysis.alignment.soft_alignments import join_units, words_of_units
from nmtgrid.analysis.plotting.grids import GridRow, PathGrid, draw_paths
from nmtgrid.analysis.section import Picture, Section, Table, percent
from nmtgrid.analysis.systems import read_text
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.spans import plural
from nmtgrid.base.subword_marks import mark_of
from nmtgrid.metrics.latency import sentence_latency, token_delays, word_delays
from nmtgrid.search.traces import Trace, read_traces

Unit = Literal["token", "word"]
"""Subword units, or the tokenised words that they form: traces do not have raw words."""
Words = list[list[str]]


@dataclasses.dataclass(frozen=True)
class WrittenPath:
    """A line's units on both sides, and the number of source units read for each target unit.

    `links` are of units, `shares` [T, S] are the model's alignment; None if not known.
    """

    line: int
    source: Sequence[str]
    target: Sequence[str]
    delays: Sequence[int]
    links: Links | None
    shares: NDArray[numpy.float64] | None

    @property
    def anticipated(self) -> list[int] | None:
        """Return the target units written before a source unit aligned with them was read."""
        if self.links is None:
            return None
        return sorted({t for s, t in self.links if s >= self.delays[t]})


@dataclasses.dataclass(frozen=True)
class SystemPaths:
    """A system's paths line by line, and the average lagging of each (NaN: undefined)."""

    name: str
    path: Path
    paths: Sequence[WrittenPath]
    lagging: NDArray[numpy.float64]

    def numbers(self, line: int | None = None) -> dict[str, Any]:
        """Return delays and shares over all lines, or of the one at index `line`, as JSON keys.

        Unknown values are None: shares without links, delays if nothing is written.
        """
        paths = self.paths if line is None else [self.paths[line]]
        lagging = self.lagging if line is None else self.lagging[line : line + 1]
        known = lagging[~numpy.isnan(lagging)]
        written = sum(len(path.target) for path in paths)
        values = {
            "written": written,
            "mean_delay": sum(sum(path.delays) for path in paths) / written if written else None,
            "al": float(known.mean()) if len(known) else None,
            "anticipation_percent": percent(_share([path.anticipated for path in paths], written)),
        }
        if line is not None:
            return {"line": paths[0].line, **values}
        linked = [None if path.links is None else {t for _, t in path.links} for path in paths]
        aligned = _share(linked, written)
        unaligned = None if aligned is None else 1.0 - aligned
        return values | {"unaligned_percent": percent(unaligned)}


def _share(units: Sequence[Collection[int] | None], written: int) -> float | None:
    """Return the number of these units of each line as a share of the units written."""
    counts = [len(line) for line in units if line is not None]
    return sum(counts) / written if written and len(counts) == len(units) else None


def read_traced(files: Mapping[str, Path]) -> dict[str, list[Trace]]:
    """Return the traces of all systems.

    Raises InputError as `check_traced` does.
    """
    systems = {name: list(read_traces(path)) for name, path in files.items()}
    check_traced(files, systems)
    return systems


def check_traced(files: Mapping[str, Path], systems: Mapping[str, Sequence[Trace]]) -> None:
    """Raise InputError for traces without `reads`, and for systems whose lines differ."""
    first, first_path = next(iter(systems.values())), next(iter(files.values()))
    for name, path in files.items():
        traces = systems[name]
        for line, trace in enumerate(traces, start=1):
            if trace.reads is None and trace.target:
                raise InputError(
                    "it has no `reads`, which tell when each token was written.",
                    "Write traces with `nmtgrid decode --stream --traces FILE`.",
                    path=path,
                    line=line,
                )
        if len(traces) != len(first):
            raise InputError(
                f"it has {plural(len(traces), 'line')}, but {first_path} has {len(first):,}.",
                "Give traces of the same text.",
                path=path,
            )
        for line, (trace, other) in enumerate(zip(traces, first, strict=True), start=1):
            # Units may differ between systems, but not the words that they form.
            if (trace.line, join_units(trace.source)) != (other.line, join_units(other.source)):
                raise InputError(
                    f"its source is not that of {first_path}.",
                    "Give traces of the same text, preprocessed in the same way.",
                    path=path,
                    line=line,
                )


def read_references(path: Path, traces: Iterable[Trace]) -> list[str]:
    """Return the references of all lines of the traces; there may be more.

    Raises InputError for a file that ends before the last of these lines.
    """
    references = read_text(path)
    last = max((trace.line for trace in traces), default=0)
    if len(references) < last:
        raise InputError(
            f"it has {plural(len(references), 'line')}, but there are traces of line {last:,}.",
            "Give the references of the text of the traces.",
            path=path,
        )
    return references


def as_paths(
    files: Mapping[str, Path],
    traced: Mapping[str, Sequence[Trace]],
    links: Mapping[str, Sequence[Links]] | None,
    unit: Unit,
) -> list[SystemPaths]:
    """Return the paths, with links of words for each system, or with the models' alignments."""
    systems = []
    for name, traces in traced.items():
        known: Sequence[Links | None] = [None] * len(traces) if links is None else links[name]
        paths = [_path(trace, known[line], unit) for line, trace in enumerate(traces)]
        lagging = sentence_latency(
            [path.delays for path in paths], [len(path.source) for path in paths]
        ).al
        systems.append(SystemPaths(name, files[name], paths, lagging))
    return systems


def learned_links(
    traced: Mapping[str, Sequence[Trace]],
    more: tuple[Words, Words],
    heuristic: Heuristic,
    advance: Advance,
) -> tuple[dict[str, Sequence[Links]], str]:
    """Return each system's links of words by nmtgrid's aligner, and a sentence on how it learned.

    It learns from all systems' translations together, and from `more` text.
    """
    source = [join_units(trace.source) for traces in traced.values() for trace in traces]
    target = [join_units(trace.target) for traces in traced.values() for trace in traces]
    pairs = align(source, target, AlignerSettings(heuristic=heuristic), more, advance)
    # One text for all systems: the more pairs, the better the links.
    links = iter(pairs.links)
    by_system: dict[str, Sequence[Links]] = {
        name: [next(links) for _ in traces] for name, traces in traced.items()
    }
    return by_system, pairs.origin


def given_links(
    traced: Mapping[str, Sequence[Trace]], files: Mapping[str, Path]
) -> dict[str, Sequence[Links]]:
    """Return each system's links of words from its Pharaoh file. Raises InputError if invalid."""
    return {
        name: read_links(
            files[name],
            [(len(join_units(trace.source)), len(join_units(trace.target))) for trace in traces],
        )
        for name, traces in traced.items()
    }


def _path(trace: Trace, links: Links | None, unit: Unit) -> WrittenPath:
    """Return a trace as a path; `links` are of words (None: those of the trace's own shares)."""
    source, target = words_of_units(trace.source), words_of_units(trace.target)
    reads = trace.reads or []
    if unit == "word":
        shown = soft_alignments.by_words(trace)
        sizes = [source.count(word) for word in range(len(shown.source))]
        # A word is written with its last unit, and counts as read with its first.
        delays = word_delays(reads, sizes, trace.target, mark_of(trace.target))
    else:
        shown = trace
        delays = token_delays(reads, len(trace.source), len(target))
        links = None if links is None else _of_units(links, source, target)
    shares = soft_alignments.shares(shown)
    return WrittenPath(
        trace.line,
        shown.source,
        shown.target,
        delays,
        links,
        None if shares is None or links is not None else shares[:-1, :-1],
    )


def _of_units(links: Links, source: Sequence[int], target: Sequence[int]) -> Links:
    """Return links of words as links of their units, spread over these in order.

    `source` and `target` have the number of each unit's word.
    """
    source_units, target_units = (
        {word: [unit for unit, own in enumerate(numbers) if own == word] for word in {*numbers}}
        for numbers in (source, target)
    )
    spread: set[tuple[int, int]] = set()
    for source_word, target_word in links:
        read, written = source_units[source_word], target_units[target_word]
        for index, unit in enumerate(written):
            first = index * len(read) // len(written)
            # Rounded up, so that each unit has at least one to be linked with.
            last = -(-(index + 1) * len(read) // len(written))
            spread.update((s, unit) for s in read[first : max(last, first + 1)])
    return sorted(spread)


# Lines that are drawn by default: their least and greatest source units, and their number.
_SHORTEST, _LONGEST, _SHOWN = 7, 18, 3
# Grids in a row.
_ABREAST = 3
# What is counted: raw words, which online evaluation counts, are not in the traces.
_NAMES: dict[Unit, str] = {"token": "token", "word": "tokenised word"}


def paths_section(
    systems: Sequence[SystemPaths],
    lines: Sequence[int],
    unit: Unit,
    origin: str,
    references: Sequence[str] | None = None,
) -> Section:
    """Return the systems' averages, the numbers of `lines` (none: typical ones), and their paths.

    `origin` says where the links come from. Raises ConfigError for a line that is missing or empty.
    """
    # Each line once, in the order in which they were named.
    translated = [
        (path.line, len(path.source))
        for index, path in enumerate(systems[0].paths)
        if all(system.paths[index].target for system in systems)
    ]
    shown = list(dict.fromkeys(lines)) or typical_lines(translated)
    indices = {path.line: index for index, path in enumerate(systems[0].paths)}
    if missing := [line for line in shown if line not in indices]:
        raise ConfigError(f"There is no line {missing[0]} in the traces.")
    for line in shown:
        if not any(system.paths[indices[line]].target for system in systems):
            raise ConfigError(f"There is no path of line {line}: no system wrote anything there.")
    name = _NAMES[unit]
    values = [_values(system) for system in systems]
    columns = {
        f"written ({name}s)": "written",
        "mean delay": "mean_delay",
        "AL": "al",
        "anticipated (%)": "anticipation_percent",
    }
    of_all = {"system": "system", "lines": "sentences", **columns}
    of_all["without link (%)"] = "unaligned_percent"
    tables = [Table.of(f"READ/WRITE paths: delays in source {name}s", of_all, values)]
    pictures = []
    if shown:
        # A line's number is a name: without thousands separators.
        lines_shown = [
            {**row["lines"][indices[line]], "line": str(line), "system": row["system"]}
            for line in shown
            for row in values
        ]
        of_lines = {"line": "line", "system": "system", **columns}
        tables.append(Table.of("The lines of the figure", of_lines, lines_shown))
        rows = [row for line in shown for row in _rows(systems, indices[line], line, references)]
        pictures.append(_picture(rows, shown, unit))
    text = (
        f"The delay of a target {name} is the number of source {name}s read before it was "
        "written; AL is the average lagging (thesis' convention). Anticipated are the target "
        f"{name}s written before some source {name} aligned with them had been read, in percent "
        f"of all target {name}s. The end symbols count on neither side. {origin}"
        + (" Links of words are spread over their units in order." if unit == "token" else "")
    )
    return Section(
        "paths", "READ/WRITE paths", text, tables, pictures, {"unit": name, "systems": values}
    )


def typical_lines(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the first lines of medium length, or of any; `sizes` are (line, source units)."""
    middling = [line for line, size in sizes if _SHORTEST <= size <= _LONGEST]
    return (middling or [line for line, size in sizes if size <= 3 * _LONGEST])[:_SHOWN]


def _values(system: SystemPaths) -> dict[str, Any]:
    return {
        "system": system.name,
        "traces": str(system.path),
        "sentences": len(system.paths),
        **system.numbers(),
        "lines": [system.numbers(line) for line in range(len(system.paths))],
    }


def _rows(
    systems: Sequence[SystemPaths], index: int, line: int, references: Sequence[str] | None
) -> list[GridRow]:
    """Return the grids of one line, a few in a row; the first row says which line it is."""
    grids = []
    for style, system in enumerate(systems):
        path, values = system.paths[index], system.numbers(index)
        title = system.name
        if values["al"] is not None:
            title += f" (AL {values['al']:.2f}"
            if values["anticipation_percent"] is not None:
                title += f", {values['anticipation_percent']:.0f} % anticipated"
            title += ")"
        links = tuple(path.links or ())
        grids.append(
            PathGrid(title, path.source, path.target, path.delays, links, path.shares, style)
        )
    caption = f"Line {line}"
    if references is not None:
        caption += f", reference: {references[line - 1]}"
    return [
        GridRow("" if first else caption, grids[first : first + _ABREAST])
        for first in range(0, len(grids), _ABREAST)
    ]


def _picture(rows: Sequence[GridRow], lines: Sequence[int], unit: Unit) -> Picture:
    caption = (
        f"Paths of line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}: the line "
        "runs right for a READ and down for a WRITE; the source read when a "
        f"{_NAMES[unit]} was written is tinted. "
    )
    if any(grid.links for row in rows for grid in row.grids):
        caption += "Squares are the word alignment, hollow ones if the source had not been read."
    else:
        caption += "Grey shows the models' soft alignment."
    title = "READ/WRITE paths over the alignment"
    return Picture("paths", caption, lambda path: draw_paths(rows, path, title=title))
