"""Tables E.1 and E.3 of recipes/captions.sh and smoothing.sh, from output of `decode` and `train`.

python -m recipes.losses_table LOSS,ARCHITECTURE=FILE... --data DATA --out PREFIX
    A row for each loss and architecture: mean and standard deviation over the files of that name
    of tokenised BLEU (for captions: BLEU-1, BLEU-4 and CIDEr) and of the gain of the last of these
    over `mle` with the same seed (a seed fixes initial weights and batches); and training minutes
    per epoch. FILE is in its model directory.
    Writes PREFIX.md and PREFIX.json and, if a loss can be compared with `mle`, PREFIX.png.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from nmtgrid.analysis.plotting.bars import Group, Series, draw_bars
from nmtgrid.analysis.training_curves import read_run
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.quality import spread
from recipes.tables import Row, read_json, write_table

TRANSLATIONS = {"bleu_tokenized": "BLEU"}
CAPTIONS = {"bleu_1": "BLEU-1", "bleu_4": "BLEU-4", "cider": "CIDEr"}


def read(named: Sequence[str], epoch: int, scores: Mapping[str, str] = TRANSLATIONS) -> list[Row]:
    """Return loss, architecture, `scores` and minutes per epoch of `epoch` target tokens."""
    groups: dict[tuple[str, str], dict[int, Path]] = {}
    for text in named:
        label, _, path = text.partition("=")
        loss, _, architecture = label.partition(",")
        groups.setdefault((loss, architecture), {})[_seed(Path(path))] = Path(path)
    by_system = {
        name: {seed: read_json(file) for seed, file in files.items()}
        for name, files in groups.items()
    }
    last = list(scores)[-1]
    rows = []
    for (loss, architecture), files in groups.items():
        values, plain = by_system[loss, architecture], by_system.get(("mle", architecture), {})
        minutes = [minutes_of(file.parent / "metrics.jsonl", epoch) for file in files.values()]
        row = {
            "loss": loss, "architecture": architecture, "seeds": len(files),
            **{score: spread([float(row[score]) for row in values.values()]) for score in scores},
            "minutes_per_epoch": statistics.mean(minutes),
        }  # fmt: skip
        any_seed = next(iter(values.values()))
        row |= {f"signature_{score}": any_seed[f"signature_{score}"] for score in scores}
        if loss != "mle" and (shared := sorted(values.keys() & plain.keys())):
            row["above_mle"] = spread([values[seed][last] - plain[seed][last] for seed in shared])
        rows.append(row)
    return rows


def _seed(scores: Path) -> int:
    """Return the seed of the model whose directory contains `scores`."""
    config = read_json(scores.parent / "config.json")
    return int(config["settings"]["training"]["seed"])


def minutes_of(metrics: Path, epoch: int) -> float:
    """Return the minutes of training on `epoch` target tokens, without validation."""
    rate = read_run(metrics, "").tokens_per_second
    return epoch / rate / 60 if rate else math.nan


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Plot the gain of each loss over `mle`, with deviations, if any loss has one."""
    compared = [row for row in rows if "above_mle" in row]
    if not compared:
        return
    losses = list(dict.fromkeys(row["loss"] for row in compared))
    seeds = sorted({row["seeds"] for row in compared})
    counts = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    averaged = "one seed" if seeds == [1] else f"mean ± standard deviation; seeds: {counts}"
    series = []
    for name in dict.fromkeys(row["architecture"] for row in compared):
        gains = {row["loss"]: row["above_mle"] for row in compared if row["architecture"] == name}
        means = [gains[loss]["mean"] if loss in gains else None for loss in losses]
        low, high = (_ends(gains, losses, sign) for sign in (-1, 1))
        series.append(Series(name, means, low, high))
    draw_bars(
        [Group(loss) for loss in losses], series, path,
        title=f"{title} above maximum likelihood of the same seed",
        x_label=f"loss ({averaged})", y_label=title,
    )  # fmt: skip


def _ends(gains: Mapping[str, Row], losses: Sequence[str], sign: int) -> list[float | None]:
    """Return mean + `sign` x deviation of each loss's gain, None for a loss without one."""
    return [
        gains[loss]["mean"] + sign * (gains[loss]["standard_deviation"] or 0.0)
        if loss in gains else None
        for loss in losses
    ]  # fmt: skip


def main() -> None:
    """Write the table and the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", metavar="LOSS,ARCHITECTURE=FILE")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    dataset = Dataset.open(arguments.data)
    lengths = dataset.split("train").target_lengths
    scores = TRANSLATIONS if dataset.pictures is None else CAPTIONS
    rows = read(arguments.results, int(lengths.sum()) + len(lengths), scores)
    write_table(rows, arguments.out)
    draw(rows, list(scores.values())[-1], Path(f"{arguments.out}.png"))


if __name__ == "__main__":
    main()
