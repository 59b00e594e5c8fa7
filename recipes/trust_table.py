"""The table of recipes/trust.sh: outcomes of injected faults.

python -m recipes.trust_table FOLDER --out PREFIX
    Read the counts that the programs in tests/ wrote to FOLDER/SERIES.json; write PREFIX.md and
    PREFIX.json with a row for each series.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes.tables import read_json, write_table

Values = dict[str, Any]


def _tallies(values: Values) -> Values:
    """Return the row of tests.faults, summed over commands."""
    return _row(
        values, (tally["cases"] for tally in values.values()),
        sum((Counter(tally["outcomes"]) for tally in values.values()), Counter()),
        sum(len(tally["faults"]) for tally in values.values()),
    )  # fmt: skip


def _readers(values: Values) -> Values:
    """Return the row of tests.fuzz."""
    outcomes = {
        name: sum(count[name] for count in values.values()) for name in ("accepted", "refused")
    }
    faults = sum(len(count["faults"]) for count in values.values())
    return _row(values, (count["cases"] for count in values.values()), outcomes, faults)


def _checkpoints(values: Values) -> Values:
    """Return the row of tests.fuzz.checkpoints."""
    codes = values["codes"]
    outcomes = {"accepted": codes.get("0", 0), "refused": codes.get("2", 0)}
    row = _row(("import-fairseq",), [values["cases"]], outcomes, values["faults"])
    return row | {
        "most_seconds": values["max_seconds"],
        "most_mebibytes": values["max_mebibytes"],
    }


def _commands(values: Values) -> Values:
    """Return the row of tests.fuzz.commands, which counts distinct faults."""
    outcomes: Counter[str] = Counter()
    for name, count in values["counts"].items():
        outcomes[name.partition(": ")[2]] += count
    lines = {"all commands"}
    return _row(lines, [values["cases"]], outcomes, len(values["faults"]))


def _mutants(values: Values) -> Values:
    """Return the row of tests.mutants; a surviving mutant is not a fault, but a missing test."""
    outcomes = {name: values[name] for name in ("detected", "survived", "not executed")}
    row = _row(("the code",), [values["planted"]], outcomes, 0)
    return row | {
        "possible": values["possible"],
        "percent_detected": 100 * values["share_detected"],
    }


def _logs(values: Values) -> Values:
    """Return the row of tests.fuzz.latency_logs, which compares each figure of a log."""
    largest = values["largest_differences"]
    outcomes = {f"figures beside those of {values['scorer']}": values["figures"]}
    row = _row(largest, [values["cases"]], outcomes, values["faults"])
    return row | {"largest_difference": max(largest.values())}


def _row(
    targets: Iterable[str], cases: Iterable[int], outcomes: Mapping[str, int], faults: int
) -> Values:
    shown = ", ".join(
        f"{count:,} {name}" for name, count in sorted(outcomes.items()) if count and name != "FAULT"
    )
    return {
        "targets": len(list(targets)), "cases": sum(cases), "outcomes": shown, "faults": faults
    }  # fmt: skip


SERIES: dict[str, tuple[str, Callable[[Values], Values]]] = {
    "kills": ("commands killed", _tallies),
    "disk": ("full or too small disk", _tallies),
    "flips": ("files with changed bytes", _tallies),
    "pairs": ("pairs of concurrent commands", _tallies),
    "readers": ("corrupted files, each reader", _readers),
    "checkpoints": ("malicious checkpoints for import-fairseq", _checkpoints),
    "commands": ("fuzzed command lines", _commands),
    "logs": ("random latency logs, scored twice", _logs),
    "mutants": ("mutants of the code", _mutants),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    rows = []
    for name, (title, row_of) in SERIES.items():
        path = options.folder / f"{name}.json"
        if path.is_file():
            rows.append({"what": title} | row_of(read_json(path)))
    if not rows:
        raise SystemExit(f"error: {options.folder} has no counts: run recipes/trust.sh.")
    write_table(rows, options.out)


if __name__ == "__main__":
    main()
