"""The scaled sum of many tensors: on a GPU, or in Triton's interpreter.

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
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
# Within one pass of four, exactly that, and several; no element, and more than a program's.
@pytest.mark.parametrize(("terms", "shape"), [(1, (3, 5)), (3, (2,)), (4, (0, 7)), (4, (1, 9)),
                                              (5, (1024,)), (15, (37, 61))])  # fmt: skip
def test_equals_the_plain_sum(
    terms: int, shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    from nmtgrid.layers.kernels.scaled_sum_triton import scaled_sum

    torch.manual_seed(3)
    drawn = [torch.randn(shape).to(dtype) for _ in range(terms)]
    result = scaled_sum([term.to(DEVICE) for term in drawn], 0.3)
    assert result.dtype == dtype and result.shape == shape
    right = 0.3 * torch.stack(drawn).double().sum(0)
    torch.testing.assert_close(result.cpu().double(), right, rtol=tolerance, atol=1e-6)
    # Term after term in float32, as the loop on a CPU does.
    total = torch.zeros(shape)
    for term in drawn:
        total += term
    if dtype == torch.float32 or DEVICE == "cuda":  # the interpreter rounds bf16 otherwise
        assert torch.equal(result.cpu(), (total * 0.3).to(dtype))


@runs
def test_equals_it_with_other_strides() -> None:
    from nmtgrid.layers.kernels.scaled_sum_triton import scaled_sum

    first, second = torch.randn(5, 7, device=DEVICE), torch.randn(7, 5, device=DEVICE)
    torch.testing.assert_close(scaled_sum([first, second.t()], 2.0), (first + second.t()) * 2)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    text = assembly("sum of four states", "bf16", capability)
    # 16 bytes at a time.
    assert "ld.global.v4" in text and "st.global.v4" in text
