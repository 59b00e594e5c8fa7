"""Word links: Pharaoh files, the alignment error rate, joining two directions."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.analysis.alignment.pharaoh import (
    GoldLinks,
    Links,
    error_rate,
    read_gold,
    read_links,
    symmetrise,
    write_links,
)
from nmtgrid.base.errors import InputError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    links = [[(0, 1), (2, 0)], [], [(1, 1)]]
    path = tmp_path / "a.links"
    write_links(path, links)
    assert path.read_text() == "0-1 2-0\n\n1-1\n"
    assert read_links(path, [(3, 2), (0, 0), (2, 2)]) == links


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n0-0 3-0\n", r":2: the link `3-0` points outside .* source has 3 words, 0 to 2"),
        ("0-0\n1-1\n", r":2: the link `1-1` points outside the sentence: its target has 1 words"),
        ("0-0\n0:0\n", r":2: `0:0` is not a link"),
        ("0-0\n0?0\n", r":2: `0\?0` is not a link"),
        ("0-0\n", r":2: it has 1 line for 2 sentence pairs"),
        ("0-0\n0-0\n\n", r":3: it has 3 lines for 2 sentence pairs"),
        ("0-0\n0-0\n\n\n\n", r":3: it has 5 lines for 2 sentence pairs"),
        ("", "the file is empty"),
        ("0-0\n0--1\n", ":2: `0--1` is not a link"),
    ],
)
def test_bad_files_name_line_and_link(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_links(path, [(1, 1), (3, 1)])
    path.write_text("0-0\n")
    with pytest.raises(InputError, match="its source has no words"):
        read_links(path, [(0, 1)])


def test_error_rate_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "gold"
    path.write_text("0-0 1?1 2p2\n0-1\n")
    gold = read_gold(path, [(3, 3), (2, 2)])
    assert gold[0] == GoldLinks([(0, 0)], [(0, 0), (1, 1), (2, 2)])
    links = [[(0, 0), (1, 1), (1, 2)], [(0, 0)]]
    rate = error_rate(links, gold)
    # |A| = 4, |S| = 2, A and S: 1, A and P: 2.
    assert rate.aer == pytest.approx(1 - (1 + 2) / (4 + 2))
    assert (rate.precision, rate.recall) == (2 / 4, 1 / 2)
    assert rate.f1 == pytest.approx(2 * 1 / (4 + 2))
    assert error_rate([[]], [GoldLinks([], [])]).aer == 0.0
    assert error_rate([gold[0].sure, gold[1].sure], gold).aer == 0.0


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
