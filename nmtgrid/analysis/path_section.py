"""Tables and pictures of READ/WRITE paths over alignments (figures 4.17 and 4.18)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.paths import SystemPaths, Unit, WrittenPath
from nmtgrid.analysis.plotting.paths import Grid, Row, draw_paths
from nmtgrid.analysis.section import Cell, Picture, Section, Table
from nmtgrid.base.errors import ConfigError

_SHORTEST, _LONGEST, _SHOWN = 7, 18, 3
"""Source units of lines that are drawn unasked, and how many of them."""
_ABREAST = 3
"""Grids beside each other."""
_NAMES: dict[Unit, str] = {"token": "token", "word": "tokenised word"}
"""What is counted: raw words, which online evaluation counts, are not in the traces."""


def section(
    systems: Sequence[SystemPaths],
    lines: Sequence[int],
    unit: Unit,
    told: str,
    references: Sequence[str] | None = None,
) -> Section:
    """Return the systems' averages, the chosen lines' numbers, and a picture of their paths.

    `told` says where the links come from. Raises ConfigError for a line that is not there, or
    empty.
    """
    chosen = list(dict.fromkeys(lines)) or _typical(systems)
    held = {one.line: place for place, one in enumerate(systems[0].paths)}
    if missing := [line for line in chosen if line not in held]:
        raise ConfigError(f"There is no line {missing[0]} in the traces.")
    for line in chosen:
        if not any(system.paths[held[line]].target for system in systems):
            raise ConfigError(f"There is no path of line {line}: no system wrote anything there.")
    tables = [_table(systems, unit)]
    pictures = []
    if chosen:
        tables.append(_lines_table(systems, [(line, held[line]) for line in chosen], unit))
        rows = [row for line in chosen for row in _rows(systems, held[line], line, references)]
        pictures.append(_picture(rows, chosen, unit))
    return Section(
        "paths",
        "READ/WRITE paths",
        _text(unit, told),
        tables,
        pictures,
        {"unit": _NAMES[unit], "systems": [_report(one) for one in systems]},
    )


def _text(unit: Unit, told: str) -> str:
    name = _NAMES[unit]
    return (
        f"When what was written: the delay of a target {name} is how many source {name}s had been "
        "read by then; AL is the average lagging (thesis' convention). Anticipated is what was "
        f"written before some source {name} aligned with it had been read, in percent of all "
        f"target {name}s. The end symbols count on neither side. {told}"
        + (" Links of words are spread over their pieces in order." if unit == "token" else "")
    )


def _typical(systems: Sequence[SystemPaths]) -> list[int]:
    """Return the first lines of middling length that all translate, or that all translate."""
    good, others = [], []
    for place, one in enumerate(systems[0].paths):
        if not all(system.paths[place].target for system in systems):
            continue
        if _SHORTEST <= len(one.source) <= _LONGEST:
            good.append(one.line)
        elif len(one.source) <= 3 * _LONGEST:
            others.append(one.line)
    return (good or others)[:_SHOWN]


def _table(systems: Sequence[SystemPaths], unit: Unit) -> Table:
    columns = ["system", "lines", f"written ({_NAMES[unit]}s)", "mean delay", "AL",
               "anticipated (%)", "without link (%)"]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            one.name, len(one.paths), one.written, one.mean_delay, one.mean_lagging,
            _percent(one.anticipation), _percent(one.unaligned),
        ]
        for one in systems
    ]  # fmt: skip
    return Table(f"READ/WRITE paths: delays in source {_NAMES[unit]}s", columns, rows)


def _lines_table(
    systems: Sequence[SystemPaths], chosen: Sequence[tuple[int, int]], unit: Unit
) -> Table:
    rows: list[list[Cell]] = []
    for line, place in chosen:
        for one in systems:
            values = _of_line(one, place)
            rows.append([str(line), one.name, *list(values.values())[1:]])
    written = f"written ({_NAMES[unit]}s)"
    columns = ["line", "system", written, "mean delay", "AL", "anticipated (%)"]
    return Table("The lines of the picture", columns, rows)


def _of_line(system: SystemPaths, place: int) -> dict[str, Any]:
    """Return the numbers of one line as JSON keys."""
    one, lag = system.paths[place], float(system.lagging[place])
    early, written = one.anticipated, len(one.target)
    return {
        "line": one.line,
        "written": written,
        "mean_delay": sum(one.delays) / written if written else None,
        "al": None if math.isnan(lag) else lag,
        "anticipation_percent": 100.0 * len(early) / written
        if early is not None and written
        else None,
    }


def _report(system: SystemPaths) -> dict[str, Any]:
    return {
        "system": system.name,
        "traces": str(system.path),
        "sentences": len(system.paths),
        "written": system.written,
        "mean_delay": system.mean_delay,
        "al": system.mean_lagging,
        "anticipation_percent": _percent(system.anticipation),
        "unaligned_percent": _percent(system.unaligned),
        "lines": [_of_line(system, place) for place in range(len(system.paths))],
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def _rows(
    systems: Sequence[SystemPaths], place: int, line: int, references: Sequence[str] | None
) -> list[Row]:
    """Return the grids of one line, a few abreast; the first row says which line it is."""
    grids = [
        _grid(system, system.paths[place], place, number) for number, system in enumerate(systems)
    ]
    caption = f"Line {line}"
    if references is not None and line <= len(references):
        caption += f", reference: {references[line - 1]}"
    return [
        Row(caption if first == 0 else "", grids[first : first + _ABREAST])
        for first in range(0, len(grids), _ABREAST)
    ]


def _grid(system: SystemPaths, one: WrittenPath, place: int, number: int) -> Grid:
    values = _of_line(system, place)
    title = system.name
    if values["al"] is not None:
        title += f" (AL {values['al']:.2f}"
        if values["anticipation_percent"] is not None:
            title += f", {values['anticipation_percent']:.0f} % anticipated"
        title += ")"
    return Grid(
        title, one.source, one.target, one.delays, tuple(one.links or ()), one.shares, number
    )


def _picture(rows: Sequence[Row], chosen: Sequence[int], unit: Unit) -> Picture:
    def draw(path: Path) -> None:
        draw_paths(rows, path, title="READ/WRITE paths over the alignment")

    numbers = ", ".join(map(str, chosen))
    caption = (
        f"Paths of line{'s' if len(chosen) > 1 else ''} {numbers}: right along the line is "
        "reading, down is writing; what had been read when a "
        f"{_NAMES[unit]} was written is tinted. "
    )
    if any(grid.links for row in rows for grid in row.grids):
        caption += "Squares are the word alignment, hollow ones of what had not been read yet."
    else:
        caption += "Grey is what the models looked at."
    return Picture("paths", caption, draw)
