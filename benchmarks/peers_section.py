"""The comparison with other toolkits (`peers`) as a part of `python -m benchmarks`."""

from __future__ import annotations

from pathlib import Path

from benchmarks import peers
from benchmarks.store import Section, section
from benchmarks.timing import Conditions, facts


def measure(conditions: Conditions, data: Path | None, python: str, folder: Path) -> Section:
    """Measure beside the toolkits that `python` holds, on the dataset `data`."""
    if data is None:
        return section(facts("cpu"), {}, ["No dataset was named (--data)."])
    minutes, rounds, seconds = (0.2, 1, 2.0) if conditions.quick else (30.0, 3, 12.0)
    results = peers.contest(
        data, python, folder, minutes=minutes, rounds=rounds, seconds=seconds
    )  # fmt: skip
    workloads = [name for name in peers.commands(0) if name in results]
    tables = {
        f"{workload}, tokens per second of processor": [
            {"system": name, "tokens/s": row["median"], "nmtgrid is so many times as fast":
             row["ours_to_it"], "floor": row.get("floor")}
            for name, row in results[workload].items()
        ]
        for workload in workloads
    }  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return section(facts("cpu"), tables, [f"fp32 where nothing else is said. {versions}."])
