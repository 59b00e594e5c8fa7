"""Decoding a test set on a CPU with packed weights in fp32, bf16 and int8: speed and BLEU.

    python -m benchmarks.cpu_decoding MODEL ... --data DATA [--beams 1 5] [--rounds 3] [--out FILE]

The split `test` of DATA is translated from raw text to raw text, in the batches of `nmtgrid
decode`. "fp32, not packed" uses the weights as loaded. All precisions are interleaved in one
process; `times` is the median over rounds of the speedup over the first one, in target tokens per
second of processor time; `same` is the number of translations identical to those of "fp32".
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Row, facts, precisions
from nmtgrid.base.devices import find_device
from nmtgrid.base.io.atomic import write_json
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.quality import bleu
from nmtgrid.models.directory import load_model
from nmtgrid.search.precision import Precision
from nmtgrid.search.translate import Translator

UNPACKED = "fp32, not packed"
PRECISIONS: dict[str, Precision] = {
    UNPACKED: "fp32", "fp32": "fp32", "bf16": "bf16", "int8": "int8",
}  # fmt: skip


def translators(folder: Path, beam: int) -> dict[str, Translator]:
    """Return the compared translators by name."""
    translators = {}
    for name, precision in PRECISIONS.items():
        if precision == "bf16" and "bf16" not in precisions("cpu"):
            continue
        loaded = load_model(folder)
        translator = Translator([loaded], precision=precision).with_search(beam=beam)
        if name == UNPACKED:
            translator.models = [loaded.model]  # not the packed copy
        translators[name] = translator
    return translators


def translate(translator: Translator, lines: Sequence[str]) -> tuple[float, list[str]]:
    """Return target tokens (with end symbols) per second of processor time, and the text."""
    start = time.process_time()
    translations = list(translator.translations(lines))
    seconds = time.process_time() - start
    tokens = sum(len(translation.hypotheses[0].tokens) + 1 for translation in translations)
    return tokens / seconds, [translation.text for translation in translations]


def measure(
    folder: Path, beam: int, lines: Sequence[str], references: Sequence[str], rounds: int
) -> list[Row]:
    """Return a row for each precision."""
    compared = translators(folder, beam)
    for translator in compared.values():
        translate(translator, lines[:64])
    speeds: dict[str, list[float]] = {name: [] for name in compared}
    texts: dict[str, list[str]] = {}
    for _ in range(rounds):
        for name, translator in compared.items():
            speed, texts[name] = translate(translator, lines)
            speeds[name].append(speed)
    rows: list[Row] = []
    for name, values in speeds.items():
        ratios = [value / base for value, base in zip(values, speeds[UNPACKED], strict=True)]
        rows.append({
            "model": folder.name, "beam": beam, "precision": name,
            "tokens_per_second": statistics.median(values), "times": statistics.median(ratios),
            "bleu": _bleu(texts[name], references, compared[name]),
            "same": sum(map(str.__eq__, texts[name], texts["fp32"])), "sentences": len(lines),
        })  # fmt: skip
    return rows


def _bleu(texts: Sequence[str], references: Sequence[str], translator: Translator) -> float:
    is_lower = translator.pipeline.target.moses.lowercase
    return bleu(texts, references, lowercase=is_lower).value


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to store the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    find_device("cpu")  # limits torch's caches, as in `decode`
    split = Dataset.open(options.data).split("test")
    lines, references = split.raw_source(), split.raw_target()
    report: dict[str, Any] = {**facts("cpu"), "rounds": options.rounds, "rows": []}
    for folder in options.models:
        for beam in options.beams:
            rows = measure(folder, beam, lines, references, options.rounds)
            report["rows"] += rows
            for row in rows:
                print(json.dumps(row), flush=True)
            if options.out:
                write_json(options.out, report)


if __name__ == "__main__":
    main()
