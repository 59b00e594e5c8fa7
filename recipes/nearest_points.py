"""Which threshold of a trained policy and which k of wait-k lag alike, for figure 4.16.

python -m recipes.nearest_points AGENT WAIT-K
    Prints the threshold, the k and a sentence on both; AGENT and WAIT-K are the `results.json` that
    `nmtgrid online-eval --out` wrote.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from recipes.results import Row, read_json


def nearest(agent: Sequence[Row], waits: Sequence[Row]) -> tuple[Row, Row]:
    """Return the threshold and the k whose average lagging differs least."""
    pairs = itertools.product(
        (row for row in agent if row.get("threshold")), (row for row in waits if row.get("k"))
    )
    return min(pairs, key=lambda pair: abs(_lagging(pair[0]) - _lagging(pair[1])))


def _lagging(row: Row) -> float:
    # Null where every translation is empty.
    return float(row["al"] or 0)


def _describe(row: Row) -> str:
    return f"AL {_lagging(row):.2f}, test BLEU {row['bleu_tokenized']:.1f}"


def main(files: Sequence[str]) -> None:
    """Print the settings of two result files."""
    agent, waits = (read_json(Path(file))["settings"] for file in files)
    ours, theirs = nearest(agent, waits)
    threshold, k = f"{ours['threshold']:g}", f"{theirs['k']:g}"
    print(
        f"{threshold} {k} The agent at {threshold}: {_describe(ours)}. "
        f"Wait-7 at k = {k}: {_describe(theirs)}."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
