"""Joining the word alignments of two directions (Och and Ney 2003; Koehn et al. 2003)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Links = list[tuple[int, int]]
"""(source word, target word), from 0, in order."""
Heuristic = Literal[
    "grow-diag-final-and", "grow-diag", "intersection", "union", "forward", "backward"
]
HEURISTICS = get_args(Heuristic)

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrise(
    forward: Iterable[tuple[int, int]], backward: Iterable[tuple[int, int]], heuristic: Heuristic
) -> Links:
    """Return the links that the heuristic makes of those of two directions.

    `grow-diag` begins with what both have and adds, as long as it can, links of either that touch
    one it has (corners count) and have a word without link; `grow-diag-final-and` then adds links
    of the one, then the other, whose words both have none.
    """
    first, second = set(forward), set(backward)
    if heuristic == "forward":
        return sorted(first)
    if heuristic == "backward":
        return sorted(second)
    if heuristic == "union":
        return sorted(first | second)
    links = first & second
    if heuristic == "intersection":
        return sorted(links)
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    _grow(links, sources, targets, sorted((first | second) - links))
    if heuristic == "grow-diag-final-and":
        for i, j in (*sorted(first), *sorted(second)):
            if i not in sources and j not in targets:
                links.add((i, j))
                sources.add(i)
                targets.add(j)
    return sorted(links)


def _grow(
    links: set[tuple[int, int]], sources: set[int], targets: set[int], candidates: Links
) -> None:
    """Add to `links` what touches them and has a word without link, until nothing is left to."""
    while candidates:
        left = []
        for i, j in candidates:
            is_free = i not in sources or j not in targets
            if is_free and any((i + x, j + y) in links for x, y in _NEIGHBOURS):
                links.add((i, j))
                sources.add(i)
                targets.add(j)
            else:
                left.append((i, j))
        if len(left) == len(candidates):
            return
        candidates = left
