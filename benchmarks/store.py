"""Storage of figures: a JSON file, and the same as a page of Markdown tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Row
from nmtgrid.base.io.atomic import write_json

Section = dict[str, Any]
"""Results of one part of the benchmarks: `facts`, `notes` and `tables` (rows by title)."""


def section(facts: Row, tables: dict[str, list[Row]], notes: Sequence[str] = ()) -> Section:
    """Return a section."""
    return {"facts": facts, "notes": list(notes), "tables": tables}


@dataclasses.dataclass(frozen=True)
class Store:
    """The files FOLDER/NAME.json and FOLDER/NAME.md; sections not measured again are kept."""

    folder: Path
    name: str

    def put(self, key: str, section: Section) -> None:
        """Add or replace a section, and write both files."""
        sections = self.read()
        sections[key] = section
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / f"{self.name}.json", sections)
        (self.folder / f"{self.name}.md").write_text(page(sections), encoding="utf-8")

    def read(self) -> dict[str, Section]:
        """Return the sections by key."""
        path = self.folder / f"{self.name}.json"
        sections: dict[str, Section] = {}
        if path.exists():
            sections = json.loads(path.read_text(encoding="utf-8"))
        return sections


def report(key: str, section: Section, out: Path | None) -> None:
    """Print a section, and write it to `out` as JSON, if given."""
    print(to_markdown(key, section))
    if out is not None:
        write_json(out, section)


def page(sections: dict[str, Section]) -> str:
    """Return all sections as one page, in the order in which they were first added."""
    parts = ["# Benchmarks\n", "Made by `python -m benchmarks`; README.md says how to read it.\n"]
    parts += [to_markdown(key, section) for key, section in sections.items()]
    return "\n".join(parts)


def to_markdown(key: str, section: Section) -> str:
    """Return one section as Markdown."""
    facts = ", ".join(f"{name} {value}" for name, value in section["facts"].items())
    parts = [f"## {key}\n", f"{facts}\n", *(f"{note}\n" for note in section["notes"])]
    for title, rows in section["tables"].items():
        parts += [f"### {title}\n", table(rows)]
    return "\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table, with columns in order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [
        all(isinstance(row.get(name, 0), int | float) for row in rows) for name in columns
    ]  # fmt: skip
    lines = [columns, ["---:" if right else "---" for right in numeric]]
    lines += [[format_value(row.get(name)) for name in columns] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def format_value(value: Any) -> str:
    """Return a value as table text; numbers have three significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "\\|")
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
