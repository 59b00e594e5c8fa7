"""Tables and figures of recipes/pervasive.sh, from the output of its commands.

python -m recipes.pervasive_table scores NAME=MODEL... --seeds "1 2 3" --out PREFIX
        [--compare P] [--ensemble FILE]
    A row for each NAME: parameters, training length, perplexity and BLEU, mean and standard
    deviation over the model directories MODEL-seedN, from `done.json`, every `SPLIT-beamB.json` and
    `SPLIT-forced.json`; and the p-value of each seed that `analyze compare` wrote to
    P-seedN.compare.json. FILE, `SPLIT-beamB.json` of an ensemble, adds a last row.
python -m recipes.pervasive_table grid K,N=MODEL... --seeds "1" --out PREFIX
    The same for kernels K and depths N, with a figure: BLEU against depth, one line per kernel.
python -m recipes.pervasive_table plans NAME=FILE... --out PREFIX
    Properties and settings from the output of `train --dry-run --json`.
python -m recipes.pervasive_table lengths NAME=DATA... --out PREFIX
    Percentiles of lengths in units and of their ratio, for each split of a dataset.
python -m recipes.pervasive_table alignments NAME=FILE... [--gold FILE] --out PREFIX
    Entropies and coverages from the output of `analyze alignments --json` and of `blocks`;
    alignment error rates from the last FILE, the output of `analyze alignments --words --gold`.
python -m recipes.pervasive_table blocks NAME=MODEL --data DATA --split valid --out PREFIX
    The same averages for each decoder block of a Transformer, teacher forced.
python -m recipes.pervasive_table buckets NAME=FILE... --out PREFIX
    BLEU of each system in each bucket (sentence BLEU for buckets by difficulty), from the output of
    `analyze buckets --json` or `analyze difficulty --json`.

Each writes PREFIX.md and PREFIX.json; the figure is PREFIX.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from nmtgrid.metrics.quality import spread
from recipes.tables import Row, read_json, write_table

SPLITS = ("valid", "test")


def scores(
    named: Mapping[str, str], seeds: Sequence[str], compared: str | None = None
) -> list[Row]:
    """Return a row for each name: mean and deviation over seeds, and p-values if `compared`."""
    rows = [
        {"model": name, "seeds": " ".join(seeds)}
        | _scores([Path(f"{model}-seed{seed}") for seed in seeds])
        for name, model in named.items()
    ]
    if compared is not None:
        tests = [p_values(Path(f"{compared}-seed{seed}.compare.json")) for seed in seeds]
        for row, model in zip(rows[1:], [*named.values()][1:], strict=True):
            row["p_of_bleu"] = ", ".join(f"{test[Path(model).name]:.3f}" for test in tests)
    return rows


def ensemble(path: Path) -> Row:
    """Return the row of an ensemble, from its scores in SPLIT-beamN.json."""
    split, beam = path.stem.split("-")
    scores = read_json(path)
    return {"model": "ensemble", f"{split}_{beam}": spread([scores["bleu_tokenized"]])}


def p_values(path: Path) -> dict[str, float]:
    """Return the p-value of BLEU against the first system for each other system."""
    metrics = (metric for test in read_json(path)["tests"] for metric in test["metrics"])
    systems = next(m["systems"] for m in metrics if m["metric"] == "bleu")
    # If the translations are identical, there is nothing to test.
    return {s["system"]: 1.0 if s["p_value"] is None else s["p_value"] for s in systems[1:]}


def grid(named: Mapping[str, str], seeds: Sequence[str]) -> list[Row]:
    """Return a row for each kernel and depth, with the receptive field of the target side."""
    rows = []
    for name, model in named.items():
        kernel, depth = map(int, name.split(","))
        point = {"kernel": kernel, "depth": depth, "target_tokens_seen": 1 + depth * (kernel // 2)}
        rows.append(point | _scores([Path(f"{model}-seed{seed}") for seed in seeds]))
    return rows


def _scores(models: Sequence[Path]) -> Row:
    runs = [read_json(model / "done.json") for model in models]
    # Means over seeds: updates, epochs, minutes on the run's clock.
    row: Row = {"parameters": runs[0]["parameters"]} | {
        name: round(mean(run[name] for run in runs)) for name in ("updates", "epochs", "minutes")
    }
    losses = [run["valid_nll"] for run in runs]
    if None not in losses:
        row["valid_nll"] = spread(losses)  # nats per token
    for split in SPLITS:
        if all((model / f"{split}-forced.json").is_file() for model in models):
            row[f"{split}_perplexity"] = spread(
                [read_json(model / f"{split}-forced.json")["perplexity"] for model in models]
            )
        for path in sorted(models[0].glob(f"{split}-beam*.json")):
            # An earlier run of the first seed may have used other BEAMS.
            if not all((model / path.name).is_file() for model in models):
                continue
            scores = [read_json(model / path.name) for model in models]
            row[f"{split}_{path.stem.rsplit('-')[-1]}"] = spread(
                [each["bleu_tokenized"] for each in scores]
            )
            row["signature_bleu"] = scores[0]["signature_bleu_tokenized"]
    return row


def plans(named: Mapping[str, str]) -> list[Row]:
    """Return the model properties, training and search settings of each plan."""
    rows = []
    for name, path in named.items():
        plan = read_json(Path(path))
        shape, settings = plan["properties"], plan["settings"]
        training, batches, search = (settings[key] for key in ("training", "batches", "search"))
        rows.append(
            {
                "model": name,
                "parameters": plan["parameters"],
                "receptive_field": shape["receptive_field"],
                "computation": shape["computation"],
                "sequential": shape["sequential"],
                "target_path": shape["target_path"],
                "source_path": shape["source_path"],
                "gflop_per_pair": shape["flops_per_pair"] / 1e9,
                "learning_rate": str(training["learning_rate"]),
                "warmup_updates": training["warmup_updates"],
                "tokens_per_update": batches["max_tokens"] * batches["accumulation"],
                "updates": training["max_updates"],
                "beam": search["beam"],
                "length_penalty": search["length_penalty"],
            }
        )
    return rows


def lengths(named: Mapping[str, str]) -> list[Row]:
    """Return percentiles 5, 50 and 95 of each split, without end symbols."""
    import numpy

    from nmtgrid.data.dataset import Dataset

    def shown(values: Any, digits: int) -> str:
        return ", ".join(f"{value:.{digits}f}" for value in numpy.percentile(values, (5, 50, 95)))

    rows = []
    for name, path in named.items():
        dataset = Dataset.open(path)
        for split in dataset.names:
            pairs = dataset.split(split)
            source, target = (
                numpy.maximum(v, 1) for v in (pairs.source_lengths, pairs.target_lengths)
            )
            rows.append(
                {
                    "corpus": name,
                    "split": split,
                    "pairs": len(pairs),
                    "source": shown(source, 0),
                    "target": shown(target, 0),
                    "target_by_source": shown(target / numpy.maximum(source, 1), 1),
                }
            )
    return rows


def alignments(named: Mapping[str, str], gold: Path | None = None) -> list[Row]:
    """Return entropy (nats), coverage and AER of every model; a file may contain several."""
    rates = {row["system"]: row["aer"] for row in _models(read_json(gold))} if gold else {}
    rows: list[Row] = []
    for name, path in named.items():
        values = read_json(Path(path))
        has_rows = isinstance(values, dict) and "rows" in values
        models = values["rows"] if has_rows else _models(values)
        for row in models:
            model = row.get("block") or row.get("system", name)
            rate = {"aer": rates[model]} if model in rates else {}
            facts = {"model": model, "entropy": row["entropy"], "coverage": row["coverage"]}
            rows.append(facts | rate)
    return rows


def _models(values: Any) -> list[Row]:
    """Return all nested objects in `values` that have an entropy and a coverage."""
    if isinstance(values, list):
        return [row for value in values for row in _models(value)]
    if not isinstance(values, dict):
        return []
    return [values] if "entropy" in values else _models(list(values.values()))


def buckets(named: Mapping[str, str]) -> list[Row]:
    """Return a row for each bucket: its name and size, BLEU of each system, intervals."""
    rows = []
    for values in (read_json(Path(path)) for path in named.values()):
        for section in values["buckets"]:
            score = _score(section["by"])
            for index, bucket in enumerate(section["buckets"]):
                row = {
                    "by": section["by"],
                    "bucket": bucket["bucket"],
                    "sentences": section["sentences"][index],
                }
                for system in section["systems"]:
                    row[system["system"]] = system[score][index]
                    if interval := system.get(f"{score}_interval_95", {index: None})[index]:
                        row[f"{system['system']}_95_%"] = "{:.1f} to {:.1f}".format(*interval)
                rows.append(row | {"signature_bleu": values["signature_bleu"]})
    return rows


def _score(by: str) -> str:
    return "sentence_bleu" if by == "difficulty" else "bleu"


def blocks(named: Mapping[str, str], data: Path, split: str) -> list[Row]:
    """Return entropy and coverage of each decoder block's attention, averaged over heads."""
    from nmtgrid.analysis.alignment.soft_alignments import shares, statistics
    from nmtgrid.data.dataset import Dataset
    from nmtgrid.models.directory import load_model
    from nmtgrid.models.transformer.model import Transformer
    from nmtgrid.search.forced import forced_traces

    rows = []
    for name, path in named.items():
        loaded = load_model(path)
        model, pairs = loaded.model, Dataset.open(data).split(split)
        if not isinstance(model, Transformer):
            raise SystemExit(f"error: {path} is not a Transformer.")
        if model.config.alignment != "last":
            raise SystemExit(f"error: {path} reports the mean attention of its blocks.")
        for block in range(len(model.decoder), 0, -1):
            # Truncated after the block, because traces have the attention of the last block.
            model.decoder = model.decoder[:block]
            tables = (shares(trace) for trace in forced_traces(model, loaded.pipeline, pairs))
            averages = statistics(table for table in tables if table is not None)
            assert averages is not None
            rows.append(
                {
                    "block": f"{name}, block {block}",
                    "entropy": averages.entropy,
                    "coverage": averages.coverage,
                }
            )
    return rows[::-1]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Plot BLEU on the development set against depth, with a line for each kernel."""
    from nmtgrid.analysis.plotting.lines import Line, Panel, draw_panels

    score = next(key for key in sorted(rows[0], reverse=True) if key.startswith("valid_beam"))
    lines = []
    for style, kernel in enumerate(sorted({row["kernel"] for row in rows})):
        line = sorted((row["depth"], row[score]["mean"]) for row in rows if row["kernel"] == kernel)
        points: list[list[float]] = [[x for x, _ in line], [y for _, y in line]]
        lines.append(Line(f"k = {kernel}", points[0], points[1], style, mark=True))
    title = f"Development set, beam {score.removeprefix('valid_beam')}"
    draw_panels([Panel(title, "depth N (blocks)", "BLEU", lines)], path)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds: dict[str, Callable[[Mapping[str, str]], list[Row]]] = {
        "scores": lambda named: [
            *scores(named, arguments.seeds.split(), arguments.compare),
            *([ensemble(arguments.ensemble)] if arguments.ensemble else []),
        ],
        "grid": lambda named: grid(named, arguments.seeds.split()),
        "plans": plans,
        "lengths": lengths,
        "alignments": lambda named: alignments(named, arguments.gold),
        "buckets": buckets,
        "blocks": lambda named: blocks(named, arguments.data, arguments.split),
    }
    parser.add_argument("what", choices=kinds)
    parser.add_argument("named", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--compare")
    parser.add_argument("--ensemble", type=Path)
    parser.add_argument("--gold", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    named = dict(text.split("=", 1) for text in arguments.named)
    rows = kinds[arguments.what](named)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_table(rows, str(arguments.out))
    if arguments.what == "grid":
        draw(rows, arguments.out.with_name(f"{arguments.out.name}.png"))


if __name__ == "__main__":
    main()
