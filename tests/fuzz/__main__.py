"""Damages valid files in all ways that hypothesis comes up with, and reads them.

    python -m tests.fuzz --cases 20000              each reader, with this many cases
    python -m tests.fuzz --cases 500 --only model   the readers with `model` in their names
    python -m tests.fuzz --seed 7 --json counts.json

Prints counts; the exit code is 1 if a reader crashed, took too long or took too much memory.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from tests.fuzz.run import readers, run


def main() -> int:
    """Run all readers and print their outcomes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    counts = {}
    for name, drawn, read in readers(arguments.only):
        count = run(drawn, read, arguments.cases, arguments.seed)
        counts[name] = dataclasses.asdict(count)
        sys.stdout.write(
            f"{name:20} {count.cases:7} cases {count.accepted:7} accepted {count.refused:7} "
            f"refused {len(count.faults):3} faults\n"
        )
        sys.stdout.flush()
        for fault in count.faults:
            sys.stdout.write(fault + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return int(any(count["faults"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
