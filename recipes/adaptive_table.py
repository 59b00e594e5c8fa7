"""Tables 5.2 to 5.6 and figure 5.7 of recipes/adaptive.sh, from the output of its commands.

python -m recipes.adaptive_table exits NAME... --folder DIR --seeds "1 2 3" --split tuned|test
        --out PREFIX
    BLEU of random exits, of each fixed exit and of their mean, mean and standard deviation over
    seeds: a row for each NAME, from the model DIR/NAME-seedN and from DIR/eval/NAME-fixed-seedN,
    the output of `adaptive-tune --out`; baselines, if any, come first. Writes PREFIX.md and
    PREFIX.json.
python -m recipes.adaptive_table sweep LAMBDA,SIGMA=FILE... --out PREFIX
    The average exit in each FILE that `decode --exit auto --json` wrote, as a function of lambda
    (for sigma 0) and of sigma. Writes PREFIX.png, PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.metrics.quality import spread
from recipes.tables import Row, read_json, write_table


def exits(names: Sequence[str], folder: Path, seeds: Sequence[str], split: str) -> list[Row]:
    """Return a row for each model: BLEU by exit number, "random" and "mean", over the seeds."""
    rows: list[Row] = []
    for name in names:
        tunings = [
            read_json(folder / f"eval/{name}-fixed-seed{seed}/results.json") for seed in seeds
        ]
        runs = [read_json(folder / f"{name}-seed{seed}/done.json") for seed in seeds]
        if tunings[0]["baselines"] and not any(row["system"] == "baselines" for row in rows):
            scores = [
                {str(row["depth"]): _bleu(row, split) for row in tuning["baselines"]}
                for tuning in tunings
            ]
            rows.insert(0, {"system": "baselines", "seeds": " ".join(seeds)} | _over_seeds(scores))
        scores = [
            {str(row["exit"]): _bleu(row, split) for row in tuning["fixed"]} for tuning in tunings
        ]
        rows.append(
            {
                "system": name,
                "seeds": " ".join(seeds),
                "updates": round(statistics.mean(run["updates"] for run in runs)),
                "random": spread([_bleu(tuning["uniform"], split) for tuning in tunings]),
                "signature_bleu": tunings[0]["signature_bleu"],
            }
            | _over_seeds(scores)
        )
    numbers = sorted({key for row in rows for key in row if key.isdigit()}, key=int)
    columns = ["system", "seeds", "updates", "random", *numbers, "mean", "signature_bleu"]
    return [{column: row.get(column) for column in columns} for row in rows]


def _over_seeds(scores: Sequence[dict[str, float]]) -> Row:
    """Return BLEU by exit number and its mean over exits, averaged over seeds."""
    by_exit = {number: spread([score[number] for score in scores]) for number in scores[0]}
    return by_exit | {"mean": spread([statistics.mean(score.values()) for score in scores])}


def sweep(named: Sequence[str]) -> list[Row]:
    """Return lambda, sigma, average exit and BLEU of each file."""
    rows = []
    for text in named:
        setting, _, path = text.partition("=")
        penalty, sigma = setting.split(",")
        values = read_json(Path(path))
        rows.append(
            {
                "lambda": float(penalty),
                "sigma": float(sigma),
                "average_exit": values["average_exit"],
                "bleu": values["bleu_tokenized"],
                "signature_bleu": values["signature_bleu_tokenized"],
            }
        )
    return rows


def draw(rows: Sequence[Row], path: Path) -> None:
    """Plot the average exit against lambda, and against sigma for each lambda with sigma > 0."""
    from nmtgrid.analysis.plotting.lines import Line, Panel, draw_panels

    def line(name: str, points: Sequence[tuple[float, float]], style: int) -> Line:
        in_order = sorted(points)
        return Line(name, [x for x, _ in in_order], [y for _, y in in_order], style, mark=True)

    alone = [(row["lambda"], row["average_exit"]) for row in rows if row["sigma"] == 0]
    penalties = sorted({row["lambda"] for row in rows if row["sigma"] > 0})
    lines = []
    for style, penalty in enumerate(penalties, 1):
        points = [(row["sigma"], row["average_exit"]) for row in rows if row["lambda"] == penalty]
        lines.append(line(f"λ = {penalty:g}", points, style))
    y_label = "average exit (blocks per token)"
    panels = [Panel("Cost of a block", "λ (nats per block)", y_label, [line("σ = 0", alone, 0)])]
    if lines:
        panels.append(Panel("Width of the kernel", "σ (tokens squared)", y_label, lines))
    draw_panels(panels, path)


def _bleu(row: Row, split: str) -> float:
    return float((row["test"] if split == "test" else row)["bleu"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("exits", "sweep"))
    parser.add_argument("named", nargs="+", metavar="NAME")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--split", choices=("tuned", "test"), default="tuned")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    named, out = arguments.named, arguments.out
    if arguments.what == "exits":
        rows = exits(named, arguments.folder, arguments.seeds.split(), arguments.split)
        write_table(rows, str(out))
    else:
        rows = sweep(named)
        write_table(rows, str(out))
        draw(rows, out.with_name(f"{out.name}.png"))


if __name__ == "__main__":
    main()
