"""The oracle against every path of small grids, ragged and many at once."""

import math

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.online.oracle import oracle_paths, path_costs
from tests.unit.policies.all_paths import all_paths, check_paths


def _grids(count: int, seed: int, *, whole: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return (costs, source lengths, target lengths) of ragged grids, garbage on padding."""
    draw = torch.Generator().manual_seed(seed)
    sources = torch.randint(1, 6, (count,), generator=draw)
    targets = torch.randint(1, 6, (count,), generator=draw)
    costs = torch.rand(count, 6, 7, generator=draw, dtype=torch.float64) * 4
    costs = costs.floor() if whole else costs
    for grid, source, target in zip(costs, sources.tolist(), targets.tolist(), strict=True):
        grid[target:] = -50.0
        grid[:, source:] = -50.0
    return costs, sources, targets


def _cost(grid: Tensor, path: tuple[int, ...], source: int, weight: float) -> float:
    """Add up the steps of a path from (0, 1): R = lambda (|y| - t) / |x| and W."""
    total, reads = 0.0, 1
    for t, aim in enumerate(path):
        while reads < aim:
            total += weight * (len(path) - t) / source
            reads += 1
        total += float(grid[t, reads - 1])
    return total


def _sizes(sources: Tensor, targets: Tensor) -> list[tuple[int, int, int]]:
    """Return (row, source length, target length) of each grid."""
    return list(zip(range(len(sources)), sources.tolist(), targets.tolist(), strict=True))


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 4.0])
def test_the_oracle_is_optimal(weight: float) -> None:
    costs, sources, targets = _grids(150, int(weight * 10))
    paths = oracle_paths(costs, sources, targets, weight)
    check_paths(paths, sources, targets)
    reported = path_costs(costs, paths, sources, targets, weight)
    for row, source, target in _sizes(sources, targets):
        best = tuple(paths[row, :target].tolist())
        every = {
            path: _cost(costs[row], path, source, weight) for path in all_paths(source, target)
        }
        assert every[best] == pytest.approx(min(every.values()), abs=1e-9)
        assert float(reported[row]) == pytest.approx(every[best], abs=1e-9)
        assert (paths[row, target:] == source).all()


@pytest.mark.parametrize("weight", [0.0, 4.0])
def test_of_equal_paths_the_one_that_writes_first(weight: float) -> None:
    """Whole costs, of delays too for sources of 1, 2 or 4, tie exactly: READ only if cheaper."""
    costs, sources, targets = _grids(200, 9, whole=True)
    sources = torch.tensor([1, 2, 2, 4, 4, 4])[sources]
    paths = oracle_paths(costs.clamp(min=0), sources, targets, weight)
    ties = 0
    for row, source, target in _sizes(sources, targets):
        grid = costs[row].clamp(min=0)
        every = {path: _cost(grid, path, source, weight) for path in all_paths(source, target)}
        best = [path for path, cost in every.items() if cost == min(every.values())]
        ties += len(best) > 1
        # The decision is made write by write, so the first in order of reads is the one.
        assert tuple(paths[row, :target].tolist()) == min(best)
    assert ties > 50


def test_a_heavier_delay_never_waits_longer() -> None:
    costs, sources, targets = _grids(100, 3)
    sums = []
    for weight in (0.0, 0.5, 1.0, 2.0, 4.0, 1000.0):
        paths = oracle_paths(costs, sources, targets, weight)
        sums.append(sum(int(paths[row, :n].sum()) for row, _, n in _sizes(sources, targets)))
    assert sums == sorted(sums, reverse=True)
    assert sums[-1] == int(targets.sum())


def test_alone_is_in_a_padded_batch_in_any_precision() -> None:
    costs, sources, targets = _grids(40, 4)
    costs = costs.bfloat16().requires_grad_()
    paths = oracle_paths(costs, sources, targets, 1.0)
    for row, source, target in _sizes(sources, targets):
        own = slice(row, row + 1)
        alone = oracle_paths(costs[own, :target, :source].double(), sources[own], targets[own], 1.0)
        assert torch.equal(alone[0], paths[row, :target])


def test_impossible_tokens_and_costs_that_are_no_numbers() -> None:
    costs = torch.tensor([[[math.inf, 1.0, 5.0], [math.inf, math.inf, math.inf]]])
    lengths = torch.tensor([3]), torch.tensor([2])
    check_paths(oracle_paths(costs, *lengths), *lengths)
    only = torch.tensor([[[math.inf, 1.0, 5.0], [math.inf, math.inf, 2.0]]])
    assert oracle_paths(only, *lengths).tolist() == [[2, 3]]
    spoilt = torch.full((1, 2, 5), math.nan)
    assert int(oracle_paths(spoilt, *lengths).max()) <= 3


@pytest.mark.gpu
def test_ties_on_a_gpu() -> None:
    costs, sources, targets = _grids(400, 5, whole=True)
    here = oracle_paths(costs, sources, targets)
    there = oracle_paths(costs.cuda(), sources.cuda(), targets.cuda())
    assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_a_faulty_weight_is_told(weight: float) -> None:
    with pytest.raises(ConfigError, match="`lambda` must be at least 0"):
        oracle_paths(torch.zeros(1, 1, 1), torch.tensor([1]), torch.tensor([1]), weight)


def _as_printed(grid: Tensor, source: int, target: int, weight: float) -> list[int]:
    """Return the path of Eq. (4.38)-(4.42) as they stand, cell by cell, counting from 1."""
    write = {(t, j): float(grid[t - 1, j - 1]) for t, j in _cells(source, target)}
    read = {(t, j): weight * j / source for t, j in _cells(source, target)}
    forward, backward = {}, {}
    for t, j in _cells(source, target):
        if j == 1:
            forward[t, j] = sum(write[s, 1] for s in range(1, t + 1))
        elif t == 1:
            forward[t, j] = sum(read[1, i] for i in range(1, j + 1))
        else:
            forward[t, j] = min(forward[t - 1, j] + write[t, j], forward[t, j - 1] + read[t, j])
    for t, j in reversed(_cells(source, target)):
        if j == source:
            backward[t, j] = sum(write[s, j] for s in range(t + 1, target + 1))
        elif t == target:
            backward[t, j] = sum(read[t, i] for i in range(j + 1, source + 1))
        else:
            backward[t, j] = min(
                backward[t + 1, j] + write[t + 1, j], backward[t, j + 1] + read[t, j + 1]
            )
    cost = {cell: forward[cell] + backward[cell] for cell in forward}
    path, j = [1], 1
    while len(path) < target:
        if j < source and cost[len(path), j + 1] < cost[len(path) + 1, j]:
            j += 1
        else:
            path.append(j)
    return path


def _cells(source: int, target: int) -> list[tuple[int, int]]:
    return [(t, j) for t in range(1, target + 1) for j in range(1, source + 1)]


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.0])
def test_the_printed_oracle_is_as_printed(weight: float) -> None:
    costs, sources, targets = _grids(150, 11)
    paths = oracle_paths(costs, sources, targets, weight, "printed")
    worse = 0
    for row, source, target in _sizes(sources, targets):
        path = paths[row, :target].tolist()
        assert path == _as_printed(costs[row], source, target, weight)
        every = [_cost(costs[row], other, source, 0.0) for other in all_paths(source, target)]
        worse += _cost(costs[row], tuple(path), source, 0.0) > min(every) + 1e-9
    assert worse > 0, "the print would be optimal"
