"""Peak memory and speed of `preprocess` and `bpe learn` on a corpus of growing size.

    python -m benchmarks.text_memory --pairs 250000 500000 --workers 1 2

A small corpus (Multi30k from the folder NMTGRID_DATA, or else the toy corpus) is repeated until it
has as many pairs as wanted, so that the number of distinct words stays the same. Memory is the
largest resident set of any process, in MiB; each command runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TOY_PAIRS = 20_000


class Run(NamedTuple):
    """What one command took."""

    mebibytes: float
    wall: float
    cpu: float


def main() -> None:
    """Measure, print a table and the growth in MiB per million pairs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=[250_000, 500_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        lines, languages = _corpus()
        print(f"{'command':<12}{'workers':>8}{'pairs':>10}{'MiB':>8}{'wall s':>9}"
              f"{'CPU s':>9}{'pairs/s':>10}")  # fmt: skip
        for pairs in given.pairs:
            _repeat(lines, languages, Path(folder), pairs)
            for workers in given.workers:
                for command, run in _measure(Path(folder), languages, workers):
                    rows.append({"command": command, "workers": workers, "pairs": pairs,
                                 **run._asdict()})  # fmt: skip
                    print(f"{command:<12}{workers:>8}{pairs:>10,}{run.mebibytes:>8.0f}"
                          f"{run.wall:>9.1f}{run.cpu:>9.1f}{pairs / run.wall:>10,.0f}",
                          flush=True)  # fmt: skip
    growth = _growth(rows)
    for name, value in growth.items():
        print(f"{name}: {value:+.1f} MiB per million pairs")
    if given.json:
        given.json.write_text(json.dumps({"runs": rows, "growth": growth}, indent=2))


def _corpus() -> tuple[list[list[str]], tuple[str, str]]:
    folder = os.environ.get("NMTGRID_DATA")
    if folder is None:
        from nmtgrid.data.toy import toy_splits

        pairs = toy_splits(TOY_PAIRS)["train"]
        return [[p.source for p in pairs], [p.target for p in pairs]], ("qa", "qb")
    sides = []
    for language in ("de", "en"):
        content = lzma.decompress((Path(folder) / f"multi30k/train.{language}.xz").read_bytes())
        sides.append(content.decode("utf-8").removesuffix("\n").split("\n"))
    return sides, ("de", "en")


def _repeat(sides: list[list[str]], languages: tuple[str, str], folder: Path, pairs: int) -> None:
    for lines, language in zip(sides, languages, strict=True):
        block = "".join(f"{line}\n" for line in lines)
        with (folder / f"train.{language}").open("w", encoding="utf-8", newline="\n") as file:
            for _ in range(pairs // len(lines)):
                file.write(block)
            file.writelines(f"{line}\n" for line in lines[: pairs % len(lines)])


def _measure(folder: Path, languages: tuple[str, str], workers: int) -> list[tuple[str, Run]]:
    source, target = languages
    data = str(folder / "data")
    preprocess = ["preprocess", "--source-lang", source, "--target-lang", target,
                  "--train", str(folder / "train"), "--valid-every", "1000", "--out", data,
                  "--workers", str(workers), "--overwrite"]  # fmt: skip
    return [
        ("preprocess", _run(preprocess)),
        ("bpe learn", _run(["bpe", "learn", data, "--merges", "8000"])),
    ]


def _run(arguments: list[str]) -> Run:
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "nmtgrid", *arguments], stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"nmtgrid {' '.join(arguments)} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return Run(usage.ru_maxrss / 1024, time.monotonic() - started, cpu)


def _growth(rows: list[dict[str, object]]) -> dict[str, float]:
    """Return MiB per million pairs between the smallest and the largest corpus."""
    found = {}
    for command, workers in sorted({(str(row["command"]), row["workers"]) for row in rows}):
        points = sorted(
            (int(str(row["pairs"])), float(str(row["mebibytes"])))
            for row in rows
            if (row["command"], row["workers"]) == (command, workers)
        )
        (first, low), (last, high) = points[0], points[-1]
        if last > first:
            found[f"{command}, {workers} workers"] = 1e6 * (high - low) / (last - first)
    return found


if __name__ == "__main__":
    main()
