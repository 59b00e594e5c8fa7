"""The Triton form against the plain one: on a GPU, or in Triton's interpreter.

Without a GPU, `test_grid_conv.py` runs this file again in a process with TRITON_INTERPRET=1. The
compiler needs no GPU.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.gpu_code import COLUMNS, ROWS
from nmtgrid.layers.kernels.grid_conv import (
    grid_convolution_step,
    live_taps,
    plain_grid_convolution,
)
from nmtgrid.layers.kernels.layout import GridLayout
from tests.unit.kernels.triton_interpreter import DEVICE, INTERPRETED, assembly

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.usefixtures("mended_interpreter")

runs = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="run by test_grid_conv.py in the interpreter"
)

# Sizes around the programs of 16 x 64; the last kernel has 16 live rows.
GRIDS = [
    ([3, 1], [27, 2], 70, (11, 11)),
    ([1], [1], 8, (3, 3)),
    ([2, 4, 1, 3, 1], [3, 17, 1, 1, 1], 33, (3, 7)),
    ([4], [2], 16, (1, 5)),
    ([18], [1], 5, (31, 1)),
]


def _distance(actual: Tensor, right: Tensor) -> float:
    return float((actual.detach().cpu().double() - right).norm() / right.norm())


@runs
@pytest.mark.parametrize("source_causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize("form", GRIDS, ids=str)
def test_equals_the_plain_form(
    form: tuple[list[int], list[int], int, tuple[int, int]], dtype: torch.dtype, tolerance: float,
    source_causal: bool,
) -> None:  # fmt: skip
    from nmtgrid.layers.kernels.grid_conv_triton import TritonGridConvolution

    *lengths, size, kernel = form
    layout = GridLayout.make(*(torch.tensor(side, device=DEVICE) for side in lengths))
    plain_layout = GridLayout.make(*map(torch.tensor, lengths))
    x, outer = (torch.randn(layout.cell_count, size).to(dtype) for _ in range(2))
    weight = torch.randn(*kernel, size)
    leaves = [leaf.to(DEVICE).requires_grad_() for leaf in (x, weight)]
    left, right = kernel[1] // 2, 0 if source_causal else kernel[1] // 2
    taps = live_taps(leaves[1], source_causal=source_causal)
    result = TritonGridConvolution.apply(  # type: ignore[no-untyped-call]
        leaves[0], taps, layout, left, right
    )
    assert result.dtype == dtype
    exact = [leaf.double().requires_grad_() for leaf in (x, weight)]
    plain = plain_grid_convolution(exact[0], exact[1], plain_layout, source_causal=source_causal)
    gradients = torch.autograd.grad(result, leaves, outer.to(DEVICE))
    right_gradients = torch.autograd.grad(plain, exact, outer.double())
    assert _distance(result, plain) < tolerance
    assert _distance(gradients[0], right_gradients[0]) < tolerance
    assert _distance(gradients[1], right_gradients[1]) < 1e-6


@runs
@pytest.mark.parametrize("reverse", [False, True])
def test_strips_of_a_program_change_no_bit(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sum has its terms in the same order, whatever else its program computes."""
    from nmtgrid.layers.kernels import grid_conv_triton

    layout = GridLayout.make(*(torch.tensor(side, device=DEVICE) for side in ([3, 2], [40, 17])))
    x, taps = torch.randn(layout.cell_count, 33), torch.randn(3, 5, 33)
    inputs = x.to(DEVICE), taps.to(DEVICE), layout, 2
    together = grid_conv_triton.convolve_cells(*inputs, reverse=reverse)
    monkeypatch.setattr(grid_conv_triton, "PARTS", 1)
    assert torch.equal(together, grid_conv_triton.convolve_cells(*inputs, reverse=reverse))


@runs
@pytest.mark.parametrize("source_causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize(
    ("shape", "kernel"), [((2, 9, 70), (5, 5)), ((1, 1, 8), (3, 5)), ((2, 3, 33), (1, 7))]
)
def test_a_step_equals_the_librarys(
    shape: tuple[int, int, int], kernel: tuple[int, int], dtype: torch.dtype, tolerance: float,
    source_causal: bool,
) -> None:  # fmt: skip
    """Of rows in order in a buffer that has more, and of a ring's."""
    from nmtgrid.layers.kernels.grid_conv_triton import convolve_step

    weight, live = torch.randn(*kernel, shape[2]), kernel[0] // 2 + 1
    buffer = torch.randn(shape[0], live + 2, *shape[1:]).to(dtype)
    window, left = buffer[:, 1:-1], kernel[1] // 2
    # As on a GPU: features lie together.
    taps = live_taps(weight, source_causal=source_causal).permute(2, 0, 1).unsqueeze(1)
    exact = grid_convolution_step(
        window.double(), taps.to(dtype).double(), source_causal=source_causal
    )
    on_device = window.to(DEVICE), taps.to(dtype).to(DEVICE)
    result = convolve_step(*on_device, None, left)
    assert result.dtype == dtype and _distance(result, exact) < tolerance
    order = torch.arange(live).roll(1)
    ring = on_device[0].index_select(1, order.to(DEVICE))
    turned = convolve_step(ring, on_device[1], order.to(DEVICE), left)
    assert _distance(turned, exact) < tolerance


@pytest.fixture
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize("way", ["forward", "input gradient"])
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_convolution_compiles(capability: int, kind: str, way: str) -> None:
    """With fused multiply-adds, 8 for each load of four taps, and no spills."""
    from nmtgrid.layers.kernels.grid_conv_triton import PARTS, TILE

    text = assembly(f"convolution, {way}", kind, capability)
    products = ROWS * COLUMNS * PARTS * TILE["BLOCK_S"] * TILE["BLOCK_D"]
    assert text.count("fma.rn.f32") >= products // (32 * TILE["num_warps"])
    # Four taps at a time, each for all strips; and, in fp32, four features of each position that
    # a thread reads: strips of 8 overlap by the 3 outer columns of a kernel of 11.
    features = COLUMNS + (PARTS - 1) * TILE["BLOCK_S"] if kind == "fp32" else 0
    assert text.count("ld.global.v4") == ROWS * COLUMNS + features


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize("window", ["rows in order", "a ring"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_step_compiles(capability: int, window: str) -> None:
    from nmtgrid.layers.kernels.grid_conv_triton import STEP_TILE

    text = assembly(f"convolution, decoding step, {window}", "bf16", capability)
    # One row of taps at a time.
    products = COLUMNS * STEP_TILE["BLOCK_S"] * STEP_TILE["BLOCK_D"]
    assert text.count("fma.rn.f32") >= products // (32 * STEP_TILE["num_warps"])


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_the_weight_gradient_compiles(kind: str, capability: int) -> None:
    from nmtgrid.layers.kernels.grid_conv_triton import TILE

    text = assembly("convolution, weight gradient", kind, capability)
    products = ROWS * TILE["BLOCK_S"] * TILE["BLOCK_D"]
    assert text.count("fma.rn.f32") >= products // (32 * TILE["num_warps"])
