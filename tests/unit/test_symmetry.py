"""Joining two directions: the cases of the definition, and a slow version of it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.analysis.alignment.pharaoh import Links, symmetrise

POINTS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)))


def slow(first: set[tuple[int, int]], second: set[tuple[int, int]], final: bool) -> Links:
    """Grow on a table of 5 x 5, one round of all candidates after the other."""
    table = {p for p in first if p in second}

    def free(points: set[tuple[int, int]], i: int, j: int) -> tuple[bool, bool]:
        return all(p[0] != i for p in points), all(p[1] != j for p in points)

    grown = True
    while grown:
        grown = False
        for i, j in itertools.product(range(5), range(5)):
            near = any(abs(i - x) <= 1 and abs(j - y) <= 1 for x, y in table)
            if (i, j) in (first | second) - table and near and any(free(table, i, j)):
                table.add((i, j))
                grown = True
    for points in (first, second) if final else ():
        for i, j in sorted(points):
            if all(free(table, i, j)):
                table.add((i, j))
    return sorted(table)


@given(POINTS, POINTS)
def test_growing_is_its_definition(
    first: set[tuple[int, int]], second: set[tuple[int, int]]
) -> None:
    assert symmetrise(first, second, "grow-diag") == slow(first, second, final=False)
    assert symmetrise(first, second, "grow-diag-final-and") == slow(first, second, final=True)
    assert symmetrise(first, second, "union") == sorted(first | second)
    assert symmetrise(first, second, "intersection") == sorted(first & second)
    assert symmetrise(first, second, "forward") == sorted(first)
    assert symmetrise(first, second, "backward") == sorted(second)


def test_by_hand() -> None:
    forward, backward = [(0, 0), (1, 1), (3, 4)], [(0, 0), (1, 2), (4, 4)]
    # (1, 1) touches (0, 0); (1, 2) touches (1, 1) and target 2 is free.
    assert symmetrise(forward, backward, "grow-diag") == [(0, 0), (1, 1), (1, 2)]
    # (3, 4) has two free words; then target 4 is taken.
    assert symmetrise(forward, backward, "grow-diag-final-and") == [(0, 0), (1, 1), (1, 2), (3, 4)]
