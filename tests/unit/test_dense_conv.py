"""The full grid convolution and the 1 x 1 map of dense layers, against definition and twin."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from nmtgrid.layers.grid.convolution import FullConvolution, RowCache
from nmtgrid.layers.kernels.densenet import (
    DensePrefix,
    dense_grid_convolution,
    dense_grid_convolution_step,
    live_dense_taps,
    plain_dense_grid_convolution,
    plain_dense_projection,
    prepare_dense_step_weight,
)
from nmtgrid.layers.kernels.layout import GridLayout

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
    wanted = _by_definition(x, weight, layout)
    assert torch.allclose(plain_dense_grid_convolution(x, weight, layout), wanted)
    assert torch.allclose(dense_grid_convolution(x, weight, layout), wanted)


@every_grid
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_those_of_the_twin(grid: Grid, dtype: torch.dtype) -> None:
    layout, x, weight = _draw(grid)
    readout = torch.randn(layout.cell_count, weight.shape[0], dtype=torch.float64)
    wanted = torch.autograd.grad(
        (plain_dense_grid_convolution(x, weight, layout) * readout).sum(), (x, weight)
    )
    _, low, kept = _draw(grid, dtype)
    result = dense_grid_convolution(low, kept, layout)
    assert result.dtype == dtype
    found = torch.autograd.grad((result * readout.to(dtype)).sum(), (low, kept))
    limit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).abs().max() <= limit * other.abs().max()
    dead = found[1][:, :, weight.shape[2] // 2 + 1 :]
    assert torch.equal(dead, torch.zeros_like(dead))


def test_a_float32_weight_serves_bfloat16_features() -> None:
    layout, x, _ = _draw(GRIDS[0], torch.bfloat16)
    _, _, weight = _draw(GRIDS[0], torch.float32)
    dense_grid_convolution(x, weight, layout).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype == torch.float32


@pytest.mark.parametrize("grid", [GRIDS[1], GRIDS[4]], ids=str)
def test_row_by_row_is_all_at_once(grid: Grid) -> None:
    layout, x, weight = _draw(grid)
    rows = layout.pad(x).detach()
    wanted = layout.pad(_by_definition(x, weight, layout))
    prepared = prepare_dense_step_weight(weight, x.dtype)
    cache = RowCache.empty(rows[:, 0], weight.shape[2] // 2 + 1, spare=1)
    for place in range(rows.shape[1]):
        window = cache.push(rows[:, place])
        found = dense_grid_convolution_step(window, prepared)
        assert torch.allclose(found, wanted[:, place])


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="odd"):
        live_dense_taps(torch.zeros(2, 2, 4, 4))


def test_the_weight_is_drawn_on_live_taps_alone() -> None:
    torch.manual_seed(0)
    weight = FullConvolution(64, 64, 5).weight.detach()
    assert (weight[:, :, 3:] == 0).all()
    # 64 x 15 rectified inputs: variance 2 / 960.
    assert float(weight[:, :, :3].var()) == pytest.approx(2 / 960, rel=0.02)


def _maps(dtype: torch.dtype) -> tuple[list[Tensor], list[list[Tensor]]]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    sizes = [5, 3, 3]
    parts = [draw(11, size) for size in sizes]
    maps = [[draw(width), draw(width), draw(4, width)] for width in (5, 8, 11)]
    for held in (parts, *maps):
        for tensor in held:
            tensor.requires_grad_()
    return parts, maps


@pytest.mark.parametrize("is_last", [False, True])
def test_a_chain_of_maps_is_that_of_separate_parts(is_last: bool) -> None:
    """Each part gets the gradients of all maps behind it, whether a map or the whole is last."""
    parts, maps = _maps(torch.float64)
    maps = maps if is_last else maps[:2]
    leaves = [*parts, *(tensor for held in maps for tensor in held)]
    values = [plain_dense_projection(parts[: place + 1], *held) for place, held in enumerate(maps)]
    tail = (torch.cat(parts, -1) ** 2).sum() * (not is_last)
    wanted = torch.autograd.grad(_total(values) + tail, leaves)

    prefix = DensePrefix(parts[0], 11)
    found: list[Tensor] = []
    for place, part in enumerate(parts):
        # The chain: what is appended has to come from what was mapped before it.
        prefix.append(part if not found else part + 0.0 * found[-1][:, :3])
        if place < len(maps):
            found.append(prefix.snapshot().project(*maps[place], last=place == 2))
    for one, other in zip(found, values, strict=True):
        assert torch.allclose(one, other)
    tail = torch.zeros((), dtype=torch.float64) if is_last else (prefix.whole() ** 2).sum()
    total = _total(found) + tail
    for _ in range(2):
        again = torch.autograd.grad(total, leaves, retain_graph=True)
        for one, other in zip(again, wanted, strict=True):
            assert torch.allclose(one, other)


def _total(values: list[Tensor]) -> Tensor:
    return torch.stack([(place * value**3).sum() for place, value in enumerate(values, 1)]).sum()


def test_maps_in_bfloat16_are_near() -> None:
    parts, maps = _maps(torch.bfloat16)
    exact = plain_dense_projection([parts[0].double()], *(t.double() for t in maps[0]))
    prefix = DensePrefix(parts[0], 5)
    prefix.append(parts[0])
    scale, shift, weight = maps[0]
    found = prefix.project(scale.float(), shift.float(), weight.float(), last=True)
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() <= 2e-2 * exact.abs().max()
