"""The common output of `import-marian` and `import-fairseq`: table, notes and JSON report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtgrid.base import console
from nmtgrid.base.config import to_json
from nmtgrid.cli.options import write_report

if TYPE_CHECKING:
    from nmtgrid.convert.from_fairseq.model import Imported


def report_import(
    model: Imported,
    facts: dict[str, Any],
    rows: Iterable[tuple[str, str]],
    out: Path,
    report: Path | None,
) -> None:
    """Print the model's facts, after further `rows`, and write them to `report` with `facts`."""
    source_types, target_types = model.vocabularies
    rows = [
        *rows,
        ("parameters", f"{model.parameters:,}"),
        ("source types", f"{source_types:,}"),
        ("target types", f"{target_types:,}"),
    ]
    console.table("Converted", ("what", "value"), rows)
    # Options that were ignored or replaced.
    for note in model.notes:
        console.say(f"Note: {note}.")
    console.say(f"`nmtgrid decode {out}` translates with it.")
    facts |= {
        "model": to_json(model.config),
        "parameters": model.parameters,
        "source_types": source_types,
        "target_types": target_types,
        "notes": model.notes,
        "out": str(out),
    }
    write_report(report, facts)
