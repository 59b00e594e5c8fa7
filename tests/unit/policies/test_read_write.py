"""Reading probabilities against enumeration; the agent's loss and decisions by hand."""

import math

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.online.objectives.dynamic import Area, reader_paths
from nmtgrid.online.policies import Threshold, first_write
from nmtgrid.search.paths import wait_k
from tests.unit.policies.all_paths import (
    SIZES,
    all_paths,
    lengths,
    pad,
    path_log_probabilities,
    read_probabilities,
    reader_loss,
)


def _log_probability(rho: Tensor, path: tuple[int, ...], source: int) -> float:
    """Walk along a path from (0, 1), one action after another."""
    total, reads = 0.0, 1
    for t, aim in enumerate(path):
        while reads < aim:
            total += math.log(float(rho[t, reads - 1]))
            reads += 1
        if reads < source:
            total += math.log(1 - float(rho[t, reads - 1]))
    return total


def _drawn_logits(seed: int) -> Tensor:
    return torch.randn(len(SIZES), 7, 8, generator=torch.Generator().manual_seed(seed))


def test_probabilities_of_paths() -> None:
    logits = _drawn_logits(1)
    for row, (source, target) in enumerate(SIZES):
        paths = list(all_paths(source, target))
        many = [torch.full((len(paths),), length) for length in (source, target)]
        result = path_log_probabilities(
            logits[row].expand(len(paths), -1, -1), pad(paths, 7), many[0], many[1]
        )
        rho = logits[row].double().sigmoid()
        expected = torch.tensor([_log_probability(rho, path, source) for path in paths])
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
        assert float(result.exp().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_wait_k_as_probabilities(k: int) -> None:
    """Eq. (4.26): the wait-k path has probability 1, every other one 0."""
    sources, targets = lengths(SIZES)
    first = wait_k(k, sources, 7)
    rho = read_probabilities(first, sources, 8)
    assert path_log_probabilities(rho.logit(), first, sources, targets).tolist() == [0] * len(SIZES)
    for row, (source, target) in enumerate(SIZES):
        for path in all_paths(source, target):
            if list(path) != first[row, :target].tolist():
                result = path_log_probabilities(
                    rho[row : row + 1].logit(), pad([path], 7),
                    sources[row : row + 1], targets[row : row + 1],
                )  # fmt: skip
                assert result.tolist() == [-math.inf]


def test_the_agents_loss_by_hand() -> None:
    """Eq. (4.44) cell by cell: read left of the path, write from it on, nothing in the last."""
    logits = _drawn_logits(2)
    sources, targets = lengths(SIZES)
    paths = pad([list(all_paths(*size))[len(SIZES)] if size[0] > 2 else [1] * size[1]
                 for size in SIZES], 7)  # fmt: skip
    expected = 0.0
    for row, (source, target) in enumerate(SIZES):
        for t in range(target):
            for j in range(1, source):
                rho = float(logits[row, t, j - 1].double().sigmoid())
                expected -= math.log(1 - rho if j >= paths[row, t] else rho)
    assert float(reader_loss(logits, paths, sources, targets)) == pytest.approx(expected, rel=1e-5)


def test_the_loss_on_the_path_is_its_log_probability() -> None:
    logits, (sources, targets) = _drawn_logits(3), lengths(SIZES)
    paths = wait_k(2, sources, 7)
    expected = reader_loss(logits, paths, sources, targets, "path")
    by_hand = -sum(
        _log_probability(
            logits[row].double().sigmoid(), tuple(paths[row, :target].tolist()), source
        )
        for row, (source, target) in enumerate(SIZES)
    )
    assert float(expected) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("area", ["grid", "path"])
def test_padding_is_excluded_whatever_it_holds(area: Area) -> None:
    logits, (sources, targets) = _drawn_logits(4), lengths(SIZES)
    spoilt = logits.clone()
    for row, (source, target) in enumerate(SIZES):
        spoilt[row, target:] = math.nan
        # The last column has nothing left to read: its logit does not count either.
        spoilt[row, :, source - 1 :] = math.inf
    spoilt.requires_grad_()
    paths = wait_k(2, sources, 7)
    loss = reader_loss(spoilt, paths, sources, targets, area)
    loss.backward()
    assert spoilt.grad is not None and spoilt.grad.isfinite().all()
    sound = reader_loss(logits, paths, sources, targets, area)
    assert torch.equal(loss.detach(), sound)


def test_extreme_logits_have_a_finite_loss() -> None:
    logits = torch.tensor([[[200.0, -200.0, 0.0]]], requires_grad=True)
    loss = reader_loss(logits, torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1]))
    loss.backward()
    assert float(loss.detach()) == 200
    assert logits.grad is not None and logits.grad.tolist() == [[[1, 0, 0]]]


def test_the_first_write() -> None:
    rho = torch.tensor([
        [0.9, 0.4, 0.1, 0.0],
        [0.9, 0.4, 0.9, 0.1],
        [0.9, 0.9, 0.9, 0.9],
        [0.9, 0.9, 0.9, 0.1],
        [0.5, 0.2, 0.2, 0.2],
    ])  # fmt: skip
    reads, ends = torch.tensor([1, 3, 2, 1, 1]), torch.tensor([4, 4, 4, 3, 4])
    assert first_write(rho, reads, 0.5, ends).tolist() == [2, 4, 4, 3, 2]
    assert first_write(rho, reads, 0.95, ends).tolist() == reads.tolist()
    rho = torch.tensor([[0.9, 0.7], [0.9, 0.2], [0.1, 0.9]])
    reads, more = torch.tensor([1, 1, 2]), torch.tensor([3, 3, 3])
    assert first_write(rho, reads, 0.5, more).tolist() == [3, 2, 3]
    assert first_write(rho, reads, 0.5, more - 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.8])
def test_paths_by_a_threshold_step_by_step(threshold: float) -> None:
    logits, (sources, _) = _drawn_logits(5), lengths(SIZES)
    rho, result = logits.sigmoid(), reader_paths(logits, sources, threshold)
    for row, (source, _) in enumerate(SIZES):
        reads = 1
        for t in range(7):
            while reads < source and float(rho[row, t, reads - 1]) >= threshold:
                reads += 1
            assert int(result[row, t]) == reads


@pytest.mark.parametrize("threshold", [0.0, 1.0, -1.0, 2.0, math.nan])
def test_a_faulty_threshold_is_told(threshold: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        Threshold(threshold)
    Threshold(0.5)
