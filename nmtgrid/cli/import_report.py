"""The common output of `import-marian` and `import-fairseq`: table, notes and JSON report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmtgrid.base import console
from nmtgrid.cli.options import write_report


def report_import(facts: Mapping[str, Any], rows: Mapping[str, str], report: Path | None) -> None:
    """Print `rows` and the facts of a converted model, and write the facts to `report`."""
    counts = {
        "parameters": facts["parameters"],
        "source types": facts["source_types"],
        "target types": facts["target_types"],
    }
    shown = {**rows, **{name: f"{count:,}" for name, count in counts.items()}}
    console.table("Converted", ("what", "value"), shown.items())
    # Options that were ignored or replaced.
    for note in facts["notes"]:
        console.say(f"Note: {note}.")
    console.say(f"`nmtgrid decode {facts['out']}` translates with it.")
    write_report(report, facts)
