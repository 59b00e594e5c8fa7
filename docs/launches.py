"""The table of kernels launched outside CUDA graphs, from benchmarks/results/launches.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.markdown import table

RECORD = Path(__file__).resolve().parents[1] / "benchmarks/results/launches.json"


def launches() -> str:
    """Return the table: launches and waits of a step, by architecture and search."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = []
    for architecture, searches in record["after"].items():
        for search, after in searches.items():
            before = record["before"][architecture][search]
            figures = [
                f"{before[f'{what} of a later step']:g} -> {after[f'{what} of a later step']:g}"
                for what in ("launches", "waits")
            ]
            replayed = f"{before['replayed kernels']:.0f} -> {after['replayed kernels']:.0f}"
            rows.append((f"`{architecture}`", search, *figures, replayed))
    heads = "kernels launched", "waits of the host", "kernels replayed"
    return table(("architecture", "search", *heads), rows)
