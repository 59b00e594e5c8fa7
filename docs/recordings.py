"""The table of CUDA graph recordings by padding rule, from benchmarks/results/recordings.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.markdown import table

RECORD = Path(__file__).resolve().parents[1] / "benchmarks/results/recordings.json"


def recordings() -> str:
    """Return the table: recordings, replays, computed cells and time by search and rule."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    rules: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in record["tables"]["Recordings of a test set"]:
        search = f"`{row['architecture']}`", f"{row['beam']}", f"{row['batch tokens']:,}"
        rules.setdefault(search, []).append(row)
    rows = []
    for search, (former, fours, present) in rules.items():
        figures = [
            " / ".join(f"{rule[name]:,.{digits}f}" for rule in (former, fours, present))
            for name, digits in (
                ("recordings", 0), ("replays of each", 0), ("steps not recorded", 0),
                ("cells computed for each live one", 2), ("ms on paper", 0),
            )
        ]  # fmt: skip
        rows.append((*search, *figures))
    heads = (
        "recordings", "replays of each", "steps not recorded", "cells computed per live cell",
        "ms on paper",
    )  # fmt: skip
    return table(("architecture", "beam", "batch tokens", *heads), rows)
