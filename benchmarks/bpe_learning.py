"""Learning BPE: nmtgrid against `tokenizers` (Hugging Face) and subword-nmt, on the same text.

    python -m benchmarks.bpe_learning --data DATA [DATA ...] --merges 8000 [...] --out FILE

DATA are dataset directories of `nmtgrid preprocess`, which are copied and not modified. Measures
processor seconds of one thread, interleaved, the best of --rounds rounds: from the two training
files to the merges, in one process; and the whole command, `nmtgrid bpe learn` against a program
that trains `tokenizers` and encodes the training files. The merges of subword-nmt, which must be
the same, are learned once, unless --quick is set. --out stores JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Row, facts, measure_command
from nmtgrid.base.io.atomic import write_json
from nmtgrid.data import directory
from nmtgrid.text.bpe import Codes
from nmtgrid.text.bpe_learning import learn

_PROGRAM = (
    "import sys; from benchmarks.bpe_learning import encode_with_tokenizers as run; "
    "run(int(sys.argv[1]), sys.argv[2:])"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a row for each dataset, and store all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--merges", type=int, nargs="+", required=True, help="one for each DATA")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="without subword-nmt")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if len(options.merges) != len(options.data):
        parser.error(f"{len(options.data)} DATA, but {len(options.merges)} --merges: one for each.")
    os.environ["RAYON_NUM_THREADS"] = "1"
    rows: list[Row] = []
    for data, merges in zip(options.data, options.merges, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            # `bpe learn --overwrite` would replace the merges and units of DATA.
            copy = shutil.copytree(data, Path(folder) / data.resolve().name)
            rows.append(measure(copy, merges, options.rounds, quick=options.quick))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            version = importlib.import_module("tokenizers").__version__
            write_json(options.out, {**facts("cpu"), "tokenizers": version, "runs": rows})


def measure(data: Path, merges: int, rounds: int, *, quick: bool) -> Row:
    """Return the seconds of all programs on a dataset. Exits if merges differ that must not."""
    text = directory.read(data)["text"]
    files = [str(data / f"text/train.{text[side]}") for side in ("source_lang", "target_lang")]
    # For `tokenizers`, the size includes the types before the first merge.
    size = merges + len(_train_tokenizers(files, 1).get_vocab())
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        began = time.process_time()
        codes = learn(_count(files), merges)
        ours = time.process_time()
        tokenizer = _train_tokenizers(files, size)
        seconds.setdefault("nmtgrid", []).append(ours - began)
        seconds.setdefault("tokenizers", []).append(time.process_time() - ours)
        command = [sys.executable, "-m", "nmtgrid", "bpe", "learn", str(data), "--overwrite",
                   "--merges", str(merges)]  # fmt: skip
        seconds.setdefault("command", []).append(measure_command(command).cpu)
        program = [sys.executable, "-c", _PROGRAM, str(size), *files]
        seconds.setdefault("program", []).append(measure_command(program).cpu)
    theirs = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    row: Row = {"text": data.name, "merges": len(codes), "tokenizers merges": len(theirs)}
    row |= {name: min(times) for name, times in seconds.items()}
    row["ratio"] = row["nmtgrid"] / row["tokenizers"]
    row["ratio of commands"] = row["command"] / row["program"]
    row["shared with tokenizers"] = len(set(codes.merges) & set(theirs)) / len(codes)
    if Codes.load(data / "bpe.codes").merges != codes.merges:
        sys.exit(f"{data}: the command and the function learned different merges.")
    if not quick:
        row["subword-nmt"], merges_of_subword_nmt = _subword_nmt(files, merges)
        if merges_of_subword_nmt != codes.merges:
            sys.exit(f"{data}: subword-nmt learned different merges.")
    return row


def encode_with_tokenizers(size: int, files: list[str]) -> None:
    """Train `tokenizers` on the files and encode them, as `bpe learn` does."""
    tokenizer = _train_tokenizers(files, size)
    for file in files:
        tokenizer.encode_batch(Path(file).read_text("utf-8").split("\n"))


def _train_tokenizers(files: list[str], size: int) -> Any:
    package = importlib.import_module("tokenizers")
    tokenizer = package.Tokenizer(package.models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.WhitespaceSplit()
    trainer = package.trainers.BpeTrainer(
        vocab_size=size, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train(files, trainer)
    return tokenizer


def _count(files: list[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(Path(file).read_text("utf-8").split())
    return counts


def _subword_nmt(files: list[str], merges: int) -> tuple[float, list[str]]:
    written = io.StringIO()
    began = time.process_time()
    words = "".join(f"{word} {count}\n" for word, count in _count(files).items())
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe = importlib.import_module("subword_nmt.learn_bpe").learn_bpe
        learn_bpe(io.StringIO(words), written, merges, is_dict=True)
    return time.process_time() - began, written.getvalue().splitlines()[1:]


if __name__ == "__main__":
    main()
