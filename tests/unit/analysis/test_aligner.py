"""The word aligner against known links, EM by hand and slow twins; difficulty from its links."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.analysis.alignment import aligner
from nmtgrid.analysis.alignment.aligner import (
    AlignedPairs,
    AlignerSettings,
    align,
    exp_digamma,
    fitted_tension,
    form,
    lay_out,
    link_pairs,
    prior_table,
    read_words,
)
from nmtgrid.analysis.alignment.pharaoh import GoldLinks, error_rate
from nmtgrid.analysis.quality.buckets import read_numbers, write_numbers
from nmtgrid.analysis.quality.difficulty import (
    difficulty_section,
    measure_difficulty,
    reference_path,
)
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.systems import SystemOutput
from nmtgrid.base.errors import ConfigError, InputError
from tests.unit.analysis.aligned_corpus import corpus

# AER of fast_align (clab/fast_align, commit cab1e9a, `-d -o -v` in both directions, then atools),
# run once on `corpus(1000, seed)` for seeds 1, 2, 3.
FAST_ALIGN = {
    "grow-diag-final-and": (0.0422, 0.0320, 0.0265),
    "intersection": (0.0891, 0.0843, 0.0665),
    "union": (0.0455, 0.0358, 0.0307),
}


@pytest.mark.parametrize(
    ("heuristic", "seed"),
    [*(("grow-diag-final-and", seed) for seed in (1, 2, 3)), ("intersection", 2), ("union", 3)],
)
def test_errors_are_at_fast_aligns_level(heuristic: str, seed: int) -> None:
    source, target, links = corpus(1000, seed)
    settings = AlignerSettings(heuristic=heuristic)  # type: ignore[arg-type]
    aligned = align(source, target, settings).links
    rate = error_rate(aligned, [GoldLinks(sure, sure) for sure in links])
    assert rate.aer <= FAST_ALIGN[heuristic][seed - 1] + 0.03


def test_links_of_small_texts() -> None:
    # Alone, `a b` - `x y` says nothing against the diagonal; the others say that it crosses.
    source = [["a", "b"], ["a"], ["b"], ["a", "c"], ["c", "b"]]
    target = [["y", "x"], ["x"], ["y"], ["x", "z"], ["z", "y"]]
    assert align(source[:1], target[:1]).links == [[(0, 0), (1, 1)]]
    assert align(source[:1], target[:1], more=(source[1:], target[1:])).links == [[(0, 1), (1, 0)]]
    # Uniform prior (tension 0), no null: after one step t(x|a) = (1/2 + 1) / (1/2 + 1/2 + 1).
    source, target = [["a", "b"], ["a"]], [["x", "y"], ["x"]]
    settings = AlignerSettings(2, null=0.0, tension=0.0, concentration=0.0, heuristic="forward")
    # x: t(x|a) = 3/4 against t(x|b) = 1/2; y: t(y|a) = 1/4 against t(y|b) = 1/2.
    assert align(source, target, settings).links == [[(0, 0), (1, 1)], [(0, 0)]]
    # Given the target: t(a|x) = 3/4, t(b|x) = 1/4, t(a|y) = t(b|y) = 1/2.
    backward = AlignerSettings(2, null=0.0, tension=0.0, concentration=0.0, heuristic="backward")
    assert align(source, target, backward).links == [[(0, 0), (1, 1)], [(0, 0)]]
    assert align([[], ["a"], []], [["x"], [], []]).links == [[], [], []]
    assert align([], []).links == []
    assert align([["a"], []], [["x"], ["y"]]).links == [[(0, 0)], []]
    assert form("Haus.") == form("haus") == "haus" and form("...") == "..."
    assert form("ab@@") == "ab@@" and form("don't") == "don't"


def test_the_layout_holds_every_pair_of_words() -> None:
    source, target, _ = corpus(40)
    layout = lay_out(source, target)
    names: dict[tuple[int, int], tuple[str, str]] = {}
    seen = []
    for block in layout.blocks:
        for row, line in enumerate(block.members):
            seen.append(line)
            for t, word in enumerate(target[line]):
                for s, other in enumerate(source[line]):
                    cell = int(block.cells[row, t, s])
                    key = (int(layout.pair_source[cell]), int(layout.pair_target[cell]))
                    assert key == (int(block.source[row, s]), int(block.target[row, t]))
                    assert names.setdefault(key, (other, word)) == (other, word)
    assert sorted(seen) == list(range(40))
    assert len(names) == len(set(names.values())) == len(layout.pair_source)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, _ = corpus(60)
    whole = align(source, target).links
    monkeypatch.setattr(aligner, "_CHUNK", 300)
    assert align(source, target).links == whole


def test_input_at_fault_is_named() -> None:
    with pytest.raises(InputError, match="line 2 has 5,000 source and 4,000 target words"):
        align([["a"], ["a"] * 5000], [["x"], ["x"] * 4000])


def test_prior_and_digamma_by_formula() -> None:
    shares, distance = prior_table(2, 3, 4.0)
    weights = [[math.exp(-4.0 * abs(t / 2 - j / 3)) for j in (1, 2, 3)] for t in (1, 2)]
    assert shares == pytest.approx(numpy.array([[w / sum(row) for w in row] for row in weights]))
    assert distance[1, 0] == pytest.approx(-2 / 3)
    # digamma(1) = -gamma, digamma(1/2) = -gamma - 2 ln 2, digamma(n + 1) = digamma(n) + 1/n.
    gamma = 0.5772156649015329
    x = numpy.array([1.0, 0.5, 4.0, 0.01, 1e6])
    small = -1 / 0.01 - gamma + 0.01 * math.pi**2 / 6 - 1e-4 * 1.2020569 + 1e-6 * 1.0823232
    expected = [-gamma, -gamma - 2 * math.log(2), 1 + 1 / 2 + 1 / 3 - gamma, small]
    expected.append(math.log(1e6) - 0.5e-6)
    assert numpy.log(exp_digamma(x)) == pytest.approx(numpy.array(expected), rel=1e-7)


@given(st.floats(0.3, 20.0), st.lists(st.tuples(st.integers(1, 9), st.integers(2, 9)), min_size=1))
def test_the_tension_is_found_again(tension: float, shapes: list[tuple[int, int]]) -> None:
    weights = {shape: numpy.linspace(0.5, 1.0, shape[0]) for shape in shapes}
    truth = 0.0
    for (m, n), targets in weights.items():
        shares, distance = prior_table(m, n, tension)
        truth += float((targets * (shares * distance).sum(1)).sum())
    likeliest = fitted_tension(truth, weights)
    for m, n in shapes:
        fitted, sought = prior_table(m, n, likeliest)[0], prior_table(m, n, tension)[0]
        assert fitted == pytest.approx(sought, abs=1e-3)


PAIRS = AlignedPairs(
    [["a", "b", "c"], ["a", "b", "c", "d"], [], ["a"]],
    [["x", "y", "z"], ["x", "y"], ["x"], []],
    [[(0, 0), (1, 1), (2, 2)], [(0, 1), (3, 0)], [], []],
    "By hand.",
)


def test_paths_and_difficulty_by_hand(tmp_path: Path) -> None:
    assert reference_path([(0, 0), (1, 1), (2, 2)], 3) == [1, 2, 3]
    # The last source word comes first: all must be read at once.
    assert reference_path([(0, 1), (3, 0)], 2) == [4, 4]
    # Two links of a word: the later one counts; none: what has been read stays.
    assert reference_path([(0, 1), (2, 1), (1, 3)], 5) == [1, 3, 3, 3, 3]
    assert reference_path([], 2) == [1, 1] and reference_path([], 0) == []


def test_difficulty_by_hand(tmp_path: Path) -> None:
    measured = measure_difficulty(PAIRS)
    # Monotone: (1 - 0) + (2 - 1) + (3 - 2) over 3 = 1. All at once: 4, cut off there.
    assert measured[:2].tolist() == [1.0, 4.0]
    # An empty side has no difficulty.
    assert [value != value for value in measured] == [False, False, True, True]
    assert PAIRS.unaligned == pytest.approx(1 / 6)
    # z = 1, 1, 3, 3 of |x| = 3, |y| = 4: up to t = 3, (1 - 0) + (1 - 3/4) + (3 - 6/4) over 3.
    pairs = AlignedPairs([["a"] * 3], [["x"] * 4], [[(0, 0), (2, 2)]], "")
    assert measure_difficulty(pairs).tolist() == [pytest.approx((1 + 0.25 + 1.5) / 3)]
    path = tmp_path / "d.txt"
    write_numbers(path, measure_difficulty(PAIRS))
    assert path.read_text() == "1.0000\n4.0000\nnan\nnan\n"
    assert read_numbers(path, tmp_path / "r", 4)[:2] == [1.0, 4.0]


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 5))))
def test_a_path_never_falls_and_has_read_what_is_aligned(links: set[tuple[int, int]]) -> None:
    path = reference_path(sorted(links), 6)
    assert path == sorted(path) and path[0] >= 1
    assert all(path[t] > s for s, t in links)
    # It reads nothing that no word so far is aligned with, but the first.
    assert all(z == max([1, *(s + 1 for s, u in links if u <= t)]) for t, z in enumerate(path))


def test_the_section_counts_pairs_and_scores_systems(tmp_path: Path) -> None:
    reference = ["x y z", "x y", "x", ""]
    systems = [
        SystemOutput("good", Path("g"), reference),
        SystemOutput("bad", Path("b"), ["q"] * 4),
    ]
    evaluation = Evaluation.of(systems, reference, None, "none")
    report = difficulty_section(PAIRS, measure_difficulty(PAIRS), evaluation, [2.0])
    values = report.values["difficulty"]
    assert [row["sentences"] for row in values["buckets"]] == [1, 1]
    assert (values["sentences"], values["sentences_without"]) == (2, 2)
    assert values["mean"] == pytest.approx(2.5)
    assert [row["sentence_bleu"] for row in report.values["buckets"][0]["systems"]] == [
        [pytest.approx(100.0), pytest.approx(100.0)], [0.0, 0.0],
    ]  # fmt: skip
    for picture in report.pictures:
        picture.draw(tmp_path / f"{picture.name}.png")
    assert len(list(tmp_path.iterdir())) == 2


def test_pairs_of_files(tmp_path: Path) -> None:
    source, target, links = (tmp_path / name for name in ("s", "t", "l"))
    source.write_text("a b\nc\n")
    target.write_text("x\ny\n")
    links.write_text("1-0\n0-0\n")
    assert link_pairs(read_words(source, target), links).links == [[(1, 0)], [(0, 0)]]
    assert len(link_pairs(read_words(source, target), None, (target, source)).links) == 2
    with pytest.raises(ConfigError, match="as source and as target"):
        link_pairs(read_words(source, source))
    target.write_text("x\n")
    with pytest.raises(InputError, match="has 1 line, but"):
        link_pairs(read_words(source, target))
    links.write_text("1-0\n0-1\n")
    target.write_text("x\ny\n")
    with pytest.raises(InputError, match="l:2: the link `0-1` points outside"):
        link_pairs(read_words(source, target), links)
