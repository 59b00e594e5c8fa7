"""Finds a threshold of a trained policy and a k of wait-k of equal lagging, for figure 4.16.

python -m recipes.nearest_points AGENT WAIT-7 OFFLINE
    Prints the threshold of the agent and the k of the wait-7 model with the closest lagging, the k
    of the offline model whose lagging is closest to that agent's, and a sentence on all three.
    AGENT, WAIT-7 and OFFLINE are files `results.json` written by `nmtgrid online-eval --out`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from recipes.tables import Row, read_json


def nearest(agent: Sequence[Row], waits: Sequence[Row]) -> tuple[Row, Row]:
    """Return the pair of threshold and k with the smallest difference in average lagging."""
    pairs = itertools.product(
        (row for row in agent if row.get("threshold")), (row for row in waits if row.get("k"))
    )
    return min(pairs, key=lambda pair: abs(_lagging(pair[0]) - _lagging(pair[1])))


def _lagging(row: Row) -> float:
    # Null if every translation is empty.
    return float(row["al"] or 0)


def _describe(row: Row) -> str:
    return f"AL {_lagging(row):.2f}, test BLEU {row['bleu_tokenized']:.1f}"


def main(files: Sequence[str]) -> None:
    """Print the settings of three result files."""
    agent, waits, offline = (read_json(Path(file))["settings"] for file in files)
    ours, theirs = nearest(agent, waits)
    _, untrained = nearest([ours], offline)
    threshold, k, offline_k = f"{ours['threshold']:g}", f"{theirs['k']:g}", f"{untrained['k']:g}"
    print(
        f"{threshold} {k} {offline_k} The agent at {threshold}: {_describe(ours)}. "
        f"Wait-7 at k = {k}: {_describe(theirs)}. "
        f"The offline model at k = {offline_k}: {_describe(untrained)}."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
