"""Table E.1 of recipes/captions.sh, from what `decode --json` wrote.

python recipes/captions_table.py LOSS,DECODER=FILE... --out PREFIX
    A row for each loss, columns of BLEU-1, BLEU-4 and CIDEr for each decoder: the mean of the files
    of one name, with the standard deviation where there are several. Writes PREFIX.md and
    PREFIX.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.metrics.spread import shown, spread

SCORES = {"bleu_1": "BLEU-1", "bleu_4": "BLEU-4", "cider": "CIDEr"}

Row = dict[str, Any]


def read(named: Sequence[str]) -> list[Row]:
    """Return loss, decoder, and mean and deviation of each score, in the order given."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for text in named:
        label, _, path = text.partition("=")
        loss, _, decoder = label.partition(",")
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        groups.setdefault((loss, decoder), []).append(values)
    return [
        {"loss": loss, "decoder": decoder, "seeds": len(held)}
        | {name: spread([float(one[name]) for one in held]) for name in SCORES}
        for (loss, decoder), held in groups.items()
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return the table: losses in rows, decoders side by side."""
    losses = list(dict.fromkeys(row["loss"] for row in rows))
    decoders = list(dict.fromkeys(row["decoder"] for row in rows))
    titles = [f"{name}: {title}" for name in decoders for title in SCORES.values()]
    lines = [["loss", *titles], ["---"] * (1 + len(titles))]
    for loss in losses:
        held = {row["decoder"]: row for row in rows if row["loss"] == loss}
        cells = [_cell(held.get(name), score) for name in decoders for score in SCORES]
        lines.append([loss, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(row: Row | None, score: str) -> str:
    return "-" if row is None else shown(row[score])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("named", nargs="+", metavar="LOSS,DECODER=FILE")
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    rows = read(given.named)
    text = markdown(rows)
    given.out.with_name(f"{given.out.name}.json").write_text(
        json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    given.out.with_name(f"{given.out.name}.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
