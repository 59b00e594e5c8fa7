"""The texts, the dataset and the table of recipes/distill.sh (knowledge distillation).

python -m recipes.distill_table split DATA LINES --size N --teacher MODEL --beam N
    Write the training sources of DATA as raw text, N lines each, to LINES/0001.source and so on.
    If LINES exists, it must have been made with the same dataset, teacher and beam.
python -m recipes.distill_table dataset DATA LINES [--originals] --out NEW
    Make the dataset NEW from these sources and their translations, LINES/0001.jsonl (traces) and
    0001.json (decode's report) and so on, with the units and the other splits of DATA. NEW.json
    has the numbers of pairs and of removed translations. --originals adds the pairs of DATA.
python -m recipes.distill_table table COMPARE.json NEW.json --out PREFIX
    Write PREFIX.md and PREFIX.json from the output of `analyze compare`.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import NmtgridError
from nmtgrid.base.io.atomic import write_json
from nmtgrid.base.io.text import read_lines
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.models.directory import weights_file
from nmtgrid.search.traces import Trace, read_traces
from nmtgrid.text.bpe import remove_bpe
from nmtgrid.text.cleaning import Filters
from nmtgrid.text.pipeline import Pipeline
from recipes.tables import read_json, write_lines, write_table

ORIGIN = "origin.json"
Pairs = list[tuple[str, str]]


def split(data: Path, lines: Path, size: int, teacher: Path, beam: int) -> None:
    """Write the sources in parts, and their origin.

    Raises SystemExit if LINES has another origin.
    """
    with weights_file(teacher).open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    dataset = Dataset.open(data)
    origin = {
        "data": dataset.manifest["files"]["train.safetensors"]["sha256"],
        "teacher": weights,
        "beam": beam,
        "size": size,
    }
    if (lines / ORIGIN).exists():
        if read_json(lines / ORIGIN) != origin:
            raise SystemExit(
                f"error: {lines} was made with another dataset, teacher, beam or SPLIT. Set RUNS "
                "to another folder."
            )
        return
    lines.mkdir(parents=True, exist_ok=True)
    sources = [source for source, _ in raw_pairs(dataset)]
    for number, start in enumerate(range(0, len(sources), size), 1):
        write_lines(lines / f"{number:04}.source", sources[start : start + size])
    # Written last: if it exists, the parts are complete.
    write_json(lines / ORIGIN, origin)


def raw_pairs(dataset: Dataset) -> Pairs:
    """Return the training pairs as raw text, detokenised, since the dataset keeps only tokens."""
    train, pipeline = dataset.split("train"), dataset.pipeline
    return [
        (pipeline.source.moses.detokenize(source), pipeline.target.moses.detokenize(target))
        for source, target in zip(train.tokenized_source(), train.tokenized_target(), strict=True)
    ]


def translated(lines: Path, pipeline: Pipeline) -> tuple[Pairs, Counter[str]]:
    """Return the pairs with usable translations, and the number of others by reason."""
    pairs, dropped = Pairs(), Counter[str]()
    for path in sorted(lines.glob("*.source")):
        sources, report = list(read_lines(path, allow_empty=True)), path.with_suffix(".json")
        if not report.is_file():
            raise SystemExit(f"error: {path} has not been translated: run the recipe again.")
        search = read_json(report)["search"]
        traces = list(read_traces(path.with_suffix(".jsonl")))
        if len(traces) != len(sources):
            raise SystemExit(
                f"error: {path} has {len(sources):,} lines, but {len(traces):,} translations: "
                f"remove {report} and run the recipe again."
            )
        for source, trace in zip(sources, traces, strict=True):
            if fault := fault_of(trace, search, pipeline):
                dropped[fault] += 1
            else:
                pairs.append((source, trace.text))
    return pairs, dropped


def fault_of(trace: Trace, search: dict[str, Any], pipeline: Pipeline) -> str:
    """Return why a translation is unusable for training, or an empty string."""
    if not trace.target:
        return "empty"
    # The length limit ended it, not the model; these are usually repetitions.
    limit = search["max_length_a"] + search["max_length_b"] * len(trace.source)
    if len(trace.target) >= math.floor(limit):
        return "at the limit of length"
    words = " ".join(trace.target)
    if pipeline.target.codes is not None:
        words = remove_bpe(words)
    # Retokenising must restore the teacher's output; it does not for `<unk>`, for example.
    return "" if pipeline.target.moses.tokenize(trace.text) == words else "altered by detokenising"


def make_dataset(data: Path, lines: Path, out: Path, originals: bool) -> None:
    """Make the dataset. Raises SystemExit if translations are missing."""
    counts_file, origin = out.with_name(f"{out.name}.json"), read_json(lines / ORIGIN)
    if counts_file.is_file():
        if read_json(counts_file).get("origin", origin) != origin:
            raise SystemExit(
                f"error: {out} was made with another dataset, teacher, beam or SPLIT than "
                f"{lines}. Set RUNS to another folder."
            )
        return
    dataset = Dataset.open(data)
    pipeline, text = dataset.pipeline, dataset.manifest["text"]
    pairs, dropped = translated(lines, pipeline)
    reasons = ", ".join(f"{count:,} {name}" for name, count in dropped.items())
    if not pairs:
        raise SystemExit(
            f"error: no translation is usable for training: {reasons}. Train the teacher longer."
        )
    texts = {"distilled": pairs, "original": raw_pairs(dataset) if originals else Pairs()}
    kept = dataset.manifest["filters"]
    plan = TextPlan(
        text["source_lang"], text["target_lang"], text["tokenize"], text["lowercase"],
        Filters(kept["max_words"], kept["max_ratio"]),
    )  # fmt: skip
    prefixes = {name: [str(data / "raw" / name)] for name in dataset.names if name != "train"}
    with tempfile.TemporaryDirectory(dir=lines) as folder:
        for name, some in texts.items():
            for language, side in zip(plan.languages, zip(*some, strict=True), strict=False):
                write_lines(Path(folder, f"{name}.{language}"), side)
        prefixes["train"] = [str(Path(folder, name)) for name, some in texts.items() if some]
        split = preprocess_files(plan, prefixes, out, overwrite=True)["splits"]["train"]
    source, target, *codes = [str(data / name) for name in pipeline.files[:-1]]
    units = SubwordPlan(
        words=pipeline.target.codes is None, joint=pipeline.facts.joint, codes=tuple(codes),
        source_vocabulary=source, target_vocabulary=target,
    )  # fmt: skip
    learn_subwords(out, units)
    counts = {name: len(some) for name, some in texts.items()}
    left_out = dict(dropped) | {name: count for name, count in split["dropped"].items() if count}
    facts = {"kept": split["pairs_kept"], "left_out": left_out, "origin": origin}
    write_json(counts_file, counts | facts)
    reasons = ", ".join(f"{count:,} {name}" for name, count in left_out.items()) or "none"
    print(f"{out}: {split['pairs_kept']:,} training pairs; left out: {reasons}.")


def rows_of(compared: dict[str, Any], counts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each system: its scores, their p-values and the pairs it was trained on."""
    tested = {
        (metric["metric"], system["system"]): system["p_value"]
        for test in compared["tests"]
        for metric in test["metrics"]
        for system in metric["systems"]
    }
    rows = []
    for system in compared["scores"]["systems"]:
        name = system["system"]
        row = {"system": name, "bleu": system["bleu"], "p_bleu": tested["bleu", name]}
        row |= {"chrf": system["chrf"], "p_chrf": tested["chrf", name]}
        if name not in ("original", "teacher"):
            row |= {"pairs": counts["kept"], "left_out": sum(counts["left_out"].values())}
        rows.append(row)
    rows[0]["signature_bleu"] = compared["scores"]["signature_bleu"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    splitting = commands.add_parser("split")
    making = commands.add_parser("dataset")
    showing = commands.add_parser("table")
    for command in (splitting, making):
        command.add_argument("data", type=Path)
        command.add_argument("lines", type=Path)
    splitting.add_argument("--size", type=int, required=True)
    splitting.add_argument("--teacher", type=Path, required=True)
    splitting.add_argument("--beam", type=int, required=True)
    making.add_argument("--originals", action="store_true")
    making.add_argument("--out", type=Path, required=True)
    showing.add_argument("compared", type=Path)
    showing.add_argument("counts", type=Path)
    showing.add_argument("--out", required=True)
    options = parser.parse_args()
    try:
        if options.command == "split":
            split(options.data, options.lines, options.size, options.teacher, options.beam)
        elif options.command == "dataset":
            make_dataset(options.data, options.lines, options.out, options.originals)
        else:
            files = options.compared, options.counts
            compared, counts = map(read_json, files)
            write_table(rows_of(compared, counts), options.out)
    except NmtgridError as fault:
        raise SystemExit(f"error: {fault}") from None


if __name__ == "__main__":
    main()
