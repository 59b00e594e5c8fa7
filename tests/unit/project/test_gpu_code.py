"""benchmarks/gpu_code.py: instructions, shares of peak performance, a roofline by hand."""

import ast
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_code


def test_instructions_are_counted_by_name_and_width() -> None:
    text = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/               @P1 LDG.E.64 R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   LDG.E.U16 R8, desc[UR4][R2.64] ;
        /*0040*/                   LDS.128 R8, [R3] ;
        /*0050*/                   FFMA R5, R4, R8, R5 ;
        /*0060*/                   FFMA R6, R4, R8, R6 ;
        /*0070*/              @UP0 STG.E R6, desc[UR4][R2.64] ;
    """
    counts = gpu_code.count_instructions(text)
    assert counts == {
        "LDC": 1, "LDG.128": 1, "LDG.64": 1, "LDG.U16": 1, "LDS.128": 1, "FFMA": 2, "STG.32": 1,
    }  # fmt: skip


def test_loads_bound_the_convolution() -> None:
    # 66 cycles of products versus 66 x 4 + 11 x 2 of loads: 0.23.
    counts = Counter({"FFMA": 264, "LDG.128": 66, "LDG.64": 11})
    assert gpu_code.convolution_share(counts) == pytest.approx(66 / 286)
    assert gpu_code.convolution_share(Counter({"FFMA": 800, "LDG.32": 10})) == 1.0


def test_cells_beyond_the_end_are_counted() -> None:
    # Pairs of 8 x 3 and 9 x 1 cells with end symbols; programs of 8 positions: 8 x 3 and 16 x 1.
    lengths = np.array([[7, 2], [8, 0]])
    assert gpu_code.computed_cells(lengths, 8) == pytest.approx((24 + 16) / (24 + 9))


def test_the_roofline_is_the_sum_of_its_parts() -> None:
    separate, _, present = gpu_code.PASSES
    slow = gpu_code.roofline("H100", 1e5, 0.25, separate)
    fast = gpu_code.roofline("H100", 1e5, 0.5, present)
    # Two passes of 66 multiply-adds for 256 features, 14 blocks, a quarter of 67 TFLOP/s.
    work = 2 * 1e5 * 14 * 2 * 66 * 256
    assert slow["convolution, both ways"] == pytest.approx(1000 * work / (0.25 * 67e12))
    assert fast["convolution, both ways"] == pytest.approx(slow["convolution, both ways"] / 2)
    # The fused pass saves one read of 1,024 features.
    spared = 1000 * 1e5 * 14 * 2 * 1024 / (0.75 * 3.35e12)
    assert slow["biases"] - fast["biases"] == pytest.approx(spared)
    parts = [value for name, value in slow.items() if name not in ("gpu", "cells", "sum, ms")]
    assert slow["sum, ms"] == pytest.approx(sum(parts))
    # Products are limited by the bytes of their inputs and outputs, or by arithmetic.
    work, moved = 6e5 * 14 * 2 * 256 * 256, 3e5 * 14 * 2 * 512
    assert slow["products"] > 1000 * max(work / 2 / 593.4e12, moved / 2.5125e12)


def test_passes_over_memory_are_counted() -> None:
    present = gpu_code.PASSES[-1]
    # In the forward pass, two sums of two grids into a third. In the backward pass, the gradients
    # of the next layer and the next sum are read (after a block also that of the sum of all), and
    # two are written.
    assert present.residual == 2 * 3 + (2 + 2) + (3 + 2)
    # Four, four, four and three states; the sum is in float32 after all passes but the last.
    states, written, read = 15, 3 * 2, 3 * 2
    assert present.cumulative == (states + written + read + 1) / 14


def test_every_kernel_is_compiled() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    names = {kernel.function.fn.__name__ for kernel in gpu_code.kernels()}
    folder = Path(gpu_code.__file__).parents[1] / "nmtgrid/layers/kernels"
    # All functions that are launched, which are those that use a program's number.
    written = {
        name
        for path in folder.glob("*_triton.py")
        for name in re.findall(r"^def (_\w+_kernel)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert names == written
    assert len({kernel.name for kernel in gpu_code.kernels()}) == len(gpu_code.kernels())


def test_kernels_are_compiled_with_the_options_of_their_launches() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from nmtgrid.layers.kernels.triton_options import OPTIONS

    assert all(kernel.options.items() >= OPTIONS.items() for kernel in gpu_code.kernels())
    folder = Path(gpu_code.__file__).parents[1] / "nmtgrid/layers/kernels"
    # Launches: calls of functions indexed by a grid of programs.
    launches = [
        (path.name, node)
        for path in folder.glob("*_triton.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    ]
    assert len(launches) == 7
    for name, launch in launches:
        words = [ast.unparse(word.value) for word in launch.keywords if word.arg is None]
        assert "OPTIONS" in words, f"{name}:{launch.lineno}"
