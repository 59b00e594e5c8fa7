"""Time and peak memory of `analyze buckets`, `lengths` and `compare` on a large test set.

    python -m benchmarks.analysis [--pairs 100000] [--systems 3] [--out FILE]

The lines are those of Multi30k's training set in the folder NMTGRID_DATA, or else of the toy
corpus, repeated; systems are the references with words deleted, inserted and replaced. Each command
runs in a separate process on one thread, and reads and splits the text; the last row does all three
in one process, as a report does. Seconds are processor time, memory is the largest resident set in
MiB.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.store import report, section
from benchmarks.timing import Row, facts, measure_command

TOY_PAIRS = 20_000
_TOGETHER = "import sys; from benchmarks.analysis import together; together(*sys.argv[1:])"


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--systems", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        systems = _write(folder, options.pairs, options.systems)
        for name, command in _commands(folder, systems).items():
            cost = measure_command([sys.executable, *command])
            rows.append({
                "command": name, "pairs": options.pairs, "systems": options.systems,
                "CPU s": cost.cpu, "wall s": cost.wall, "MiB": cost.mebibytes,
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    report("analysis", section(facts("cpu"), {"Commands": rows}), options.out)


def together(reference: str, source: str, *systems: str) -> None:
    """Do the work of the three commands with one evaluation; plot next to the reference."""
    from nmtgrid.analysis.quality import buckets, compare, lengths
    from nmtgrid.analysis.quality.evaluation import read_evaluation
    from nmtgrid.analysis.quality.names import MEASURES

    evaluation = read_evaluation(systems, Path(reference), Path(source))
    sections = (
        buckets.buckets_section(evaluation, ["reference-length", "length-ratio"], MEASURES),
        lengths.lengths_section(evaluation),
        compare.comparison_section(evaluation, compare.ComparisonOptions()),
    )
    for picture in (picture for part in sections for picture in part.pictures):
        picture.draw(Path(reference).parent / f"{picture.name}.png")


def _write(folder: Path, pairs: int, systems: int) -> list[str]:
    """Write `source`, `reference` and systems, each slightly worse than the previous one."""
    sides = _corpus()
    draw = random.Random(1)
    words = [word for line in sides[1][:2000] for word in line.split()]
    text_of = {"source": sides[0], "reference": sides[1]}
    texts = {
        name: [lines[index % len(lines)] for index in range(pairs)]
        for name, lines in text_of.items()
    }
    for system in range(systems):
        share = 0.15 + 0.05 * system
        texts[f"s{system}"] = [_worse(line, share, words, draw) for line in texts["reference"]]
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(folder / f"s{system}") for system in range(systems)]


def _worse(line: str, share: float, words: list[str], draw: random.Random) -> str:
    worse = []
    for word in line.split():
        chance = draw.random() / share
        if chance >= 0.4:
            worse.append(word if chance >= 0.8 else draw.choice(words))
        if 0.8 <= chance < 1.1:
            worse.append(draw.choice(words))
    return " ".join(worse)


def _corpus() -> list[list[str]]:
    folder = Path(os.environ.get("NMTGRID_DATA", "")) / "multi30k"
    files = [folder / f"train.{language}.xz" for language in ("de", "en")]
    if not all(file.is_file() for file in files):
        from nmtgrid.data.toy.corpus import toy_splits

        pairs = toy_splits(TOY_PAIRS)["train"]
        return [[p.source for p in pairs], [p.target for p in pairs]]
    texts = [lzma.decompress(file.read_bytes()).decode("utf-8") for file in files]
    return [text.removesuffix("\n").split("\n") for text in texts]


def _commands(folder: Path, systems: list[str]) -> dict[str, list[str]]:
    """Return the words of each command after the interpreter."""
    reference, source = str(folder / "reference"), str(folder / "source")
    whole = ["-m", "nmtgrid", "analyze"]
    shared = [*systems, "-r", reference, "--out", str(folder / "pictures")]
    metrics = [part for name in ("bleu", "sentence-bleu", "chrf") for part in ("--metric", name)]
    return {
        "buckets": [*whole, "buckets", *shared, "-s", source, *metrics],
        "lengths": [*whole, "lengths", *shared],
        "compare": [*whole, "compare", *shared, "-s", source],
        "together": ["-c", _TOGETHER, reference, source, *systems],
    }


if __name__ == "__main__":
    main()
