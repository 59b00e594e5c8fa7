"""Tables 5.2 to 5.6 and figure 5.7 of recipes/adaptive.sh, from what its commands left.

python recipes/adaptive_table.py exits NAME=DIR... --split tuned|test --out PREFIX
    BLEU of random exits, of each fixed exit and their mean, a row for each DIR that `adaptive-tune
    --out` wrote; baselines, where one of them has any, first. Writes PREFIX.md and PREFIX.json.
python recipes/adaptive_table.py sweep LAMBDA,SIGMA=FILE... --out PREFIX
    The average exit of each FILE that `decode --exit auto --json` wrote, along lambda (where sigma
    is 0) and along sigma. Writes PREFIX.png, PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from recipes.results import Row, write_table


def exits(named: Sequence[str], split: str) -> list[Row]:
    """Return a row for each tuning: BLEU by exit number, "random" and "mean"."""
    rows: list[Row] = []
    for text in named:
        name, _, folder = text.partition("=")
        values = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
        if values["baselines"] and not any(row["system"] == "baselines" for row in rows):
            by_depth = {str(row["depth"]): _bleu(row, split) for row in values["baselines"]}
            rows.insert(0, {"system": "baselines"} | by_depth)
        by_exit = {str(row["exit"]): _bleu(row, split) for row in values["fixed"]}
        random = _bleu(values["uniform"], split)
        rows.append({"system": name, "random": random} | by_exit)
    numbers = sorted({key for row in rows for key in row if key.isdigit()}, key=int)
    return [
        {name: row.get(name) for name in ("system", "random", *numbers)}
        | {"mean": statistics.mean(row[name] for name in numbers if name in row)}
        for row in rows
    ]


def sweep(named: Sequence[str]) -> list[Row]:
    """Return lambda, sigma, average exit and BLEU of each file."""
    rows = []
    for text in named:
        setting, _, path = text.partition("=")
        penalty, sigma = setting.split(",")
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        rows.append(
            {
                "lambda": float(penalty),
                "sigma": float(sigma),
                "average_exit": values["average_exit"],
                "bleu": values["bleu_tokenized"],
            }
        )
    return rows


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the average exit along lambda, and along sigma for each lambda that has several."""
    from nmtgrid.analysis.plotting.lines import Line, Panel
    from nmtgrid.analysis.plotting.lines import draw_panels as draw_page

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
    draw_page(panels, path)


def _bleu(row: Row, split: str) -> float:
    return float((row["test"] if split == "test" else row)["bleu"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("exits", "sweep"))
    parser.add_argument("named", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--split", choices=("tuned", "test"), default="tuned")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    named, out = arguments.named, arguments.out
    if arguments.what == "exits":
        write_table(exits(named, arguments.split), str(out))
    else:
        rows = sweep(named)
        write_table(rows, str(out))
        draw(rows, out.with_name(f"{out.name}.png"))


if __name__ == "__main__":
    main()
