"""The command: see the package's docstring."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.pretend_gpu import stub

BOUNDS = Path(__file__).with_name("bounds.json")


def main() -> None:
    """Measure all cases; write the counts as JSON, or print those above their bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.pretend_gpu")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--lower", action="store_true", help="lower the bounds; none rises")
    parser.add_argument("--out", type=Path, help="a JSON file of faults by case")
    parser.add_argument("--figures", type=Path, help="a JSON file of what is counted by case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stub.load(Path(folder))
        # Imported here: the stub must be loaded before torch.
        from tests.pretend_gpu import cases, device, kernels

        device.install()
        kernels.install()
        measured = measure_all(cases, options.only)
        planted = cases.count_planted_faults()
        broken = {name: cases.try_broken_loss(name) for name in ("adamw", "muon", "nesterov")}
        protocol = cases.try_first_gpu(Path(folder))
    bounds: dict[str, Any] = json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {"cases": {}}
    if options.lower:
        bounds = {"torch": cases.TORCH, "cases": lowered(bounds["cases"], measured)}
        BOUNDS.write_text(json.dumps(bounds, indent=1) + "\n")
    # Other versions of torch may launch more.
    counted = COUNTED if bounds["torch"] == cases.TORCH else ("waits", "copies")
    faults = {
        name: above(bounds["cases"], name, figures, counted) for name, figures in measured.items()
    }
    if options.figures:
        options.figures.write_text(json.dumps(measured, indent=1) + "\n")
    if options.out:
        result = {"cases": faults, "planted": planted, "broken": broken, "protocol": protocol}
        options.out.write_text(json.dumps(result, indent=1))
        return
    for name, figures in measured.items():
        print(name, "" if "fault" in figures else json.dumps(figures))
        print(*(f"  {fault}\n" for fault in faults[name]), sep="", end="")
    sys.exit(any(faults.values()))


def measure_all(cases: ModuleType, only: str) -> dict[str, Any]:
    """Return the counts of each case, or the fault that ended it."""
    measured: dict[str, Any] = {}
    for case in cases.CASES:
        if only in str(case):
            try:
                measured[str(case)] = cases.measure(case)
            except Exception:
                measured[str(case)] = {"fault": traceback.format_exc()}
    return measured


def lowered(bounds: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds, each lowered to the count if that is lower; new cases get bounds."""
    lower = dict(bounds)
    for name, figures in measured.items():
        if "fault" in figures:
            continue
        old = bounds.get(name, {})
        lower[name] = {
            part: {
                what: min(value, old.get(part, {}).get(what, value)) for what, value in row.items()
            }
            for part, row in figures.items()
        }
    return lower


COUNTED = (
    "waits", "copies", "launches", "replayed kernels", "launches of a later step",
    "waits of a later step",
)  # fmt: skip


def above(
    bounds: dict[str, Any], name: str, figures: dict[str, Any], counted: Sequence[str] = COUNTED
) -> list[str]:
    """Return the errors of a case: its fault, or the counts in `counted` above their bounds."""
    if "fault" in figures:
        return [figures["fault"]]
    known = bounds.get(name, {})
    return [
        f"{part}: {value} {what}, but the bound is {known.get(part, {}).get(what, 'missing')}"
        for part, row in figures.items()
        for what, value in row.items()
        if what in counted and value > known.get(part, {}).get(what, -1)
    ]


if __name__ == "__main__":
    main()
