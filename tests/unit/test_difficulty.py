"""Difficulty by hand: the reference path of links, and its average lagging."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.analysis.alignment.aligner import AlignedPairs, read_pairs
from nmtgrid.analysis.quality.buckets import read_numbers
from nmtgrid.analysis.quality.difficulty import (
    difficulty_section,
    measure_difficulty,
    reference_path,
    write_numbers,
)
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.systems import SystemOutput
from nmtgrid.base.errors import ConfigError, InputError

PAIRS = AlignedPairs(
    [["a", "b", "c"], ["a", "b", "c", "d"], [], ["a"]],
    [["x", "y", "z"], ["x", "y"], ["x"], []],
    [[(0, 0), (1, 1), (2, 2)], [(0, 1), (3, 0)], [], []],
    "By hand.",
)


def test_paths_by_hand() -> None:
    assert reference_path([(0, 0), (1, 1), (2, 2)], 3) == [1, 2, 3]
    # The last source word comes first: all must be read at once.
    assert reference_path([(0, 1), (3, 0)], 2) == [4, 4]
    # Two links of a word: the later one counts; none: what has been read stays.
    assert reference_path([(0, 1), (2, 1), (1, 3)], 5) == [1, 3, 3, 3, 3]
    assert reference_path([], 2) == [1, 1]
    assert reference_path([], 0) == []


def test_difficulty_by_hand() -> None:
    found = measure_difficulty(PAIRS)
    # Monotone: (1 - 0) + (2 - 1) + (3 - 2) over 3 = 1. All at once: 4, cut off there.
    assert found.lagging[:2].tolist() == [1.0, 4.0]
    # An empty side has no difficulty.
    assert [value != value for value in found.lagging] == [False, False, True, True]
    assert PAIRS.unaligned == pytest.approx(1 / 6)


def test_the_cut_is_where_all_is_read() -> None:
    # z = 1, 1, 3, 3 of |x| = 3, |y| = 4: up to t = 3, (1 - 0) + (1 - 3/4) + (3 - 6/4) over 3.
    pairs = AlignedPairs([["a"] * 3], [["x"] * 4], [[(0, 0), (2, 2)]], "")
    assert measure_difficulty(pairs).lagging.tolist() == [pytest.approx((1 + 0.25 + 1.5) / 3)]


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 5))))
def test_a_path_never_falls_and_has_read_what_is_aligned(links: set[tuple[int, int]]) -> None:
    path = reference_path(sorted(links), 6)
    assert path == sorted(path) and path[0] >= 1
    assert all(path[t] > s for s, t in links)
    # It reads nothing that no word so far is aligned with, but the first.
    assert all(z == max([1, *(s + 1 for s, u in links if u <= t)]) for t, z in enumerate(path))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    write_numbers(path, measure_difficulty(PAIRS).lagging)
    assert path.read_text() == "1.0000\n4.0000\nnan\nnan\n"
    assert read_numbers(path, tmp_path / "r", 4)[:2] == [1.0, 4.0]


def test_the_section_counts_pairs_and_scores_systems(tmp_path: Path) -> None:
    reference = ["x y z", "x y", "x", ""]
    systems = [
        SystemOutput("good", Path("g"), reference),
        SystemOutput("bad", Path("b"), ["q"] * 4),
    ]
    evaluation = Evaluation.of(systems, reference, None, "none")
    found = difficulty_section(PAIRS, measure_difficulty(PAIRS), evaluation, [2.0])
    told = found.values["difficulty"]
    assert [row["sentences"] for row in told["buckets"]] == [1, 1]
    assert (told["sentences"], told["sentences_without"]) == (2, 2)
    assert told["mean"] == pytest.approx(2.5)
    assert [row["sentence_bleu"] for row in found.values["buckets"][0]["systems"]] == [
        [pytest.approx(100.0), pytest.approx(100.0)], [0.0, 0.0],
    ]  # fmt: skip
    for picture in found.pictures:
        picture.draw(tmp_path / f"{picture.name}.png")
    assert len(list(tmp_path.iterdir())) == 2


def test_pairs_of_files(tmp_path: Path) -> None:
    source, target, links = (tmp_path / name for name in ("s", "t", "l"))
    source.write_text("a b\nc\n")
    target.write_text("x\ny\n")
    links.write_text("1-0\n0-0\n")
    assert read_pairs(source, target, links).links == [[(1, 0)], [(0, 0)]]
    assert len(read_pairs(source, target, None, (target, source)).links) == 2
    with pytest.raises(ConfigError, match="both sides"):
        read_pairs(source, source)
    target.write_text("x\n")
    with pytest.raises(InputError, match="lines"):
        read_pairs(source, target)
    links.write_text("1-0\n0-1\n")
    target.write_text("x\ny\n")
    with pytest.raises(InputError, match="l:2: the link `0-1` points outside"):
        read_pairs(source, target, links)
