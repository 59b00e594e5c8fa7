"""Runs whole commands with unexpected values, one at a time, and checks their responses.

    python -m tests.fuzz.commands --cases 3000 --seed 2 --json counts.json
    python -m tests.fuzz.commands --only decode        command lines with `decode` in their names
    python -m tests.fuzz.commands --kind option,path   see `KINDS` in cases.py
    python -m tests.fuzz.commands --minutes 30         no new case after that
    python -m tests.fuzz.commands --case 'train:option:--seed::nan'    this one, without others

For each command there is a valid line on toy data; then each value of an option, each value of
`--set`, each path, each input file and each value in its JSON is replaced (`values.py`), with
checksums updated. A command may only succeed or report the error in a single message, within 10
seconds and 1 GiB. Prints each distinct fault with its command line; the exit code is 1 if there are
any.
"""

import argparse
import gc
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

# Forked processes share all loaded modules, but must not share threads or a device.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def main() -> int:
    """Run the cases and print their outcomes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", default="")
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    # In memory if possible, because each case has its own copy of its input.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        Path(name).chmod(0o755)
        results = _run(arguments, Path(name))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return int(bool(results["faults"]))


def _run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from tests.fuzz.commands.cases import KINDS, cases, drawn
    from tests.fuzz.commands.child import read_files
    from tests.fuzz.commands.lines import lines, make

    stock, work = folder / "stock", folder / "work"
    stock.mkdir()
    make(stock)
    by_line = []
    for line in lines():
        is_meant = any(name.startswith(f"{line.name}:") for name in arguments.case)
        if arguments.only not in line.name or (arguments.case and not is_meant):
            continue
        _load(line.words(), stock, folder / "first")
        by_line.append(cases(line, stock, read_files(line, stock, work)))
    # Forks must not collect garbage among objects created before, whose pages they would copy.
    gc.freeze()
    kinds = arguments.kind.split(",") if arguments.kind else KINDS
    named = [case for line in by_line for case in itertools.chain(*line.values())
             if case.name in arguments.case]  # fmt: skip
    by_kind = [{kind: line[kind] if kind in kinds else [] for kind in KINDS} for line in by_line]
    count = arguments.cases if arguments.cases is not None else 0 if arguments.case else 1000
    chosen = [*named, *drawn(by_kind, count, arguments.seed)]
    return _judge_all(chosen, stock, work, 60 * arguments.minutes)


def _judge_all(chosen: list[Any], stock: Path, work: Path, most_seconds: float) -> dict[str, Any]:
    """Run the cases; return counts and distinct faults."""
    from tests.fuzz.commands.child import run

    names = {0: "accepted", 2: "refused"}
    counts: Counter[str] = Counter()
    faults: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    done = 0
    for case in chosen:
        if time.monotonic() - began > most_seconds:
            break
        done += 1
        outcome = run(case, case.line, stock, work)
        fault = outcome.fault(case)
        counts[f"{case.kind}: {fault or names.get(outcome.code, 'expensive')}"] += 1
        if fault:
            _note(faults, fault, case, outcome, run(case, case.line, stock, work, True))
        if done % 20 == 0:
            _progress(done, len(chosen), began, len(faults))
    summary = {"cases": done, "counts": dict(sorted(counts.items())), "faults": faults}
    sys.stdout.write(f"{done:,} cases, {len(faults)} distinct faults\n")
    sys.stdout.write("".join(f"{key}: {value}\n" for key, value in sorted(counts.items())))
    return summary


def _load(words: list[str], stock: Path, folder: Path) -> None:
    """Run a line once in this process, so that processes forked from it have all modules loaded."""
    from tests.faults.stock import done

    shutil.copytree(stock, folder)
    with open(folder / "text" / "test.xx", encoding="utf-8") as file:
        before, sys.stdin = sys.stdin, file
        try:
            done(folder, words)
        finally:
            sys.stdin = before
    shutil.rmtree(folder)


def _note(faults: dict[str, Any], fault: str, case: Any, outcome: Any, again: Any) -> None:
    """Add a fault to the known ones, by its location in the code."""
    is_located = fault == "traceback" or fault.startswith("exit code")
    where = again.where() if is_located else f"{case.line.name} {case.target}"
    key = f"{fault} {where}"
    first = key not in faults
    entry = faults.setdefault(key, {"count": 0, "cases": []})
    entry["count"] += 1
    entry["cases"] = [*entry["cases"], case.name][:10]
    if first:
        entry["command"] = case.command_line(outcome.words)
        entry["said"] = outcome.said[-800:]
        took = f"{outcome.seconds:.1f} s, {outcome.bytes_used >> 20} MiB"
        sys.stdout.write(f"{key}\n    {entry['command']}\n    --case '{case.name}'  ({took})\n")
        sys.stdout.flush()


def _progress(done: int, total: int, began: float, faults: int) -> None:
    seconds = time.monotonic() - began
    left = seconds / done * (total - done)
    ending = "\r" if sys.stderr.isatty() else "\n"
    if sys.stderr.isatty() or done % 100 == 0:
        sys.stderr.write(
            f"{done:,} of {total:,}, {faults} faults, {left / 60:.1f} min left{ending}"
        )
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
