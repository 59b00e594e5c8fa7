"""Dense layers: grid convolutions and maps, batch norm, the CoNLL paper's counts."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.layers.grid.convolution import FullConvolution, RowCache
from nmtgrid.layers.kernels.densenet import (
    DensePrefix,
    dense_grid_convolution,
    dense_grid_convolution_step,
    live_dense_taps,
    prepare_dense_step_weight,
)
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.normalisation import (
    BatchNorm,
    BatchStatistics,
    still_statistics,
)
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.pervasive.grid_model import GridModel
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import Updater, split_batch
from tests.invariants.helpers import frozen_statistics
from tests.unit.helpers.toy_model import count_parameters
from tests.unit.kernels.plain_kernels import plain_dense_grid_convolution, plain_dense_projection
from tests.unit.layers.densenet_reference import ARCH

# Targets, sources, input and output features, kernel: ragged, one cell, thin, odd sizes, full.
GRIDS = [
    ([7, 5, 1], [6, 9, 3], 16, 8, 5),
    ([1], [1], 8, 4, 3),
    ([1, 1], [1, 12], 5, 3, 7),
    ([20, 3], [2, 1], 9, 7, 3),
    ([4, 4], [6, 6], 6, 2, 3),
    ([5, 2], [4, 6], 3, 5, 1),
]
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)
Grid = tuple[list[int], list[int], int, int, int]


def _draw(grid: Grid, dtype: torch.dtype = torch.float64) -> tuple[GridLayout, Tensor, Tensor]:
    targets, sources, inputs, outputs, kernel = grid
    layout = GridLayout.make(torch.tensor(targets), torch.tensor(sources))
    generator = torch.Generator().manual_seed(layout.cell_count)
    x = torch.randn(layout.cell_count, inputs, generator=generator, dtype=torch.float64)
    weight = torch.randn(outputs, inputs, kernel, kernel, generator=generator, dtype=torch.float64)
    return layout, x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()


def _by_definition(x: Tensor, weight: Tensor, layout: GridLayout) -> Tensor:
    """Cell by cell: rows above and the current one, all columns around, zero outside."""
    kernel = weight.shape[2]
    results = []
    for start, (height, width) in zip(layout.offsets.tolist(), layout.shapes, strict=True):
        grid = x[start : start + height * width].view(height, width, -1)
        for t, s in itertools.product(range(height), range(width)):
            total = torch.zeros(weight.shape[0], dtype=x.dtype)
            for i, j in itertools.product(range(kernel // 2 + 1), range(kernel)):
                above, beside = t - kernel // 2 + i, s - kernel // 2 + j
                if 0 <= above < height and 0 <= beside < width:
                    total = total + weight[:, :, i, j] @ grid[above, beside]
            results.append(total)
    return torch.stack(results)


@every_grid
def test_all_forms_are_the_definition(grid: Grid) -> None:
    layout, x, weight = _draw(grid)
    expected = _by_definition(x, weight, layout)
    assert torch.allclose(plain_dense_grid_convolution(x, weight, layout), expected)
    assert torch.allclose(dense_grid_convolution(x, weight, layout), expected)


@every_grid
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_those_of_the_twin(grid: Grid, dtype: torch.dtype) -> None:
    layout, x, weight = _draw(grid)
    readout = torch.randn(layout.cell_count, weight.shape[0], dtype=torch.float64)
    total = (plain_dense_grid_convolution(x, weight, layout) * readout).sum()
    expected = torch.autograd.grad(total, (x, weight))
    _, low, kept = _draw(grid, dtype)
    result = dense_grid_convolution(low, kept, layout)
    assert result.dtype == dtype
    actual = torch.autograd.grad((result * readout.to(dtype)).sum(), (low, kept))
    limit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for mine, other in zip(actual, expected, strict=True):
        assert (mine.double() - other).abs().max() <= limit * other.abs().max()
    dead = actual[1][:, :, weight.shape[2] // 2 + 1 :]
    assert torch.equal(dead, torch.zeros_like(dead))


def test_bfloat16_features_with_float32_weights() -> None:
    layout, x, _ = _draw(GRIDS[0], torch.bfloat16)
    _, _, weight = _draw(GRIDS[0], torch.float32)
    dense_grid_convolution(x, weight, layout).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    parts, maps = _maps(torch.bfloat16)
    exact = plain_dense_projection([parts[0].double()], *(t.double() for t in maps[0]))
    prefix = DensePrefix(parts[0], 5)
    prefix.append(parts[0])
    scale, shift, weight = maps[0]
    result = prefix.project(scale.float(), shift.float(), weight.float(), last=True)
    assert result.dtype == torch.bfloat16
    assert (result.double() - exact).abs().max() <= 2e-2 * exact.abs().max()


@pytest.mark.parametrize("grid", [GRIDS[1], GRIDS[4]], ids=str)
def test_row_by_row_is_all_at_once(grid: Grid) -> None:
    layout, x, weight = _draw(grid)
    rows = layout.pad(x).detach()
    expected = layout.pad(_by_definition(x, weight, layout))
    prepared = prepare_dense_step_weight(weight, x.dtype)
    cache = RowCache.empty(rows[:, 0], weight.shape[2] // 2 + 1, spare=1)
    for row in range(rows.shape[1]):
        actual = dense_grid_convolution_step(cache.push(rows[:, row]), prepared)
        assert torch.allclose(actual, expected[:, row])


def test_weights_and_kernels() -> None:
    torch.manual_seed(0)
    weight = FullConvolution(64, 64, 5).weight.detach()
    assert (weight[:, :, 3:] == 0).all()
    # 64 x 15 rectified inputs: variance 2 / 960.
    assert float(weight[:, :, :3].var()) == pytest.approx(2 / 960, rel=0.02)
    with pytest.raises(ValueError, match="odd"):
        live_dense_taps(torch.zeros(2, 2, 4, 4))


def _maps(dtype: torch.dtype) -> tuple[list[Tensor], list[list[Tensor]]]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.to(dtype).requires_grad_()

    parts = [draw(11, size) for size in (5, 3, 3)]
    return parts, [[draw(width), draw(width), draw(4, width)] for width in (5, 8, 11)]


@pytest.mark.parametrize("is_last", [False, True])
def test_a_chain_of_maps_is_that_of_separate_parts(is_last: bool) -> None:
    """Each part gets the gradients of all maps after it, whether a map or the whole is last."""
    parts, maps = _maps(torch.float64)
    maps = maps if is_last else maps[:2]
    leaves = [*parts, *(tensor for tensors in maps for tensor in tensors)]
    values = [
        plain_dense_projection(parts[: index + 1], *tensors) for index, tensors in enumerate(maps)
    ]
    tail = (torch.cat(parts, -1) ** 2).sum() * (not is_last)
    expected = torch.autograd.grad(_total(values) + tail, leaves)

    prefix = DensePrefix(parts[0], 11)
    mapped: list[Tensor] = []
    for index, part in enumerate(parts):
        # The chain: what is appended has to come from what was mapped before it.
        prefix.append(part if not mapped else part + 0.0 * mapped[-1][:, :3])
        if index < len(maps):
            mapped.append(prefix.snapshot().project(*maps[index], last=index == 2))
    for mine, other in zip(mapped, values, strict=True):
        assert torch.allclose(mine, other)
    tail = torch.zeros((), dtype=torch.float64) if is_last else (prefix.whole() ** 2).sum()
    total = _total(mapped) + tail
    for _ in range(2):
        again = torch.autograd.grad(total, leaves, retain_graph=True)
        torch.testing.assert_close(again, expected, atol=1e-8, rtol=1e-5)


def _total(values: list[Tensor]) -> Tensor:
    return torch.stack([(factor * value**3).sum() for factor, value in enumerate(values, 1)]).sum()


CELLS = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 16.0]])
MEAN, VARIANCE = torch.tensor([3.0, 12.0]), torch.tensor([8 / 3, 8.0])
UNBIASED = torch.tensor([4.0, 12.0])


def test_moments_of_few_and_of_one_cell() -> None:
    norm = BatchStatistics(2)
    expected = (CELLS - MEAN) / (VARIANCE + 1e-5).sqrt()
    assert torch.allclose(norm(CELLS), expected, atol=1e-4)
    assert torch.allclose(norm.running_mean, 0.1 * MEAN)
    assert torch.allclose(norm.running_var, 0.9 + 0.1 * UNBIASED)
    # A single cell has no unbiased variance.
    single = BatchStatistics(2)
    assert torch.allclose(single(CELLS[2:]), torch.zeros(1, 2), atol=1e-4)
    assert torch.allclose(single.running_mean, 0.1 * CELLS[2])
    assert torch.equal(single.running_var, torch.ones(2))


def test_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    norm = BatchNorm(2).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([1.0, -1.0]))
        norm.running_var.copy_(torch.tensor([4.0, 9.0]))
        norm.weight.copy_(torch.tensor([2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.5, -0.5]))
    expected = torch.tensor([[0.5, 10.5], [2.5, 10.5], [4.5, 16.5]])
    assert torch.allclose(norm(CELLS), expected, atol=1e-3)
    assert torch.equal(norm.running_mean, torch.tensor([1.0, -1.0]))
    assert torch.allclose(norm(CELLS.view(1, 3, 2)), norm(CELLS).view(1, 3, 2))


def test_frozen_and_still_statistics() -> None:
    norm = BatchStatistics(2)
    with still_statistics(norm):
        live = norm(CELLS)
    with frozen_statistics(norm):
        assert torch.allclose(norm(CELLS), CELLS, atol=1e-3)
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert torch.equal(norm.running_var, torch.ones(2))
    assert torch.equal(norm(CELLS), live) and norm.running_mean[0] != 0


def test_the_batch_norm_gradient_and_dtype() -> None:
    norm = BatchNorm(3).double()
    cells = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    with still_statistics(norm):
        assert torch.autograd.gradcheck(norm, (cells,))
    # A mean that bfloat16 sums would lose: 4,096 times 1, and then 4,096 times 3.
    statistics = BatchStatistics(1)
    result = statistics(torch.cat([torch.ones(4096, 1), torch.full((4096, 1), 3.0)]).bfloat16())
    assert result.dtype == torch.bfloat16
    assert statistics.running_mean.item() == pytest.approx(0.2)
    assert torch.equal(result.float().abs(), torch.ones_like(result).float())


def _tiny(**changes: object) -> TranslationModel:
    torch.manual_seed(4)
    settings: dict[str, object] = {"depth": 2, "growth": 4, "kernel": 3, "embedding_size": 6}
    settings |= {"bottleneck": 2, "dropout": 0.0, "embedding_dropout": 0.0, "output_dropout": 0.0}
    return zoo.build(
        "pervasive-densenet", None, {**settings, **changes},
        source_vocab_size=12, target_vocab_size=11,
    )  # fmt: skip


def _buffers(model: TranslationModel) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


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
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
        updater = Updater(
            TrainedModel(model, Likelihood(LikelihoodSettings())), optimiser, torch.device("cpu"),
            bf16=False, clip_norm=0.0,
        )  # fmt: skip
        alone = []
        for piece in pieces:
            other = _tiny()
            Likelihood(LikelihoodSettings()).loss(other.train(), piece)
            # From a running mean of 0, one pass leaves a tenth of the batch's.
            alone.append(_buffers(other)["network.statistics.running_mean"])
        updater.apply(pieces, 0.0)
        actual = _buffers(model)["network.statistics.running_mean"]
        expected = alone[0] if len(alone) == 1 else 0.9 * alone[0] + alone[1]
        assert torch.allclose(actual, expected, atol=1e-6)
        moved.append(actual)
    assert not torch.allclose(moved[0], moved[1], rtol=0.1)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_training_pass_moves_them_once(checkpointed: bool) -> None:
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


def test_published_counts() -> None:
    """Tables 1 and 2 within a per cent, with |V| as the text prints it; 3 to the million."""
    published = []
    counted = {"iwslt14-de-en": 22, "iwslt14-en-de": 22, "iwslt14-de-en-v1": 11}
    for name, preset in zoo.presets(ARCH).items():
        if not preset.parameters and name not in counted:
            continue
        assert preset.vocabulary, name
        count = count_parameters(ARCH, name, *preset.vocabulary)
        if preset.parameters:
            assert preset.vocabulary == (12000, 8800), name
            assert count == pytest.approx(preset.parameters, rel=0.01), name
            published.append(round(preset.parameters / 1e6, 2))
        if name in counted:
            assert round(count / 1e6) == counted.pop(name), name
    assert not counted
    first = [7.18, 7.18, 7.24, 9.64, 7.24]
    second = [4.32, 4.92, 3.88, 4.59, 5.37, 6.23, 7.18, 8.21, 5.76, 6.94]
    assert sorted(published) == sorted(first + second)


@pytest.mark.parametrize("aggregation", ["max", "gated-max", "attention"])
@pytest.mark.parametrize("gates", ["none", "both"])
def test_reported_cost_is_what_torch_counts(aggregation: str, gates: str) -> None:
    shape = {"depth": 2, "embedding_size": 32, "growth": 16, "kernel": 3}
    choice = {"aggregation": aggregation, "gates": gates}
    model = zoo.build(ARCH, None, {**shape, **choice}, source_vocab_size=12, target_vocab_size=11)
    # In float64, for the counter does not know the library's product of float32 matrices.
    model = model.double().eval()
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    with FlopCounterMode(display=False) as count, torch.no_grad():
        model.classify(model.features(batch, PredictionSites.offline(batch)))
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(count.get_total_flops(), rel=0.03)


def test_receptive_field_and_faulty_settings() -> None:
    """Five columns for each 5 x 3 filter and three rows: 24 layers see 97 by 49 tokens."""
    with torch.device("meta"):
        model = zoo.build(ARCH, None, source_vocab_size=9, target_vocab_size=9)
    assert model.traits.source_receptive_field == 1 + 24 * 4
    assert model.traits.target_receptive_field == 1 + 24 * 2
    assert model.traits.batch_statistics and model.traits.aligns
    wrong = {"kernel": 4, "depth": 0, "growth": 0, "dropout": 1.0, "embedding_size": 0}
    with pytest.raises(ConfigError) as caught:
        zoo.build(ARCH, None, wrong, source_vocab_size=9, target_vocab_size=9)
    message = str(caught.value.problem)
    assert all(f"model.{name}" in message for name in wrong)
    with pytest.raises(ConfigError, match="depth"):
        zoo.build(ARCH, None, {"depth": 2000}, source_vocab_size=9, target_vocab_size=9)
