"""The own word aligner: known links, EM by hand, its parts against slow and independent ones."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.analysis.alignment import aligner
from nmtgrid.analysis.alignment.aligner import (
    AlignerSettings,
    align,
    exp_digamma,
    fitted_tension,
    form,
    lay_out,
    prior_table,
)
from nmtgrid.analysis.alignment.pharaoh import GoldLinks, error_rate
from nmtgrid.base.errors import ConfigError, InputError
from tests.unit.aligned_corpus import corpus

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
    found = align(source, target, settings).links
    rate = error_rate(found, [GoldLinks(one, one) for one in links])
    assert rate.aer <= FAST_ALIGN[heuristic][seed - 1] + 0.03


def test_a_lexicon_that_only_more_text_shows() -> None:
    # Alone, `a b` - `x y` says nothing against the diagonal; the others say that it crosses.
    source = [["a", "b"], ["a"], ["b"], ["a", "c"], ["c", "b"]]
    target = [["y", "x"], ["x"], ["y"], ["x", "z"], ["z", "y"]]
    assert align(source[:1], target[:1]).links == [[(0, 0), (1, 1)]]
    assert align(source, target, count=1).links == [[(0, 1), (1, 0)]]


def test_one_step_of_em_by_hand() -> None:
    # Uniform prior (tension 0), no null: after one step t(x|a) = (1/2 + 1) / (1/2 + 1/2 + 1).
    source, target = [["a", "b"], ["a"]], [["x", "y"], ["x"]]
    settings = AlignerSettings(2, null=0.0, tension=0.0, concentration=0.0, heuristic="forward")
    # x: t(x|a) = 3/4 against t(x|b) = 1/2; y: t(y|a) = 1/4 against t(y|b) = 1/2.
    assert align(source, target, settings).links == [[(0, 0), (1, 1)], [(0, 0)]]
    # Given the target: t(a|x) = 3/4, t(b|x) = 1/4, t(a|y) = t(b|y) = 1/2.
    backward = AlignerSettings(2, null=0.0, tension=0.0, concentration=0.0, heuristic="backward")
    assert align(source, target, backward).links == [[(0, 0), (1, 1)], [(0, 0)]]


def test_empty_sides_have_no_links() -> None:
    assert align([[], ["a"], []], [["x"], [], []]).links == [[], [], []]
    assert align([], []).links == []
    assert align([["a"], []], [["x"], ["y"]]).links == [[(0, 0)], []]


def test_words_count_as_one_without_case_and_marks() -> None:
    assert form("Haus.") == form("haus") == "haus"
    assert form("...") == "..."
    assert form("ab@@") == "ab@@"
    assert form("don't") == "don't"


def test_the_layout_holds_every_pair_of_words() -> None:
    source, target, _ = corpus(40)
    held = lay_out(source, target)
    names: dict[tuple[int, int], tuple[str, str]] = {}
    seen = []
    for block in held.blocks:
        for row, place in enumerate(block.members):
            seen.append(place)
            for t, word in enumerate(target[place]):
                for s, other in enumerate(source[place]):
                    cell = int(block.cells[row, t, s])
                    key = (int(held.pair_source[cell]), int(held.pair_target[cell]))
                    assert key == (int(block.source[row, s]), int(block.target[row, t]))
                    assert names.setdefault(key, (other, word)) == (other, word)
    assert sorted(seen) == list(range(40))
    assert len(names) == len(set(names.values())) == len(held.pair_source)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, _ = corpus(60)
    whole = align(source, target).links
    monkeypatch.setattr(aligner, "_CHUNK", 300)
    assert align(source, target).links == whole


def test_an_immense_line_is_named() -> None:
    with pytest.raises(InputError, match="line 2 has 5,000 source and 4,000 target words"):
        align([["a"], ["a"] * 5000], [["x"], ["x"] * 4000])


def test_settings_without_sense_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        AlignerSettings(0, null=1.0, tension=-1.0).check()
    assert all(word in str(told.value) for word in ("iteration", "no word", "tension"))


def test_the_prior_is_the_formula() -> None:
    shares, distance = prior_table(2, 3, 4.0)
    weights = [[math.exp(-4.0 * abs(t / 2 - j / 3)) for j in (1, 2, 3)] for t in (1, 2)]
    assert shares == pytest.approx(numpy.array([[w / sum(row) for w in row] for row in weights]))
    assert distance[1, 0] == pytest.approx(-2 / 3)


@given(st.floats(0.3, 20.0), st.lists(st.tuples(st.integers(1, 9), st.integers(2, 9)), min_size=1))
def test_the_tension_is_found_again(tension: float, shapes: list[tuple[int, int]]) -> None:
    weights = {shape: numpy.linspace(0.5, 1.0, shape[0]) for shape in shapes}
    truth = 0.0
    for (m, n), held in weights.items():
        shares, distance = prior_table(m, n, tension)
        truth += float((held * (shares * distance).sum(1)).sum())
    likeliest = fitted_tension(truth, weights)
    for m, n in shapes:
        found, sought = prior_table(m, n, likeliest)[0], prior_table(m, n, tension)[0]
        assert found == pytest.approx(sought, abs=1e-3)


def test_exp_digamma() -> None:
    # digamma(1) = -gamma, digamma(1/2) = -gamma - 2 ln 2, digamma(n + 1) = digamma(n) + 1/n.
    gamma = 0.5772156649015329
    x = numpy.array([1.0, 0.5, 4.0, 0.01, 1e6])
    small = -1 / 0.01 - gamma + 0.01 * math.pi**2 / 6 - 1e-4 * 1.2020569 + 1e-6 * 1.0823232
    expected = [-gamma, -gamma - 2 * math.log(2), 1 + 1 / 2 + 1 / 3 - gamma, small]
    expected.append(math.log(1e6) - 0.5e-6)
    assert numpy.log(exp_digamma(x)) == pytest.approx(numpy.array(expected), rel=1e-7)
