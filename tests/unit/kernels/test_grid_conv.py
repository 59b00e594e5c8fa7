"""The grid convolution against its definition: all forms, values and gradients."""

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtgrid.layers.kernels import grid_conv
from nmtgrid.layers.kernels.grid_conv import (
    grid_convolution,
    grid_convolution_step,
    live_taps,
    plain_grid_convolution,
    prepare_step_weight,
)
from nmtgrid.layers.kernels.layout import GridLayout
from tests.unit.kernels.triton_interpreter import run_interpreted

Form = tuple[list[int], list[int], int, tuple[int, int]]
# Targets, sources, features, (k_y, k_x): ordinary, one cell, long and thin, odd sizes, full.
GRIDS = [
    ([7, 5, 1], [6, 9, 3], 48, (11, 11)),
    ([1], [1], 8, (3, 3)),
    ([1, 1], [1, 12], 5, (5, 7)),
    ([60, 3], [2, 1], 16, (5, 3)),
    ([4, 4], [13, 13], 33, (3, 7)),
    ([9, 9], [1, 1], 20, (7, 1)),
    ([5, 2], [4, 6], 3, (1, 5)),
]


on_every_grid = pytest.mark.parametrize("form", GRIDS, ids=str)
both_ways = pytest.mark.parametrize("source_causal", [False, True])


def _layout(targets: list[int], sources: list[int]) -> GridLayout:
    return GridLayout.make(torch.tensor(targets), torch.tensor(sources))


def _draw(layout: GridLayout, size: int, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(layout.cell_count)
    x = torch.randn(layout.cell_count, size, generator=generator, dtype=torch.float64)
    weight = torch.randn(*kernel, size, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), weight.requires_grad_()


def _by_definition(x: Tensor, weight: Tensor, layout: GridLayout, source_causal: bool) -> Tensor:
    """Eq. (3.2) cell by cell, the filter written out in full and masked."""
    k_y, k_x, size = weight.shape
    mask = torch.ones(k_y, k_x, 1, dtype=torch.float64)
    mask[k_y // 2 + 1 :] = 0  # 1-based rows floor(k_y/2)+2 .. k_y
    if source_causal:
        mask[:, k_x // 2 + 1 :] = 0
    results = []
    for start, (height, width) in zip(layout.offsets.tolist(), layout.shapes, strict=True):
        grid = x[start : start + height * width].view(height, width, size)
        for t, s in itertools.product(range(height), range(width)):
            total = torch.zeros(size, dtype=torch.float64)
            for i, j in itertools.product(range(k_y), range(k_x)):
                row, column = t + i - k_y // 2, s + j - k_x // 2
                if 0 <= row < height and 0 <= column < width:
                    total = total + grid[row, column] * weight[i, j] * mask[i, j]
            results.append(total)
    return torch.stack(results)


@both_ways
@on_every_grid
def test_equals_the_definition(form: Form, source_causal: bool) -> None:
    targets, sources, size, kernel = form
    layout = _layout(targets, sources)
    x, weight = _draw(layout, size, kernel)
    outer = torch.randn(layout.cell_count, size, dtype=torch.float64)
    right = _by_definition(x.detach(), weight.detach(), layout, source_causal)
    plain = plain_grid_convolution(x, weight, layout, source_causal=source_causal)
    fast = grid_convolution(x, weight, layout, source_causal=source_causal)
    torch.testing.assert_close(plain, right)
    torch.testing.assert_close(fast, right)
    torch.testing.assert_close(
        torch.autograd.grad(fast, (x, weight), outer),
        torch.autograd.grad(plain, (x, weight), outer),
    )


@pytest.mark.parametrize(
    ("size", "groups"),
    [
        # 2 x 3 and 3 x 3 together need 3 cells of padding, and with 2 of 4 x 6 2 x (24 - 9) more.
        (10_000, [[(2, 3), (3, 3)], [(4, 6)], [(20, 20)]]),
        (1000, [[(2, 3), (3, 3), (4, 6)], [(20, 20)]]),
        (1, [[(4, 6), (2, 3), (20, 20), (3, 3)]]),
    ],
)
def test_similar_sentences_are_convolved_together(
    size: int, groups: list[list[tuple[int, int]]]
) -> None:
    layout = _layout([4, 4, 2, 20, 3], [6, 6, 3, 20, 3])
    chosen = grid_conv._groups(layout, size)
    assert [[(run.rows, run.columns) for run in group] for group in chosen] == groups
    assert sorted(run for group in chosen for run in group) == list(layout.runs)
    whole = _layout([4, 4], [6, 6])
    assert grid_conv._groups(whole, size) == [whole.runs]


def test_sentences_of_one_shape_are_not_copied_out_of_the_convolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies: list[Tensor] = []
    monkeypatch.setattr(
        grid_conv, "collect_cells", lambda grid, runs, result: copies.append(result)
    )
    x, weight = torch.randn(24, 8), torch.randn(3, 3, 8)
    grid_convolution(x, weight, _layout([3, 3], [4, 4]))
    assert not copies
    grid_convolution(x, weight, _layout([3, 4], [4, 3]))
    assert len(copies) == 1 and copies[0].shape == (24, 8)


def _distance(actual: Tensor, right: Tensor) -> float:
    return float(((actual.double() - right).norm() / right.norm()).detach())


@pytest.mark.parametrize("piece", [1, 100, 2048])
@pytest.mark.parametrize("has_library_kernel", [True, False])
@both_ways
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 6e-3)])
@on_every_grid
def test_cpu_form_in_narrow_dtypes(
    monkeypatch: pytest.MonkeyPatch, form: Form, dtype: torch.dtype, tolerance: float,
    source_causal: bool, has_library_kernel: bool, piece: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(grid_conv, "PIECE_CELLS", piece)
    # Each sentence for itself, few together, all.
    monkeypatch.setattr(grid_conv, "CALL_ELEMENTS", {1: -1, 100: 200, 2048: 2**16}[piece])
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_library_kernel)
    targets, sources, size, kernel = form
    layout = _layout(targets, sources)
    exact = [
        leaf.detach().to(dtype).double().requires_grad_() for leaf in _draw(layout, size, kernel)
    ]
    x, weight = exact[0].detach().to(dtype).requires_grad_(), exact[1].detach().float()
    weight.requires_grad_()
    outer = torch.randn(layout.cell_count, size).to(dtype)
    result = grid_convolution(x, weight, layout, source_causal=source_causal)
    right = plain_grid_convolution(exact[0], exact[1], layout, source_causal=source_causal)
    gradients = torch.autograd.grad(result, (x, weight), outer)
    expected = torch.autograd.grad(right, exact, outer.double())
    assert (result.dtype, gradients[0].dtype, gradients[1].dtype) == (dtype, dtype, torch.float32)
    for mine, theirs in zip((result, *gradients), (right.detach(), *expected), strict=True):
        assert _distance(mine, theirs) < tolerance


@both_ways
def test_dead_taps_are_never_read(source_causal: bool) -> None:
    layout = _layout([4, 2], [3, 5])
    x, weight = _draw(layout, 4, (5, 5))
    weight = weight.detach()
    weight[3:] = float("nan")
    if source_causal:
        weight[:, 3:] = float("nan")
    weight.requires_grad_()
    result = grid_convolution(x, weight, layout, source_causal=source_causal)
    gradient = torch.autograd.grad(result.sum(), weight)[0]
    assert bool(result.isfinite().all())
    assert gradient[weight.isnan()].count_nonzero() == 0
    assert bool((gradient[~weight.isnan()] != 0).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_leaves_the_dtype_as_it_comes(dtype: torch.dtype) -> None:
    layout = _layout([4, 2], [3, 5])
    drawn = _draw(layout, 16, (3, 5))
    x = drawn[0].detach().to(dtype).requires_grad_()
    weight = drawn[1].detach().float().requires_grad_()
    outside = grid_convolution(x, weight, layout)
    gradients = torch.autograd.grad(outside.sum(), (x, weight))
    window, prepared = torch.randn(2, 2, 5, 16).to(dtype), prepare_step_weight(weight, dtype)
    step = grid_convolution_step(window, prepared)
    with torch.autocast("cpu", torch.bfloat16):
        within = grid_convolution(x, weight, layout)
        assert within.dtype == dtype
        torch.testing.assert_close(torch.autograd.grad(within.sum(), (x, weight)), gradients)
        torch.testing.assert_close(plain_grid_convolution(x, weight, layout), within)
        torch.testing.assert_close(grid_convolution_step(window, prepared), step)
    torch.testing.assert_close(within, outside)


def test_strided_input_and_gradient() -> None:
    layout = _layout([4, 2], [3, 5])
    x, weight = _draw(layout, 6, (3, 3))
    wide = x.detach().t().contiguous().t().float().requires_grad_()
    result = grid_convolution(wide, weight, layout)
    torch.testing.assert_close(result, grid_convolution(x.float(), weight, layout))
    torch.testing.assert_close(
        torch.autograd.grad(result.sum(), wide, retain_graph=True),
        torch.autograd.grad(result, wide, torch.ones_like(result)),
    )


def test_only_wanted_gradients_are_computed() -> None:
    layout = _layout([4, 2], [3, 5])
    x, weight = _draw(layout, 6, (3, 3))
    of_x = torch.autograd.grad(grid_convolution(x, weight.detach(), layout).sum(), x)
    of_weight = torch.autograd.grad(grid_convolution(x.detach(), weight, layout).sum(), weight)
    both = torch.autograd.grad(grid_convolution(x, weight, layout).sum(), (x, weight))
    torch.testing.assert_close((*of_x, *of_weight), both)


@pytest.mark.parametrize("kernel", [(2, 3), (3, 4)])
@pytest.mark.parametrize("convolve", [grid_convolution, plain_grid_convolution])
def test_even_kernels_are_refused(convolve: Callable[..., Tensor], kernel: tuple[int, int]) -> None:
    layout = _layout([2], [2])
    x, weight = _draw(layout, 2, kernel)
    with pytest.raises(ValueError, match="odd"):
        convolve(x, weight, layout)
    with pytest.raises(ValueError, match="odd"):
        prepare_step_weight(weight, torch.float32)


def test_live_taps_of_the_thesis() -> None:
    weight = torch.zeros(11, 11, 4)
    assert live_taps(weight).shape == (6, 11, 4)
    assert live_taps(weight, source_causal=True).shape == (6, 6, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("source_causal", [False, True])
@pytest.mark.parametrize("kernel", [(5, 7), (3, 5), (1, 1), (11, 11)])
def test_steps_equal_all_rows_at_once(
    kernel: tuple[int, int], source_causal: bool, dtype: torch.dtype
) -> None:
    rows, height, width, size = 3, 6, 5, 8
    layout = _layout([height] * rows, [width] * rows)
    x, weight = (leaf.detach().to(dtype) for leaf in _draw(layout, size, kernel))
    whole = layout.pad(grid_convolution(x, weight, layout, source_causal=source_causal))
    prepared = prepare_step_weight(weight, dtype, source_causal=source_causal)
    above = kernel[0] // 2
    history = torch.cat([torch.zeros(rows, above, width, size, dtype=dtype), layout.pad(x)], 1)
    for t in range(height):
        window = history[:, t : t + above + 1]
        row = grid_convolution_step(window, prepared, source_causal=source_causal)
        torch.testing.assert_close(row, whole[:, t], rtol=1.6e-2, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_forms_in_the_interpreter(project: Path) -> None:
    """Those of all kernels, in one process: 34 of the convolution, 65 of sums, 21 of others."""
    files = sorted(Path(__file__).parent.glob("test_*_triton.py"))
    ended = run_interpreted(files, project, "-k", "not compile")
    assert ended.startswith("120 passed, ") and "skipped" not in ended, ended


@pytest.mark.gpu
@on_every_grid
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_on_a_gpu(form: Form, dtype: torch.dtype) -> None:
    targets, sources, size, kernel = form
    layout = _layout(targets, sources)
    there = GridLayout.make(layout.target_lengths.cuda(), layout.source_lengths.cuda())
    drawn = [leaf.detach().to(dtype) for leaf in _draw(layout, size, kernel)]
    here = [leaf.double().requires_grad_() for leaf in drawn]
    moved = [leaf.cuda().requires_grad_() for leaf in drawn]
    outer = torch.randn(layout.cell_count, size).to(dtype)
    result = grid_convolution(moved[0], moved[1], there)
    right = plain_grid_convolution(here[0], here[1], layout)
    gradients = torch.autograd.grad(result, moved, outer.cuda())
    expected = torch.autograd.grad(right, here, outer.double())
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-4
    for mine, theirs in zip((result, *gradients), (right, *expected), strict=True):
        assert _distance(mine.detach().cpu(), theirs.detach()) < tolerance
