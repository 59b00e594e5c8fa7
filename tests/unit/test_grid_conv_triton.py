"""The Triton form against the plain one: on a GPU, or in Triton's interpreter.

Without a GPU, `test_grid_conv.py` runs this file again in a process with TRITON_INTERPRET=1. The
compiler needs no GPU.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtgrid.layers.kernels.grid_conv import live_taps, plain_grid_convolution
from nmtgrid.layers.kernels.layout import GridLayout
from tests.unit.triton_interpreter import DEVICE, INTERPRETED, assembly, mend

pytest.importorskip("triton", reason="Triton is not installed")

runs = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="run by test_grid_conv.py in the interpreter"
)

# Sizes around the tile of 16 x 32; the last kernel has 16 live rows.
GRIDS = [
    ([3, 1], [18, 2], 40, (11, 11)),
    ([1], [1], 8, (3, 3)),
    ([2, 4, 1, 3, 1], [3, 17, 1, 1, 1], 33, (3, 7)),
    ([4], [2], 16, (1, 5)),
    ([18], [1], 5, (31, 1)),
]


@pytest.fixture(autouse=True)
def _mend_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    mend(monkeypatch)


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


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.parametrize("rows", [6, 2])
def test_kernels_compile(rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from nmtgrid.layers.kernels.grid_conv_triton import _convolve_kernel, _weight_gradient_kernel

    sizes = {"offsets": "*i64", "heights": "*i64", "widths": "*i64"}
    shared = {"D": 256, "ROWS": rows, "COLUMNS": 11, "LEFT": 5, "BLOCK_S": 16, "BLOCK_D": 32}
    for reverse in (False, True):
        text = assembly(
            _convolve_kernel,
            {"x": "*bf16", "taps": "*fp32", "y": "*bf16", **sizes},
            {**shared, "REVERSED": reverse},
        )
        assert text.count("fma.rn.f32") >= rows * 11 * 16 * 32 // 128
    assembly(
        _weight_gradient_kernel,
        {"x": "*bf16", "gradient": "*bf16", "of_taps": "*fp32", **sizes, "batch": "i32"},
        {**shared, "SENTENCES": 4},
    )
