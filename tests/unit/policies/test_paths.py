"""Paths and weights of cells: by hand, and against the list of all paths of small grids."""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.rows import repeat
from nmtgrid.data.batches import collate
from nmtgrid.models.api import PredictionSites
from nmtgrid.search.paths import (
    area_sites,
    binary_weights,
    continue_paths,
    exact_weights,
    finish_reading,
    is_right_of,
    sample_k,
    wait_k,
)
from tests.unit.policies.all_paths import (
    SIZES,
    all_paths,
    check_paths,
    count_paths,
    lengths,
    occupancy,
    pad,
    paths_right_of,
    wait_k_by_hand,
)


@pytest.mark.parametrize("k", [1, 2, 3, 7, math.inf])
def test_wait_k(k: float) -> None:
    sources, _ = lengths(SIZES)
    expected = [wait_k_by_hand(k, source, 7) for source, _ in SIZES]
    assert wait_k(k, sources, 7).tolist() == expected


def test_wait_k_for_each_sentence() -> None:
    sources = torch.tensor([4, 4, 2, 4])
    reads = wait_k(torch.tensor([1.0, 3.0, 9.0, math.inf]), sources, 5)
    assert reads.tolist() == [[1, 2, 3, 4, 4], [3, 4, 4, 4, 4], [2] * 5, [4] * 5]
    assert wait_k(torch.tensor([2, 1, 1, 4]), sources, 2).tolist() == [
        [2, 3], [1, 2], [1, 2], [4, 4],
    ]  # fmt: skip
    assert reads.dtype == torch.int64


@pytest.mark.parametrize("k", [0, -1, 0.5, 2.5, math.nan, -math.inf, torch.tensor([3, 0])])
def test_a_faulty_k_is_told(k: float) -> None:
    with pytest.raises(ConfigError, match="`k` must be a whole number of at least 1"):
        wait_k(k, torch.tensor([5, 6]), 3)


def test_drawn_k() -> None:
    sources = torch.tensor([1, 3, 8])
    drawn = sample_k(sources, 4000, torch.Generator().manual_seed(1)).view(3, 4000)
    for row, length in zip(drawn, sources.tolist(), strict=True):
        shares = torch.bincount(row, minlength=length + 1)[1:] / 4000
        assert shares.shape == (length,)
        # Five standard deviations of a share.
        assert (shares - 1 / length).abs().max() <= 5 * math.sqrt(1 / length / 4000)

    @dataclasses.dataclass(frozen=True)
    class Lengths:
        source: torch.Tensor

    sources = torch.tensor([2, 9, 30])
    first, second = (sample_k(sources, 3, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert (first <= repeat(Lengths(sources), 3).source).all() and (first >= 1).all()
    assert sample_k(sources).shape == (3,)


def test_finish_reading_and_go_on() -> None:
    sources, targets = torch.tensor([6, 6, 2, 3]), torch.tensor([3, 4, 4, 1])
    paths = finish_reading(wait_k(1, sources, 4), sources, targets)
    assert paths.tolist() == [[1, 2, 6, 6], [1, 2, 3, 6], [1, 2, 2, 2], [3, 3, 3, 3]]
    paths, sources = torch.tensor([[1, 2, 2], [3, 3, 9]]), torch.tensor([5, 4])
    targets = torch.tensor([3, 2])
    assert continue_paths(paths, sources, targets, 5).tolist() == [[1, 2, 2, 5, 5], [3, 3, 4, 4, 4]]
    assert continue_paths(paths, sources, targets, 2).tolist() == [[1, 2], [3, 3]]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([0, 1, 1], "sentence 2 has read 0 source tokens at target position 1"),
        ([1, 3, 2], "sentence 2 falls from 3 to 2 source tokens at target position 3"),
        ([1, 5, 5], "sentence 2 has read 5 source tokens at target position 2, but the source has"),
        ([2, -1, 2], "sentence 2 has read -1 source tokens at target position 2"),
    ],
)
def test_faulty_paths_are_told(path: list[int], words: str) -> None:
    paths, sources = torch.tensor([[1, 1, 4, 0], [*path, 9]]), torch.tensor([4, 4])
    with pytest.raises(NmtgridError, match=words):
        check_paths(paths, sources, torch.tensor([3, 3]))


def test_sound_paths_pass_and_short_ones_do_not() -> None:
    for source, target in SIZES:
        paths = torch.tensor(list(all_paths(source, target)))
        many = torch.full((len(paths),), source), torch.full((len(paths),), target)
        check_paths(torch.cat([paths, paths * 0], 1), *many)
    with pytest.raises(NmtgridError, match="sentence 1 ends before target position 3"):
        check_paths(torch.tensor([[1, 1], [1, 1]]), torch.tensor([2, 2]), torch.tensor([3, 2]))


def test_sites_of_areas() -> None:
    sources, targets = torch.tensor([3, 4]), torch.tensor([2, 3])
    area = is_right_of(pad([[2, 3], [1, 4, 4]], 3), sources, targets, 5)
    assert area.shape == (2, 3, 5)
    expected = [(0, 0, 2), (0, 0, 3), (0, 1, 3), (1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 0, 4)]
    expected += [(1, 1, 4), (1, 2, 4)]
    sites = area_sites(area)
    assert sites.reads is not None
    triples = torch.stack([sites.sentence, sites.position, sites.reads], 1)
    assert [tuple(row) for row in triples.tolist()] == expected
    weights = torch.rand(2, 3, 5)
    picked = weights[sites.sentence, sites.position, sites.reads - 1]
    assert torch.equal(weights[area], picked)


def test_sites_everywhere() -> None:
    batch = collate([[5, 6], [], [7, 8, 9]], [[4], [5, 6, 7], []])
    sites = PredictionSites.everywhere(batch)
    sizes = [(3, 2), (1, 4), (4, 1)]  # source and target, the end symbols counted
    expected = [(b, t, j) for b, (s, n) in enumerate(sizes) for t in range(n) for j in range(s)]
    assert list(zip(*(index.tolist() for index in sites.cells), strict=True)) == expected


def test_number_of_paths() -> None:
    assert [count_paths(4, 5, k) for k in (1, 2, 3, 4)] == [42, 14, 5, 2]
    for source in range(1, 7):
        for target in range(1, 7):
            for k in range(1, source + 3):
                first = wait_k_by_hand(k, source, target)
                assert count_paths(target, source, k) == len(paths_right_of(first, source, target))


KS = (1, 2, 3, 4, 9)


def _shares(least: list[int], source: int, target: int) -> list[list[Fraction]]:
    """Return the share of the paths nowhere left of `first` that use each cell."""
    paths = paths_right_of(least, source, target)
    return [
        [
            Fraction(sum(path[t] == j for path in paths), len(paths))
            for j in range(1, source + 1)
        ]
        for t in range(target)
    ]  # fmt: skip


def test_the_closed_form_is_enumeration() -> None:
    for source in range(1, 7):
        for target in range(1, 7):
            for k in range(1, source + 2):
                closed_form = [
                    [occupancy(t, j, k, target, source) for j in range(1, source + 1)]
                    for t in range(1, target + 1)
                ]
                assert closed_form == _shares(wait_k_by_hand(k, source, target), source, target)
                assert all(sum(row) == 1 for row in closed_form)


@pytest.mark.parametrize("k", KS)
def test_a_ragged_batch_is_enumeration(k: int) -> None:
    sources, targets = lengths(SIZES)
    columns, size = 7, 8
    weights = exact_weights(wait_k(k, sources, size), sources, targets, columns)
    expected = torch.zeros(len(SIZES), size, columns)
    for index, (source, target) in enumerate(SIZES):
        shares = _shares(wait_k_by_hand(k, source, target), source, target)
        expected[index, :target, :source] = torch.tensor(
            [[float(x) for x in row] for row in shares]
        )
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)


def test_weights_right_of_any_path() -> None:
    for source, target in SIZES[:5]:
        for first in all_paths(source, target):
            shares = _shares(list(first), source, target)
            weights = exact_weights(
                torch.tensor([first]), torch.tensor([source]), torch.tensor([target]), source
            )
            expected = torch.tensor([[[float(x) for x in row] for row in shares]])
            torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)


def test_binary_weights() -> None:
    for k in KS:
        sources, targets = lengths(SIZES)
        weights = binary_weights(wait_k(k, sources, 8), sources, targets, 7)
        for index, (source, target) in enumerate(SIZES):
            first = wait_k_by_hand(k, source, target)
            for t in range(8):
                for j in range(1, 8):
                    used = t < target and first[t] <= j <= source
                    assert weights[index, t, j - 1] == used


@pytest.mark.parametrize("k", [1, 7, 400])
def test_long_sentences_are_stable(k: int) -> None:
    """Counts up to 1e299: compared with exact integers at cells all over the grid."""
    source, target = 500, 497
    sources, targets = torch.tensor([source, 30]), torch.tensor([target, 500])
    weights = exact_weights(wait_k(k, sources, 500), sources, targets, source)
    ones = torch.ones(target)
    torch.testing.assert_close(weights[0, :target].sum(-1), ones, rtol=0, atol=1e-5)
    assert (weights[0, target:] == 0).all() and (weights[1, :, 30:] == 0).all()
    for t in (1, 2, 100, 250, 496, 497):
        for j in (k, k + t, (k + t + source) // 2, 499, 500):
            expected = float(occupancy(t, min(j, source), k, target, source))
            assert float(weights[0, t - 1, min(j, source) - 1]) == pytest.approx(
                expected, rel=1e-5, abs=1e-30
            )
