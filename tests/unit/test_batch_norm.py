"""Batch norm against its definition: statistics of valid cells, and what moves them when."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nmtgrid.data.batches import collate
from nmtgrid.layers.normalisation import (
    BatchNorm,
    BatchStatistics,
    frozen_statistics,
    still_statistics,
)
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.pervasive.grid_model import GridModel
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.update import Updater, split_batch

CELLS = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 16.0]])
MEAN, VARIANCE = torch.tensor([3.0, 12.0]), torch.tensor([8 / 3, 8.0])
UNBIASED = torch.tensor([4.0, 12.0])


def test_cells_are_standardised_by_their_own_moments() -> None:
    norm = BatchStatistics(2)
    wanted = (CELLS - MEAN) / (VARIANCE + 1e-5).sqrt()
    assert torch.allclose(norm(CELLS), wanted, atol=1e-4)
    assert torch.allclose(norm.running_mean, 0.1 * MEAN)
    assert torch.allclose(norm.running_var, 0.9 + 0.1 * UNBIASED)


def test_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    norm = BatchNorm(2).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([1.0, -1.0]))
        norm.running_var.copy_(torch.tensor([4.0, 9.0]))
        norm.weight.copy_(torch.tensor([2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.5, -0.5]))
    wanted = torch.tensor([[0.5, 10.5], [2.5, 10.5], [4.5, 16.5]])
    assert torch.allclose(norm(CELLS), wanted, atol=1e-3)
    assert torch.equal(norm.running_mean, torch.tensor([1.0, -1.0]))
    assert torch.allclose(norm(CELLS.view(1, 3, 2)), norm(CELLS).view(1, 3, 2))


def test_a_single_cell_has_no_unbiased_variance() -> None:
    norm = BatchStatistics(2)
    assert torch.allclose(norm(CELLS[2:]), torch.zeros(1, 2), atol=1e-4)
    assert torch.allclose(norm.running_mean, 0.1 * CELLS[2])
    assert torch.equal(norm.running_var, torch.ones(2))


def test_frozen_and_still_statistics() -> None:
    norm = BatchStatistics(2)
    with still_statistics(norm):
        live = norm(CELLS)
    with frozen_statistics(norm):
        assert torch.allclose(norm(CELLS), CELLS, atol=1e-3)
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert torch.equal(norm.running_var, torch.ones(2))
    assert torch.equal(norm(CELLS), live) and norm.running_mean[0] != 0


def test_the_gradient_is_the_slope() -> None:
    norm = BatchNorm(3).double()
    cells = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    with still_statistics(norm):
        assert torch.autograd.gradcheck(norm, (cells,))


def test_statistics_are_taken_in_float32() -> None:
    """A mean that bfloat16 sums would lose: 4,096 times 1, and then 4,096 times 3."""
    norm = BatchStatistics(1)
    cells = torch.cat([torch.ones(4096, 1), torch.full((4096, 1), 3.0)]).bfloat16()
    found = norm(cells)
    assert found.dtype == torch.bfloat16
    assert norm.running_mean.item() == pytest.approx(0.2)
    assert torch.equal(found.float().abs(), torch.ones_like(found).float())


def _tiny(**changes: object) -> TranslationModel:
    torch.manual_seed(4)
    settings: dict[str, object] = {"depth": 2, "growth": 4, "kernel": 3, "embedding_size": 6}
    settings |= {"bottleneck": 2, "dropout": 0.0, "embedding_dropout": 0.0, "output_dropout": 0.0}
    return zoo.build(
        "pervasive-densenet", None, {**settings, **changes},
        source_vocab_size=12, target_vocab_size=11,
    )  # fmt: skip


def _buffers(model: TranslationModel) -> dict[str, Tensor]:
    return {name: held.clone() for name, held in model.named_buffers()}


def test_padding_never_counts() -> None:
    """The first statistics are those of all real cells [y_i x_j], listed one by one."""
    model = _tiny(halve_input=False)
    assert isinstance(model, GridModel)
    batch = collate([[4, 5, 6, 7, 8], [9]], [[5], [6, 7, 8, 9]])
    cells = torch.stack([
        torch.cat([model.target_embedding.weight[y], model.source_embedding.weight[x]])
        for row in range(2)
        for y in batch.target_input[row, : int(batch.target_lengths[row])]
        for x in batch.source[row, : int(batch.source_lengths[row])]
    ]).detach()  # fmt: skip
    assert len(cells) == 2 * 6 + 5 * 2
    Likelihood(LikelihoodSettings()).loss(model.train(), batch)
    buffers = _buffers(model)
    mean, variance = cells.mean(0), cells.var(0, correction=1)
    assert torch.allclose(buffers["network.statistics.running_mean"], 0.1 * mean, atol=1e-6)
    assert torch.allclose(buffers["network.statistics.running_var"], 0.9 + 0.1 * variance)


def test_each_micro_batch_moves_the_running_statistics() -> None:
    """By a tenth of its own moments, in order; so two halves move them twice."""
    batch = collate([[4, 5, 6], [9, 10]], [[5, 6], [6, 7, 8]])
    moved = []
    for pieces in ([batch], split_batch(batch)):
        model = _tiny()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
        updater = Updater(
            model, Likelihood(LikelihoodSettings()), optimiser, torch.device("cpu"),
            bf16=False, clip_norm=0.0,
        )  # fmt: skip
        alone = []
        for piece in pieces:
            other = _tiny()
            Likelihood(LikelihoodSettings()).loss(other.train(), piece)
            # From a running mean of 0, one pass leaves a tenth of the batch's.
            alone.append(_buffers(other)["network.statistics.running_mean"])
        updater.apply(pieces, 0.0)
        found = _buffers(model)["network.statistics.running_mean"]
        wanted = alone[0] if len(alone) == 1 else 0.9 * alone[0] + alone[1]
        assert torch.allclose(found, wanted, atol=1e-6)
        moved.append(found)
    assert not torch.allclose(moved[0], moved[1], rtol=0.1)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_training_pass_moves_them_once(checkpointed: bool) -> None:
    """Layers that are computed again in the backward pass do not count twice."""
    batch = collate([[4, 5, 6], [9, 10]], [[5, 6], [6, 7, 8]])
    model = _tiny(checkpoint_activations=checkpointed)
    loss = Likelihood(LikelihoodSettings()).loss(model.train(), batch)
    before = _buffers(model)
    loss.total.backward()
    after = _buffers(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_running_statistics_are_saved() -> None:
    state = _tiny().state_dict()
    # The initial grid, each layer's two, and the last norm.
    assert sum(name.endswith("running_mean") for name in state) == 1 + 2 * 2 + 1
    assert sum(name.endswith("running_var") for name in state) == 1 + 2 * 2 + 1
