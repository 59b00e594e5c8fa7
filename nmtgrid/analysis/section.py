"""The result of an analysis: text, tables, figures and JSON; and reading results from a file.

`nmtgrid analyze` prints and draws a `Section`; the report lays sections out on a page.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.records import read_record

_PLAIN = r"[-+−±<≤>≥]?\s?[\d,]*\.?\d+(e[-+]?\d+)?"
_NUMBER = re.compile(rf"({_PLAIN} )?\[{_PLAIN}, {_PLAIN}\]|{_PLAIN}|-")
Cell = str | int | float | None
"""None, for a number that does not exist, is shown as a dash."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with units in its headings; floats are shown with `digits` decimals."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 2

    @classmethod
    def of(
        cls,
        title: str,
        columns: Mapping[str, str],
        rows: Sequence[Mapping[str, Any]],
        digits: int = 2,
    ) -> Table:
        """Return the table of JSON rows; `columns` maps each heading to its key."""
        cells = [[row[key] for key in columns.values()] for row in rows]
        return cls(title, list(columns), cells, digits)

    def formatted(self) -> list[list[str]]:
        """Return the cells as they are shown."""
        return [[format_cell(cell, self.digits) for cell in row] for row in self.rows]

    @property
    def is_numeric(self) -> list[bool]:
        """Whether each column has only numbers (also as text) and dashes."""
        columns = ([row[n] for row in self.rows] for n in range(len(self.columns)))
        cells = [[cell for cell in column if cell is not None] for column in columns]
        return [
            bool(column)
            and all(not isinstance(cell, str) or bool(_NUMBER.fullmatch(cell)) for cell in column)
            for column in cells
        ]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure: `draw` writes it as .png or .svg; `name` is its file name without suffix."""

    name: str
    caption: str
    draw: Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Section:
    """The result of one analysis: `text` explains what is shown and how it was computed.

    `values` is its JSON, `finding` the main result, for the top of a page. Titles of figures name
    the `corpus`.
    """

    name: str
    title: str
    text: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    values: Mapping[str, Any]
    corpus: str = ""
    finding: str = ""

    def report(self) -> dict[str, Any]:
        """Return the JSON, with the corpus and the finding if they are known."""
        known = {"corpus": self.corpus, "finding": self.finding}
        return {**self.values, **{key: text for key, text in known.items() if text}}


Interval = tuple[float, float]


def format_interval(interval: Interval | None, digits: int = 1, sign: str = "") -> str | None:
    """Return an interval as displayed: [1.0, 2.5]; with `sign` `+` also of positive ends."""
    if interval is None:
        return None
    low, high = (format_signed(end, digits, sign) for end in interval)
    return f"[{low}, {high}]"


def format_signed(value: float, digits: int, sign: str = "+") -> str:
    """Return a number as displayed, with a typographic minus; see `format_interval`."""
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def format_cell(cell: Cell, digits: int = 2) -> str:
    """Return a cell as displayed: 12,345 and 1.50, a dash for a missing value."""
    # JSON's null and Python's NaN are the same to a reader.
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.{digits}f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return cell


def percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


NAME = "results.json"

Parsed = TypeVar("Parsed")


def read_result_file(
    path: Path, parse: Callable[[Any], Parsed], *, content: str, advice: str
) -> Parsed:
    """Return the result of `parse` on a file, or on the `results.json` in a folder.

    Raises InputError if `parse` raises ValueError (the file contains no `content`), StorageError
    for a missing file, invalid JSON and a file that has been altered since it was written.
    """
    path = path / NAME if path.is_dir() else path
    try:
        # A result edited by hand is not a result: its checksum no longer fits.
        values = read_record(path, dict[str, Any])
    except StorageError as fault:
        raise StorageError(fault.problem, fault.advice or advice) from fault
    try:
        return parse(values)
    except ValueError as fault:
        raise InputError(f"it contains no {content}: {fault}.", advice, path=path) from fault
