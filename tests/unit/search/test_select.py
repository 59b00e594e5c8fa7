"""Selections: ties, the beam's bookkeeping, and drawing."""

import math
from typing import Any

import pytest
import torch

from nmtgrid.search.api import SearchPlan
from nmtgrid.search.constraints import length_bounds
from nmtgrid.search.select import Beam, Greedy, Sample, stable_topk, uniform
from nmtgrid.text.vocabulary import END


@pytest.mark.parametrize("levels", [3, 20, 10_000])
def test_best_is_a_stable_sort(levels: int) -> None:
    """Few levels make many ties at the border, many make none."""
    values = torch.randint(-levels, levels, (30, 200)).float() / 7
    values[:, ::9] = -0.5
    largest, places = stable_topk(values, 11)
    ordered, order = values.sort(dim=1, descending=True, stable=True)
    assert torch.equal(largest, ordered[:, :11])
    assert torch.equal(places, order[:, :11])
    # Among equals the lowest place comes first.
    values = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, -math.inf], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    largest, places = stable_topk(values, 2)
    assert places.tolist() == [[1, 2], [0, 1]]
    assert largest.tolist() == [[3.0, 3.0], [0.0, 0.0]]
    assert stable_topk(values, 6)[1].tolist() == [[1, 2, 4, 3, 0, 5], [0, 1, 2, 3, 4, 5]]


def test_greedy_ends_and_goes_on() -> None:
    values = torch.full((2, 5), -9.0)
    values[0, 4], values[1, END] = -0.5, -0.25
    choice = Greedy().choose(values, torch.tensor([-1.0, -2.0]), torch.arange(2), 0)
    assert choice.parents.tolist() == [0, 1]
    assert choice.tokens.tolist() == [4, END]
    assert choice.log_probabilities.tolist() == [-1.5, -math.inf]
    assert choice.end_log_probabilities.tolist() == [[-math.inf], [-2.25]]


def test_beam_by_hand() -> None:
    """Two rows of one sentence; the end is second best of all and third best is no end."""
    values = torch.full((2, 5), -50.0)
    values[0, 3], values[0, END], values[1, 4], values[1, 3] = -1.0, -0.5, -0.1, -2.0
    choice = Beam(2).choose(values, torch.tensor([-1.0, -1.2]), torch.tensor([7]), 3)
    # In order: row 1 token 4 (-1.3), row 0 end (-1.5), row 0 token 3 (-2.0), row 1 token 3 (-3.2).
    assert choice.tokens.tolist() == [4, 3]
    assert choice.parents.tolist() == [1, 0]
    assert choice.log_probabilities.tolist() == pytest.approx([-1.3, -2.0])
    assert choice.end_log_probabilities.tolist()[0][1] == pytest.approx(-1.5)
    assert choice.end_parents[0, 1] == 0
    values = torch.full((1, 5), -50.0)
    values[0, 3], values[0, 4], values[0, END] = -1.0, -1.1, -1.2
    choice = Beam(2).choose(values, torch.zeros(1), torch.arange(1), 0)
    assert (choice.end_log_probabilities == -math.inf).all()
    assert choice.tokens.tolist() == [3, 4]


@pytest.mark.parametrize("types", [512, 1000])
@pytest.mark.parametrize("levels", [3, 10_000])
def test_beam_of_many_types_is_a_stable_sort(types: int, levels: int) -> None:
    """Of 3 sentences with 4 rows each; one row is dead. Sums of eighths are exact."""
    groups, width = 3, 4
    values = -torch.randint(0, levels, (groups * width, types)).float() / 8
    values[:, END] = -math.inf
    totals = -torch.randint(0, levels, (groups * width,)).float() / 8
    totals[5] = -math.inf
    choice = Beam(width).choose(values, totals, torch.arange(groups), 3)
    sums = (values + totals[:, None]).view(groups, -1)
    best, order = sums.sort(dim=1, descending=True, stable=True)
    assert torch.equal(choice.log_probabilities, best[:, :width].flatten())
    assert torch.equal(choice.tokens, (order % types)[:, :width].flatten())
    first = torch.arange(groups)[:, None] * width
    assert torch.equal(choice.parents, (first + order // types)[:, :width].flatten())


@pytest.mark.parametrize(("types", "width"), [(624, 500), (624, 321), (512, 257), (600, 5)])
def test_a_beam_may_be_as_wide_as_the_vocabulary(types: int, width: int) -> None:
    """In the first step of 2 sentences, which have one row each: what is missing is dead."""
    values = -torch.rand(2, types)
    values[:, END] = -math.inf
    choice = Beam(width).choose(values, torch.zeros(2), torch.arange(2), 0)
    best, order = values.sort(dim=1, descending=True, stable=True)
    assert torch.equal(choice.log_probabilities, best[:, :width].flatten())
    alive = choice.log_probabilities > -math.inf
    assert torch.equal(choice.tokens[alive], order[:, :width].flatten()[alive])
    assert torch.equal(choice.parents, torch.arange(2).repeat_interleave(width))


def test_uniform_is_uniform_and_its_own() -> None:
    keys = torch.arange(20_000)
    numbers = uniform(1, keys, 5)
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    counts = torch.histc(numbers, 10, 0, 1)
    assert ((counts - 2000).abs() < 5 * math.sqrt(2000)).all()
    assert torch.equal(uniform(1, keys[500:510], 5), numbers[500:510])
    for other in (uniform(2, keys, 5), uniform(1, keys, 6), uniform(1, keys + 1, 5)):
        assert abs(float(torch.corrcoef(torch.stack([numbers, other]))[0, 1])) < 0.04


SHARES = [0.1, 0.4, 0.05, 0.15, 0.3]


def _draw(plan: SearchPlan, values: torch.Tensor, count: int = 4000) -> torch.Tensor:
    rows = values.log_softmax(0).expand(count, -1)
    groups = torch.arange(count)
    choice = Sample(plan).choose(rows, torch.zeros(count), groups, 0)
    return torch.bincount(choice.tokens, minlength=len(values)) / count


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0.1, 0.4, 0.05, 0.15, 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 0, 0, 3 / 7]),
        # 0.4 + 0.3 reach 0.65, so the third likeliest stays out.
        ({"top_p": 0.65}, [0, 4 / 7, 0, 0, 3 / 7]),
        ({"top_p": 0.75}, [0, 0.4 / 0.85, 0, 0.15 / 0.85, 0.3 / 0.85]),
        ({"temperature": 0.5}, [n**2 / 0.285 for n in (0.1, 0.4, 0.05, 0.15, 0.3)]),
    ],
)
def test_cuts_and_temperature_by_hand(changes: dict[str, Any], expected: list[float]) -> None:
    shares = _draw(SearchPlan(sample=True, **changes), torch.tensor(SHARES).log())
    assert shares.tolist() == pytest.approx(expected, abs=0.03)


def test_plans_by_hand() -> None:
    faults = SearchPlan(beam=0, nbest=3, temperature=0.0, top_p=1.5, min_length=-1).faults()
    assert len(faults) == 5
    assert len(SearchPlan(sample=True, temperature=1e-40, length_penalty=300).faults()) == 2
    assert "`search.beam` (`--beam`) must be from 1 to 1,000, but is 0." in faults
    assert SearchPlan(sample=True, beam=4).faults()
    assert not SearchPlan(sample=True, nbest=4).faults()
    plan = SearchPlan(length_penalty=0.5, length_offset=5.0)
    # ((5 + 19) / 6)^0.5 = 2.
    assert float(plan.length_norm(torch.tensor(19))) == pytest.approx(2.0)
    assert length_bounds(plan, torch.tensor([1, 4]))[1].tolist() == [10, 16]
