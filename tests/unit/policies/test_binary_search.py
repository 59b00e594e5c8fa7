"""Paths by binary search against a search by recursion, and against looking at every cell."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from nmtgrid.cli.objectives import objectives
from nmtgrid.models.api import PredictionSites
from nmtgrid.online.objectives.dynamic import DynamicSettings
from nmtgrid.online.oracle import binary_search_paths
from tests.unit.policies.all_paths import check_paths, lengths
from tests.unit.policies.test_dynamic import BATCH, EVERY, SOURCES, TARGETS, along, cost, grid, run

SIZES = [(9, 5), (4, 6), (1, 3), (12, 4), (7, 7)]


def by_recursion(p: list[float], types: list[int], left: int, right: int) -> int:
    """Return the reads where the search of one token ends; p and types begin at one read."""
    if left == right:
        return left
    if right == left + 1:
        return left if types[left - 1] == types[right - 1] else right
    middle = (left + right) // 2
    first, half, last = p[left - 1], p[middle - 1], p[right - 1]
    if last <= first or last - half <= half - first:
        return by_recursion(p, types, left, middle)
    return by_recursion(p, types, middle, right)


def expected_path(
    p: list[list[float]], types: list[list[int]], source: int, first: int, last: int
) -> list[int]:
    path: list[int] = []
    for t, row in enumerate(p):
        along_diagonal = math.floor(t * source / len(p) + 1e-9)
        bounds = (min(bound + along_diagonal, source) for bound in (first, last))
        path.append(max([by_recursion(row, types[t], *bounds), *path[-1:]]))
    return path


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 2), (1, 5), (3, 7), (2, 40)])
def test_it_is_the_search_by_recursion(first: int, last: int) -> None:
    """Of four values, which are often equal; a batch of several lengths."""
    generator = torch.Generator().manual_seed(3)
    source_lengths, target_lengths = lengths(SIZES)
    values = torch.tensor([0.1, 0.25, 0.55, 0.95])
    p = values[torch.randint(0, 4, (5, 7, 12), generator=generator)]
    types = torch.randint(0, 2, p.shape, generator=generator)
    paths = binary_search_paths(-p.log(), types, source_lengths, target_lengths, first, last)
    check_paths(paths, source_lengths, target_lengths)
    for i, (source, target) in enumerate(SIZES):
        rows = p[i, :target, :source].tolist(), types[i, :target, :source].tolist()
        expected = expected_path(*rows, source, first, last)
        assert paths[i].tolist() == expected + [source] * (7 - target)


def one_step(steps: list[int], source: int) -> tuple[Tensor, Tensor]:
    """Return costs and types of a token for each step, the reads from which on it is predicted."""
    reads = torch.arange(1, source + 1)
    knows = reads >= torch.tensor(steps)[:, None]
    return -torch.where(knows, 0.9, 0.1).log()[None], knows.long()[None]


def test_where_probability_has_one_step_it_ends_there() -> None:
    """The fewest reads between 2 and 7 with which p is as high as with 7, seen one by one."""
    for step in range(1, 11):
        costs, types = one_step([step], 10)
        path = binary_search_paths(costs, types, *lengths([(10, 1)]), 2, 7)
        best = costs[0, 0, 6]
        assert path.tolist() == [[min(z for z in range(2, 8) if costs[0, 0, z - 1] <= best)]]


def test_reads_that_would_fall_stay() -> None:
    for steps in itertools.product(range(1, 5), repeat=3):
        costs, types = one_step(list(steps), 4)
        path = binary_search_paths(costs, types, *lengths([(4, 3)]), 1, 9)[0].tolist()
        # The three tokens are searched for from 1, 2 and 3 source tokens on, to the end.
        alone = [max(step, first) for step, first in zip(steps, (1, 2, 3), strict=True)]
        assert path == [max(alone[: t + 1]) for t in range(3)]


def test_by_hand() -> None:
    # From 1 to 5: 0.1 + 0.6 > 2 x 0.2 keeps 3 to 5; 0.2 + 0.6 <= 2 x 0.5 keeps 3 to 4, where the
    # prediction changes.
    p = torch.tensor([[[0.1, 0.1, 0.2, 0.5, 0.6]]])
    types = torch.tensor([[[1, 1, 1, 2, 2]]])
    sizes = lengths([(5, 1)])
    assert binary_search_paths(-p.log(), types, *sizes, 1, 5).tolist() == [[4]]
    assert binary_search_paths(-p.log(), torch.ones_like(types), *sizes, 1, 5).tolist() == [[3]]


@pytest.mark.parametrize("bounds", [(1, 5), (2, 3)])
def test_dynamic_learns_from_these_paths(bounds: tuple[int, int]) -> None:
    model = grid()
    more = {"labels": "binary-search", "search_from": bounds[0], "search_to": bounds[1]}
    parts = run(model, write="path", beta=0.0, label_smoothing=0.0, **more)
    nll = 0.0
    for b in EVERY:
        cells = list(itertools.product(range(TARGETS[b]), range(1, SOURCES[b] + 1)))
        t, reads = torch.tensor(cells).T
        site = PredictionSites(torch.full_like(t, b), t, reads)
        types = model.classify(model.features(BATCH, site)).argmax(1).view(TARGETS[b], -1)
        p = [
            [math.exp(-cost(model, b, t, z)) for z in range(1, SOURCES[b] + 1)]
            for t in range(TARGETS[b])
        ]
        nll += along(model, b, expected_path(p, types.tolist(), SOURCES[b], *bounds))
    assert float(parts.total.detach()) == pytest.approx(nll, rel=1e-5)
    assert float(parts.nll) == pytest.approx(nll, rel=1e-5)


def test_settings_are_checked() -> None:
    kind = objectives.get("dynamic")
    assert kind.settings(labels="binary-search").faults() == []
    assert "search_to` must be at least" in DynamicSettings(search_from=6).faults()[0]
    assert "search_from" in DynamicSettings(search_from=0).faults()[0]
    printed = DynamicSettings(labels="binary-search", cost="printed").faults()
    assert "applies to the oracle" in printed[0]
