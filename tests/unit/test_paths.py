"""Paths: by hand, and against the list of all paths of small grids."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.rows import repeat
from nmtgrid.online.paths import (
    area_sites,
    check_paths,
    continue_paths,
    count_paths,
    finish_reading,
    from_actions,
    is_right_of,
    path_sites,
    sample_k,
    to_actions,
    wait_k,
)
from tests.unit.all_paths import (
    SIZES,
    all_paths,
    lengths,
    pad,
    paths_right_of,
    wait_k_by_hand,
)


@pytest.mark.parametrize("k", [1, 2, 3, 7, math.inf])
def test_wait_k(k: float) -> None:
    sources, _ = lengths(SIZES)
    wanted = [wait_k_by_hand(k, source, 7) for source, _ in SIZES]
    assert wait_k(k, sources, 7).tolist() == wanted


def test_wait_k_for_each_sentence() -> None:
    sources = torch.tensor([4, 4, 2, 4])
    found = wait_k(torch.tensor([1.0, 3.0, 9.0, math.inf]), sources, 5)
    assert found.tolist() == [[1, 2, 3, 4, 4], [3, 4, 4, 4, 4], [2] * 5, [4] * 5]
    assert wait_k(torch.tensor([2, 1, 1, 4]), sources, 2).tolist() == [
        [2, 3], [1, 2], [1, 2], [4, 4],
    ]  # fmt: skip
    assert found.dtype == torch.int64


@pytest.mark.parametrize("k", [0, -1, 0.5, 2.5, math.nan, -math.inf, torch.tensor([3, 0])])
def test_a_faulty_k_is_told(k: float) -> None:
    with pytest.raises(ConfigError, match="`k` must be a whole number of at least 1"):
        wait_k(k, torch.tensor([5, 6]), 3)


def test_k_is_drawn_from_each_sentences_own_length() -> None:
    sources = torch.tensor([1, 3, 8])
    drawn = sample_k(sources, 4000, torch.Generator().manual_seed(1)).view(3, 4000)
    for row, length in zip(drawn, sources.tolist(), strict=True):
        shares = torch.bincount(row, minlength=length + 1)[1:] / 4000
        assert shares.shape == (length,)
        # Five standard deviations of a share.
        assert (shares - 1 / length).abs().max() <= 5 * math.sqrt(1 / length / 4000)


def test_drawn_paths_repeat_with_a_seed_and_go_with_repeated_sentences() -> None:
    @dataclasses.dataclass(frozen=True)
    class Lengths:
        source: torch.Tensor

    sources = torch.tensor([2, 9, 30])
    first, second = (sample_k(sources, 3, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert (first <= repeat(Lengths(sources), 3).source).all() and (first >= 1).all()
    assert sample_k(sources).shape == (3,)


def test_finish_reading() -> None:
    sources, targets = torch.tensor([6, 6, 2, 3]), torch.tensor([3, 4, 4, 1])
    found = finish_reading(wait_k(1, sources, 4), sources, targets)
    assert found.tolist() == [[1, 2, 6, 6], [1, 2, 3, 6], [1, 2, 2, 2], [3, 3, 3, 3]]


def test_paths_go_on_with_the_whole_source() -> None:
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


def test_areas_and_their_sites() -> None:
    sources, targets = torch.tensor([3, 4]), torch.tensor([2, 3])
    area = is_right_of(pad([[2, 3], [1, 4, 4]], 3), sources, targets, 5)
    assert area.shape == (2, 3, 5)
    wanted = [(0, 0, 2), (0, 0, 3), (0, 1, 3), (1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 0, 4)]
    wanted += [(1, 1, 4), (1, 2, 4)]
    sites = area_sites(area)
    assert sites.reads is not None
    found = torch.stack([sites.sentence, sites.position, sites.reads], 1)
    assert [tuple(row) for row in found.tolist()] == wanted
    weights = torch.rand(2, 3, 5)
    picked = weights[sites.sentence, sites.position, sites.reads - 1]
    assert torch.equal(weights[area], picked)


def test_sites_of_paths() -> None:
    sites = path_sites(pad([[2, 3], [1, 4, 4]], 3), torch.tensor([2, 3]))
    assert sites.reads is not None
    assert sites.sentence.tolist() == [0, 0, 1, 1, 1]
    assert sites.position.tolist() == [0, 1, 0, 1, 2]
    assert sites.reads.tolist() == [2, 3, 1, 4, 4]


def test_actions() -> None:
    assert to_actions([2, 2, 4]) == "RRWWRRW"
    assert to_actions([2, 2, 4], 5) == "RRWWRRWR"
    assert to_actions([], 2) == "RR" and from_actions("RR", 2) == []
    for source, target in SIZES:
        for path in all_paths(source, target):
            assert from_actions(to_actions(path)) == list(path)
            whole = to_actions(path, source)
            assert (whole.count("R"), whole.count("W")) == (source, target)
            assert from_actions(whole, source) == list(path)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ("RWX", "Action 3 is `X`"),
        ("WR", "Action 1 writes before anything has been read"),
        ("RRWRRW", "Action 5 reads token 4 of a source of 3"),
    ],
)
def test_faulty_actions_are_told(actions: str, words: str) -> None:
    with pytest.raises(NmtgridError, match=words):
        from_actions(actions, 3)


def test_number_of_paths() -> None:
    assert [count_paths(4, 5, k) for k in (1, 2, 3, 4)] == [42, 14, 5, 2]
    for source in range(1, 7):
        for target in range(1, 7):
            for k in range(1, source + 3):
                first = wait_k_by_hand(k, source, target)
                assert count_paths(target, source, k) == len(paths_right_of(first, source, target))
