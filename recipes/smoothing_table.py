"""Table E.3 of recipes/smoothing.sh, from what `decode --json` and `train` wrote.

python recipes/smoothing_table.py LOSS,ARCHITECTURE=FILE... --data DATA --out PREFIX
    A row for each loss; for each architecture tokenised BLEU, mean and standard deviation of the
    files of one name, the same of how much it lies above `mle` of the same seed (one seed draws the
    same weights and batches), and minutes of training per epoch. FILE lies in its model directory.
    Writes PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.spread import shown, spread

Row = dict[str, Any]
_TITLES = ("BLEU", "above mle", "minutes per epoch")


def read(named: Sequence[str], epoch: int) -> list[Row]:
    """Return loss, architecture, BLEU and minutes per epoch of `epoch` target tokens."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for text in named:
        label, _, path = text.partition("=")
        loss, _, architecture = label.partition(",")
        groups.setdefault((loss, architecture), []).append(Path(path))
    bleu = {
        name: {_seed(file): json.loads(file.read_text(encoding="utf-8"))["bleu_tokenized"]
               for file in files}
        for name, files in groups.items()
    }  # fmt: skip
    rows = []
    for (loss, architecture), files in groups.items():
        values, plain = bleu[loss, architecture], bleu.get(("mle", architecture), {})
        minutes = [minutes_of(file.parent / "metrics.jsonl", epoch) for file in files]
        row = {
            "loss": loss, "architecture": architecture, "seeds": len(files),
            "bleu_tokenized": spread(list(values.values())),
            "minutes_per_epoch": statistics.mean(minutes),
        }  # fmt: skip
        if loss != "mle" and (shared := values.keys() & plain.keys()):
            row["above_mle"] = spread([values[seed] - plain[seed] for seed in sorted(shared)])
        rows.append(row)
    return rows


def _seed(scores: Path) -> int:
    """Return the seed of the model in whose directory `scores` lies."""
    config = json.loads((scores.parent / "config.json").read_text(encoding="utf-8"))
    return int(config["settings"]["training"]["seed"])


def minutes_of(metrics: Path, epoch: int) -> float:
    """Return how long training on `epoch` target tokens takes, validation not counted."""
    seconds = tokens = 0.0
    for line in metrics.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "updated":
            tokens += event["tokens"]
            seconds += event["tokens"] / event["tokens_per_second"]
    return seconds / tokens * epoch / 60


def markdown(rows: Sequence[Row]) -> str:
    """Return the table: losses in rows, architectures side by side."""
    losses = list(dict.fromkeys(row["loss"] for row in rows))
    names = list(dict.fromkeys(row["architecture"] for row in rows))
    titles = [f"{name}: {title}" for name in names for title in _TITLES]
    lines = [["loss", *titles], ["---"] * (1 + len(titles))]
    for loss in losses:
        held = {row["architecture"]: row for row in rows if row["loss"] == loss}
        lines.append([loss, *(cell for name in names for cell in _cells(held.get(name)))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return ["-"] * len(_TITLES)
    above = shown(row["above_mle"], "+.2f") if "above_mle" in row else "-"
    return [shown(row["bleu_tokenized"]), above, f"{row['minutes_per_epoch']:.2f}"]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", metavar="LOSS,ARCHITECTURE=FILE")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    lengths = Dataset.open(given.data).split("train").target_lengths
    rows = read(given.results, int(lengths.sum()) + len(lengths))
    table = markdown(rows)
    Path(f"{given.out}.md").write_text(table, encoding="utf-8")
    Path(f"{given.out}.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(table, end="")


if __name__ == "__main__":
    main()
