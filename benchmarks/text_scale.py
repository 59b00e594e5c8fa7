"""Text at scale: `preprocess`, `bpe learn`, `bpe apply` and the start of `train` on large corpora.

    python -m benchmarks.text_scale --pairs 1000000 5000000 --workers 1 2 --out FILE
    python -m benchmarks.text_scale --text FOLDER/train --languages de en ...

The lines of --text (plain files FOLDER/train.de and .en), or else of the toy corpus, are repeated
up to the number of pairs, so that the number of distinct words stays the same. Each command runs in
separate processes; measured are the CPU seconds of all of them, wall time, pairs per CPU second,
and the largest resident sets of the first process and of any worker, in MiB. The start of training
is the CPU time from after `import torch` to the end of the first update, with the toy preset.
--out stores JSON, and the table next to it as Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.store import section, to_markdown
from benchmarks.timing import Row, facts, measure_command, peak_memory
from nmtgrid.base.io.atomic import write_json

TOY_PAIRS = 20_000
TITLES = {
    "cpu": "CPU s", "wall": "wall s", "pairs_per_cpu_second": "pairs/CPU s", "mebibytes": "MiB",
    "worker_mebibytes": "MiB worker",
}  # fmt: skip
"""Column titles of values with other names in the JSON file."""
_START = "import sys; from benchmarks.text_scale import start; start(sys.argv[1], sys.argv[2])"


def main() -> None:
    """Measure, print a row for each command, and store all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", type=Path, help="Prefix of two plain files.")
    parser.add_argument("--languages", nargs=2, default=["de", "en"], metavar=("SOURCE", "TARGET"))
    parser.add_argument("--pairs", type=int, nargs="+", default=[250_000, 500_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--merges", type=int, default=8000)
    parser.add_argument("--folder", type=Path, help="Folder for large temporary files.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    languages = tuple(options.languages) if options.text else ("qa", "qb")
    corpus = f"text, {'-'.join(languages)}" if options.text else "the toy corpus"
    rows: list[Row] = []
    for pairs in options.pairs:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            _repeat(_corpus(options.text, languages), languages, Path(folder), pairs)
            for row in _measure(Path(folder), languages, pairs, options.workers, options.merges):
                rows.append(row)
                print(json.dumps(row), flush=True)
                if options.out:
                    report = {"corpus": corpus, **facts("cpu"), "runs": rows}
                    write_json(options.out, report)
                    options.out.with_suffix(".md").write_text(page(report), encoding="utf-8")


def page(report: dict[str, Any]) -> str:
    """Return the report as a page: conditions, and a table with units."""
    about = {name: value for name, value in report.items() if name != "runs"}
    rows = [{TITLES.get(name, name): row[name] for name in row} for row in report["runs"]]
    return to_markdown("Text at scale", section(about, {"Commands": rows}))


def start(data: str, folder: str) -> None:
    """Train for one update on `data`; print its cost as JSON."""
    import torch

    before, wall = time.process_time(), time.monotonic()
    from nmtgrid.cli.objectives import objectives
    from nmtgrid.training.events import Updated
    from nmtgrid.training.prepare import Request, prepare, resolve

    torch.set_num_threads(1)
    changes = ("training.log_updates=1", "training.max_updates=1")
    settings = resolve(Request("pervasive", "toy", None, changes, {}), objectives)
    trainer = prepare(Path(data), settings, Path(folder), torch.device("cpu"), objectives)
    for event in trainer.run():
        if isinstance(event, Updated):
            break
    took = {"cpu": time.process_time() - before, "wall": time.monotonic() - wall}
    print(json.dumps({**took, "mebibytes": peak_memory("self")}))


def _corpus(text: Path | None, languages: tuple[str, ...]) -> list[list[bytes]]:
    if text is None:
        from nmtgrid.data.toy.corpus import toy_splits

        pairs = list(toy_splits(TOY_PAIRS)["train"])
        return [[pair.source.encode() for pair in pairs], [pair.target.encode() for pair in pairs]]
    files = [Path(f"{text}.{language}").read_bytes() for language in languages]
    return [content.removesuffix(b"\n").split(b"\n") for content in files]


def _repeat(sides: list[list[bytes]], languages: tuple[str, ...], folder: Path, pairs: int) -> None:
    for lines, language in zip(sides, languages, strict=True):
        block = b"\n".join(lines) + b"\n"
        with (folder / f"train.{language}").open("wb") as file:
            for _ in range(pairs // len(lines)):
                file.write(block)
            file.writelines(line + b"\n" for line in lines[: pairs % len(lines)])


def _measure(
    folder: Path, languages: tuple[str, ...], pairs: int, workers: list[int], merges: int
) -> Iterator[Row]:
    source, target = languages
    data = folder / "data"
    program = [sys.executable, "-m", "nmtgrid"]
    preprocess = [*program, "preprocess", "--source-lang", source, "--target-lang", target,
                  "--train", str(folder / "train"), "--valid-every", "1000", "--out", str(data),
                  "--overwrite"]  # fmt: skip
    learn = [*program, "bpe", "learn", str(data), "--overwrite", "--merges", str(merges)]
    commands = {"preprocess": preprocess, "bpe learn": learn}
    for name, command in commands.items():
        for count in workers:
            yield _run(name, [*command, "--workers", str(count)], pairs, count)
    text = [str(data / f"text/train.{source}"), "--out", str(folder / "units")]
    for count in workers:
        apply = [*program, "bpe", "apply", str(data / "bpe.codes"), "--input", *text]
        # One side only: half the lines.
        yield _run("bpe apply", [*apply, "--workers", str(count)], pairs / 2, count)
    (folder / "units").unlink()
    done = subprocess.run(
        [sys.executable, "-c", _START, str(data), str(folder / "model")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    yield {"command": "train: first update", "workers": 1, "pairs": pairs,
           **json.loads(done.stdout.splitlines()[-1]), "worker_mebibytes": None}  # fmt: skip


def _run(name: str, command: list[str], pairs: float, workers: int) -> Row:
    """Run a command and return its row."""
    cost = measure_command(command)
    return {
        "command": name, "workers": workers, "pairs": pairs, "cpu": cost.cpu, "wall": cost.wall,
        "pairs_per_cpu_second": pairs / cost.cpu, "mebibytes": cost.mebibytes,
        "worker_mebibytes": cost.worker_mebibytes or None,
    }  # fmt: skip


if __name__ == "__main__":
    main()
