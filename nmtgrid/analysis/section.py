"""What every analysis returns: tables, pictures and numbers under one heading.

The command line prints the tables and draws the pictures into files; the report lays out the same
sections on one page. An analysis is a pure function that returns a `Section`; it prints nothing and
draws only when asked.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"[-+−±<≤>≥]?\s?[\d,]*\.?\d+(e[-+]?\d+)?|-")
Cell = str | int | float | None
"""None is shown as a dash: there is no such number."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under headings that carry units; `digits` stand behind the point of floats."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 2

    def told(self) -> list[list[str]]:
        """Return the cells as they are shown."""
        return [[tell(cell, self.digits) for cell in row] for row in self.rows]

    def is_numeric(self, column: int) -> bool:
        """Return whether a column holds numbers (also as text, and dashes) alone."""
        held = [row[column] for row in self.rows if row[column] is not None]
        return bool(held) and all(
            _NUMBER.fullmatch(cell) if isinstance(cell, str) else True for cell in held
        )


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure: `draw` writes it into a .png or .svg; `name` is its file's, without the suffix."""

    name: str
    caption: str
    draw: Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Section:
    """One analysis: `text` says what is shown and how it was computed, `values` is its JSON."""

    name: str
    title: str
    text: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    values: Mapping[str, Any]


def tell(cell: Cell, digits: int = 2) -> str:
    """Return a cell for people: 12,345 and 1.50, a dash for what there is not."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.{digits}f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return cell
