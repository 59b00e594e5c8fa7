"""Random logs of simultaneous translation, scored by nmtgrid and by OmniSTEval, the IWSLT scorer.

    python -m tests.fuzz.latency_logs --cases 10000 --json counts.json

Prints the number of logs and of compared values and the largest difference; the exit code is 1 if
values of a log differ by more than 1e-9.
"""

import argparse
import json
import logging
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omnisteval.io import load_shortform_instances
from omnisteval.scoring import evaluate_instances

from nmtgrid.online.simuleval import LOG, LogScore, Tokenizer, read_log, score

TOLERANCE = 1e-9
LATENCIES = ("al", "laal", "yaal", "ap", "dal")
WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "mat", "3.5", "it's", "end.", ",", ".", "…")


@dataclass(frozen=True)
class Comparison:
    """nmtgrid's scores of a log, and the difference of each value from OmniSTEval's."""

    score: LogScore
    differences: Mapping[str, float]


def figures_of(path: Path, tokenizer: Tokenizer, *, quality: bool = True) -> dict[str, float]:
    """Return OmniSTEval's values of a log by its names; without a prediction there are none."""
    instances = load_shortform_instances(str(path), None, "delays", "elapsed")
    scores, *_ = evaluate_instances(
        instances, is_longform=False, bleu_tokenizer=tokenizer, compute_quality=quality
    )
    return dict(scores)


def difference(ours: float, theirs: float) -> float:
    """Return the difference of two values: 0 if neither is a number, infinity if one is not."""
    if math.isnan(ours) or math.isnan(theirs):
        return 0.0 if math.isnan(ours) and math.isnan(theirs) else math.inf
    return abs(ours - theirs)


def compare(path: Path, tokenizer: Tokenizer) -> Comparison:
    """Score a log with both programs."""
    ours = score(read_log(path), tokenizer)
    theirs = figures_of(path, tokenizer, quality=ours.bleu is not None)
    pairs = {name: (getattr(ours.simuleval, name), theirs.get(name, math.nan))
             for name in LATENCIES}  # fmt: skip
    if ours.bleu is not None:
        pairs["bleu"] = ours.bleu.value, theirs["bleu"]
    if ours.computation_aware is not None:
        pairs |= {f"ca_{name}": (getattr(ours.computation_aware, name), theirs[f"ca_{name}"])
                  for name in LATENCIES}  # fmt: skip
    return Comparison(ours, {name: difference(*pair) for name, pair in pairs.items()})


def comparisons(cases: int, seed: int) -> Iterator[Comparison]:
    """Compare random logs. OmniSTEval's warnings of logs without predictions are left out."""
    source = random.Random(seed)
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, LOG)
            for number in range(cases):
                measured = source.random() < 0.3
                sentences = [
                    _sentence(source, index, measured) for index in range(source.randint(1, 6))
                ]
                path.write_text("".join(json.dumps(sentence) + "\n" for sentence in sentences))
                yield compare(path, "none" if number % 4 == 0 else "13a")
    finally:
        logging.disable(logging.NOTSET)


def _text(source: random.Random, most: int) -> str:
    blanks = source.choice([" ", " ", "  "])
    return blanks.join(source.choice(WORDS) for _ in range(source.randint(1, most)))


def _sentence(source: random.Random, index: int, measured: bool) -> dict[str, Any]:
    """Return a sentence with any path: none written, beyond the source, never all read, all read.

    An empty `elapsed` means for OmniSTEval that nothing was measured; in nmtgrid zeros do too.
    """
    length = source.choice([1, 1, 2, 5, 12, 30])
    reference = _text(source, 15)
    prediction = source.choice([reference, _text(source, 15), _text(source, 15), ""])
    top = source.choice([length, length, length + 3, length // 2])
    low = source.choice([0, 0, 0, top])
    delays = sorted(source.randint(low, top) for _ in prediction.split())
    elapsed, seconds = [], 0.0
    for delay in delays:
        seconds += measured * source.random()
        elapsed.append(delay + seconds)
    return {
        "index": index, "prediction": prediction, "delays": delays,
        "elapsed": elapsed if measured else [0] * len(delays), "prediction_length": len(delays),
        "reference": reference, "source": " ".join(["s"] * length), "source_length": length,
    }  # fmt: skip


def main() -> int:
    """Compare all logs and print the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    largest: dict[str, float] = {}
    figures = faults = 0
    for number, comparison in enumerate(comparisons(arguments.cases, arguments.seed), start=1):
        figures += len(comparison.differences)
        for name, value in comparison.differences.items():
            largest[name] = max(value, largest.get(name, 0.0))
        if wrong := {n: v for n, v in comparison.differences.items() if v > TOLERANCE}:
            faults += 1
            sys.stdout.write(f"log {number}: {wrong}\n")
    summary = {
        "cases": arguments.cases,
        "faults": faults,
        "figures": figures,
        "largest_differences": largest,
        "scorer": f"OmniSTEval {version('omnisteval')} (sacreBLEU {version('sacrebleu')})",
    }
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
