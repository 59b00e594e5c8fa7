"""Kills commands, fills their disks and damages their files, and checks the consequences.

    python -m tests.faults                          ten cases of each kind
    python -m tests.faults --rounds 60 --seed 2 --json counts.json
    python -m tests.faults --only kills,flips
    python -m tests.faults --pairs 40               two commands at once, and nothing else
    python -m tests.faults --only kills,pairs --rounds 1 --pairs 1

Prints counts; the exit code is 1 if anything was lost, left incomplete, or silently changed.
"""

import argparse
import functools
import gc
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Forked processes share all loaded modules, but must not share threads or a device.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def main() -> int:
    """Run all cases and print their outcomes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--pairs", type=int, metavar="ROUNDS")
    parser.add_argument("--names", default="", help="of pairs: parts of their names, with commas")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    from tests.faults.disk import disk
    from tests.faults.flips import flips
    from tests.faults.kills import kills
    from tests.faults.pairs import pairs
    from tests.faults.stock import empty_pictures, make

    torch.set_num_threads(1)
    usual = "kills,disk,flips" if arguments.pairs is None else "pairs"
    names = arguments.names.split(",")
    known: dict[str, Any] = {
        "pairs": functools.partial(pairs, names=names),
        **{"kills": kills, "disk": disk, "flips": flips},
    }
    asked = (arguments.only or usual).split(",")
    counts = {}
    # In memory if possible, because thousands of small files are synchronised.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        stock, folder = Path(name, "stock"), Path(name, "case")
        stock.mkdir()
        make(stock)
        empty_pictures()
        # Forks must not collect garbage among objects created before, whose pages they would copy.
        gc.freeze()
        for series in asked:
            began = time.monotonic()
            of_pairs = series == "pairs" and arguments.pairs is not None
            rounds = arguments.pairs if of_pairs else arguments.rounds
            for kind, tally in known[series](stock, folder, rounds, random.Random(arguments.seed)):
                counts[kind] = {**vars(tally), "outcomes": dict(tally.outcomes)}
                sys.stdout.write("\n".join([tally.line(kind), *tally.faults[:40]]) + "\n")
                sys.stdout.flush()
            sys.stdout.write(f"({time.monotonic() - began:.0f} s)\n")
    cases = sum(count["cases"] for count in counts.values())
    faults = sum(len(count["faults"]) for count in counts.values())
    sys.stdout.write(f"{cases} cases, {faults} faults\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
