"""Machine code of the Triton kernels, and a roofline of an update: no GPU is needed.

    python -m benchmarks.gpu_code [--lengths FILE] [--out benchmarks/results/gpu-code.json]

compiles every kernel with its default tile ahead of time for compute capabilities 8.0 and 9.0,
counts registers, spills and machine instructions (with the tools that Triton includes), and
computes from them a roofline of one update of Pervasive Attention, N=14, d=256, 11x11. Nothing here
is measured on a GPU: the assumptions are in the notes of the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.shapes import Lengths, settings_of, training_lengths
from benchmarks.store import report, section
from benchmarks.timing import Conditions, Row
from benchmarks.whole_run import epoch_of

CAPABILITIES = (80, 90)
SIZE, WIDE, DEPTH, ROWS, COLUMNS = 256, 1024, 14, 6, 11
"""Sizes of the preset `iwslt14-de-en`; 6 rows of the 11 x 11 filter are not masked."""
BYTES = 2
"""Bytes per bfloat16."""
GPUS = {"H100": (989e12, 67e12, 3.35e12), "H200": (989e12, 67e12, 4.8e12)}
"""Peak bf16 and fp32 operations per second, and bytes per second."""
GEMM_SHARE, BANDWIDTH_SHARE = 0.6, 0.75
"""Shares of the peaks that matrix products and passes over memory reach: assumed."""
FORMER_SHARE = 264 / 4 / 286
"""Share of the fp32 peak that loads leave to the convolution with one strip of 16 positions."""
GRADIENT_MS = 2.9
"""Time of the convolution's weight gradient on an H100 for 100,000 cells: estimated."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A Triton kernel with its launch signature: argument types, constants, options."""

    name: str
    function: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one GPU."""

    ptx: str
    registers: int
    spilled: int
    """Bytes of stack and local memory per thread."""
    shared: int
    """Bytes of shared memory per program."""
    instructions: Counter[str]
    """Machine instructions by name and width: `FFMA`, `LDG.128`, ..."""


def kernels(kind: str = "bf16") -> list[Kernel]:
    """Return all kernels of nmtgrid with default tiles, for the preset's sizes and a dtype."""
    features = f"*{kind}"
    return [*_convolutions(features), *_passes(features)]


def _convolutions(features: str) -> list[Kernel]:
    from nmtgrid.layers.kernels import grid_conv_triton as conv
    from nmtgrid.layers.kernels.triton_options import OPTIONS

    grids = dict.fromkeys(("offsets", "heights", "widths"), "*i64")
    taps = {"D": SIZE, "ROWS": ROWS, "COLUMNS": COLUMNS, "LEFT": COLUMNS // 2}
    tile, warps = _tile(conv.TILE)
    step_tile, step_warps = _tile(conv.STEP_TILE)
    result = [
        Kernel(
            f"convolution, {way}", conv._convolve_kernel,
            {"x": features, "taps": "*fp32", "y": features, **grids},
            {**taps, "REVERSED": way == "input gradient", "PARTS": conv.PARTS, **tile},
            {**warps, **OPTIONS},
        )
        for way in ("forward", "input gradient")
    ]  # fmt: skip
    result.append(Kernel(
        "convolution, weight gradient", conv._weight_gradient_kernel,
        {"x": features, "gradient": features, "of_taps": "*fp32", **grids, "batch": "i32"},
        {**taps, "SENTENCES": conv.SENTENCES, **tile}, {**warps, **OPTIONS},
    ))  # fmt: skip
    numbers = ("width", "row_stride", "slot_stride", "cell_stride", "tap_row_step", "tap_step")
    for name, order, is_ring in (("rows in order", {}, False), ("a ring", {"order": "*i64"}, True)):
        types = {"window": features, "taps": features, **order, "y": features}
        constants = {} if is_ring else {"order": None}
        result.append(Kernel(
            f"convolution, decoding step, {name}", conv._step_kernel,
            {**types, **dict.fromkeys(numbers, "i32")},
            {**taps, **constants, "feature_step": 1, "IS_RING": is_ring, **step_tile},
            {**step_warps, **OPTIONS},
        ))  # fmt: skip
    return result


def _passes(features: str) -> list[Kernel]:
    from nmtgrid.layers.kernels import dropout_triton, relu_triton, scaled_sum_triton
    from nmtgrid.layers.kernels.triton_options import OPTIONS

    result = []
    numbers = {"count": "i32", "rate": "fp32", "factor": "fp32", "scale": "fp32", "seed": "i64"}
    forward, backward = dropout_triton._add_kernel, dropout_triton._gradient_kernel
    for sums, drops in (("residual and dropout", True), ("residual", False)):
        constants = {"DROPS": drops, "BLOCK": dropout_triton.BLOCK}
        types = {**dict.fromkeys(("h", "y", "out"), features), **numbers}
        result.append(Kernel(f"{sums}, forward", forward, types, constants, OPTIONS))
        gradients = ("first", "second", "third", "of_h", "of_y")
        types = {**dict.fromkeys(gradients, features), **numbers}
        constants = {"GRADIENTS": 3, **constants}
        result.append(Kernel(f"{sums}, backward", backward, types, constants, OPTIONS))
    states = ("first", "second", "third", "fourth")
    result.append(Kernel(
        "sum of four states", scaled_sum_triton._sum_kernel,
        {**dict.fromkeys(states, features), "total": "*fp32", "out": features, "count": "i32",
         "scale": "fp32"},
        {"TERMS": 4, "BEGINS": False, "ENDS": False, "BLOCK": scaled_sum_triton.BLOCK}, OPTIONS,
    ))  # fmt: skip
    tile, warps = _tile(relu_triton.TILE)
    result.append(Kernel(
        "rectifier and bias, backward", relu_triton._rectifier_kernel,
        {**dict.fromkeys(("gradient", "rectified", "of_input"), features), "sums": "*fp32",
         "count": "i32"},
        {"N": WIDE, "STEPS": relu_triton.STEPS, **tile}, {**warps, **OPTIONS},
    ))  # fmt: skip
    result.append(Kernel(
        "rectifier and bias, sums of programs", relu_triton._sum_kernel,
        {"sums": "*fp32", "out": features, "groups": "i32"}, {"N": WIDE, **tile},
        {**warps, **OPTIONS},
    ))  # fmt: skip
    return result


def _tile(tile: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Split a tile into constants and the option `num_warps`."""
    return (
        {name: size for name, size in tile.items() if name != "num_warps"},
        {"num_warps": tile["num_warps"]},
    )


def compile_ahead(kernel: Kernel, capability: int) -> Compiled:
    """Compile a kernel for a compute capability; no GPU is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**kernel.types, **dict.fromkeys(kernel.constants, "constexpr")}
    # At run time, Triton specialises on divisibility by 16: addresses of torch tensors are
    # multiples of 16, and so are element counts with 256 features.
    multiples = [
        number for number, (name, kind) in enumerate(kernel.types.items())
        if kind.startswith("*")
        or (name == "count" and not kernel.function.params[number].do_not_specialize)
    ]  # fmt: skip
    attributes = {(number,): [["tt.divisibility", 16]] for number in multiples}
    source = ASTSource(
        fn=kernel.function, signature=signature, constexprs=kernel.constants, attrs=attributes
    )
    target = GPUTarget("cuda", capability, 32)
    code = triton.compile(source, target=target, options=kernel.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(code.asm["cubin"])
        binary.flush()
        tools = Path(triton.__file__).parent / "backends/nvidia/bin"
        usage, text = (
            subprocess.check_output([tools / "cuobjdump", option, binary.name], text=True)
            for option in ("-res-usage", "-sass")
        )
    sizes = {name: int(size) for name, size in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", usage)}
    return Compiled(
        code.asm["ptx"], sizes["REG"], sizes["STACK"] + sizes["LOCAL"], sizes["SHARED"],
        count_instructions(text),
    )  # fmt: skip


def count_instructions(text: str) -> Counter[str]:
    """Count the instructions of a disassembly: arithmetic by name, global memory by its width."""
    counts: Counter[str] = Counter()
    for line in re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", text):
        name, *parts = line.split(".")
        if name in ("LDG", "STG", "LDS", "STS"):
            width = next((part for part in parts if part in ("64", "128")), None)
            narrow = next((part for part in parts if part in ("U8", "U16", "S16")), "32")
            counts[f"{name}.{width or narrow}"] += 1
        else:
            counts[name] += 1
    return counts


def convolution_share(counts: Counter[str]) -> float:
    """Return the share of the fp32 peak that the convolution's loads allow, at most 1.

    A multiprocessor issues 4 warp-wide FFMA per cycle, and its L1 cache (with shared memory)
    delivers 128 bytes per cycle, so that loading 16 bytes for each of 32 threads takes 4 cycles.
    """
    products = counts["FFMA"] / 4
    loads = sum(
        cycles * counts[f"{name}.{width}"]
        for name in ("LDG", "LDS")
        for width, cycles in (("128", 4), ("64", 2), ("32", 1), ("U16", 1))
    )
    return min(1.0, products / loads)


def computed_cells(lengths: Lengths, positions: int) -> float:
    """Return the computed cells per valid cell for programs of `positions` source positions."""
    source, target = lengths[:, 0] + 1, lengths[:, 1] + 1
    strips = -(-source // positions) * positions
    return float((strips * target).sum() / (source * target).sum())


@dataclasses.dataclass(frozen=True)
class Passes:
    """Memory traffic per block outside products and convolutions, in grids.

    A grid is 256 bf16 features per cell, read or written once.
    """

    name: str
    residual: int
    """For the two residual sums of a block and their dropout, forward and backward."""
    cumulative: int
    """For the sum of the blocks' states, forward and backward."""
    gradients: int
    """For sums of gradients of tensors that several layers read."""
    biases: int
    """For the gradients of biases, if computed in a separate pass."""


PASSES = (
    # Each residual sum reads two grids and writes one, in both directions. A float32 grid counts
    # twice: the sum of states is read and written, and its gradient was converted for each state.
    Passes("one strip, separate passes", 12, 5 + 6, 6, 6),
    Passes("two strips, rectifier and bias together", 12, 5 + 3, 6, 2),
    # Backward, one residual sum reads the gradients of two readers and one those of three. A pass
    # adds 4 of 15 states: 15 are read, and the sum is written and read three times.
    Passes("as they are", 6 + 4 + 5, 2, 0, 2),
)


def roofline(gpu: str, cells: float, share: float, around: Passes) -> Row:
    """Return the milliseconds of one update of `cells` valid cells, by part.

    `share` is the share of the fp32 peak that the convolution reaches on valid cells.
    """
    bf16, fp32, memory = GPUS[gpu]
    passes = 1000 * cells * DEPTH / (memory * BANDWIDTH_SHARE)
    products = 0.0
    for inputs, outputs in ((SIZE, SIZE), (SIZE, WIDE), (WIDE, SIZE)):
        work = 1000 * cells * DEPTH * 2 * inputs * outputs / (bf16 * GEMM_SHARE)
        # Forward, and the gradients of input and weight.
        products += 3 * max(work, passes * BYTES * (inputs + outputs))
    grid = BYTES * SIZE * passes
    both_ways = 2 * 1000 * cells * DEPTH * 2 * ROWS * COLUMNS * SIZE
    parts = {
        "products": products,
        "convolution, both ways": both_ways / (fp32 * share),
        "its weight gradient": GRADIENT_MS * cells / 1e5,
        "residual and dropout": around.residual * grid,
        "cumulative sum": around.cumulative * grid,
        "rectifier, backward": 3 * WIDE / SIZE * grid,
        "biases": around.biases * grid,
        "sums of gradients": around.gradients * grid,
    }
    return {"gpu": gpu, "cells": round(cells), **parts, "sum, ms": sum(parts.values())}


def measure(lengths_file: Path | None) -> dict[str, Any]:
    """Compile all kernels and compute the rooflines."""
    compiled, rows = {}, []
    for kernel in kernels():
        for capability in CAPABILITIES:
            code = compile_ahead(kernel, capability)
            compiled[kernel.name, capability] = code
            counts = sorted(code.instructions.items())
            loads = {name: number for name, number in counts if name.startswith("LD")}
            rows.append({
                "kernel": kernel.name, "capability": f"{capability / 10:.1f}",
                "registers": code.registers,
                "spilled bytes": code.spilled, "shared bytes": code.shared,
                "FFMA": code.instructions["FFMA"], "loads": _text(loads),
            })  # fmt: skip
    lengths, origin = training_lengths(lengths_file)
    batches = settings_of("pervasive", Conditions()).batches
    cells = epoch_of(lengths, batches).cells_per_batch
    from nmtgrid.layers.kernels.grid_conv_triton import PARTS, TILE

    share = convolution_share(compiled["convolution, forward", 90].instructions)
    share /= computed_cells(lengths, PARTS * TILE["BLOCK_S"])
    former = FORMER_SHARE / computed_cells(lengths, 16)
    lines = [
        {"kernels": around.name,
         **roofline(gpu, cells, share if number else former, around)}
        for gpu in GPUS
        for number, around in enumerate(PASSES)
    ]  # fmt: skip
    return section(
        {"lengths": origin, "cells of an update": f"{cells:,.0f}",
         "share of the fp32 peak": f"{share:.2f}, formerly {former:.2f}"},
        {"Compiled ahead of time": rows, "One update on paper, milliseconds": lines},
        [
            "Nothing on this page was measured on a GPU. Assumed: products reach "
            f"{GEMM_SHARE:.0%} of the bf16 peak and passes {BANDWIDTH_SHARE:.0%} of the bandwidth; "
            "the convolution is bound by its loads, cells computed beyond a sentence's end "
            f"included; its weight gradient takes {GRADIENT_MS} ms for 100,000 cells.",
            "`one strip` is the former convolution: 264 FFMA and 286 cycles of loads a row, strips "
            "of 16 positions.",
        ],
    )  # fmt: skip


def _text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def main() -> None:
    """Measure, print, and store as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", type=Path, help="source and target length of each pair")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    report("gpu-code", measure(options.lengths), options.out)


if __name__ == "__main__":
    main()
