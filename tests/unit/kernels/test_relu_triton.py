"""The fused backward pass of a rectifier and its bias: on a GPU, or in Triton's interpreter.

Without a GPU, `test_grid_conv.py` runs this file again in a process with TRITON_INTERPRET=1.
"""

from pathlib import Path

import pytest
import torch

from tests.unit.kernels.triton_interpreter import DEVICE, INTERPRETED, assembly

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.usefixtures("mended_interpreter")
runs = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="run by test_grid_conv.py in the interpreter"
)


@runs
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
# No row; one; more than a program of 16 x 32, and features beside the tile of 128.
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (33, 130), (1100, 40)])
def test_equals_the_two_passes(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    from nmtgrid.layers.kernels.relu_triton import rectifier_backward

    torch.manual_seed(2)
    gradient, rectified = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype).relu()
    of_input, of_bias = rectifier_backward(gradient.to(DEVICE), rectified.to(DEVICE))
    expected = torch.where(rectified > 0, gradient, 0.0)
    assert torch.equal(of_input.cpu(), expected)
    assert of_bias.dtype == dtype
    sums = expected.double().sum(0)
    # To the rounding of a sum, whose terms are larger than it.
    scale = expected.double().abs().sum(0) + 1e-9
    assert ((of_bias.cpu().double() - sums).abs() <= tolerance * scale).all()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_kernels_compile(
    kind: str, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    text = assembly("rectifier and bias, backward", kind, capability)
    # 16 bytes at a time.
    assert "ld.global.v4" in text and "st.global.v4" in text
    assembly("rectifier and bias, sums of programs", kind, capability)
