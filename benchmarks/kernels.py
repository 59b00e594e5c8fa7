"""Each fast kernel against its naive form, and against the machine's ceiling.

    python -m benchmarks.kernels [--threads 1] [--device cpu] [--quick] [--out FILE.json]

Both sides run in turn in one process and the best of several runs counts: seconds of processor
time for one CPU thread, of wall clock otherwise. Ratios above 1 say how much faster the fast form
is. JSON goes to standard output (and FILE), a table to standard error. On CUDA the tiles of the
Triton kernels are swept as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import Clock, Deed, Row, facts
from nmtgrid.base import console
from nmtgrid.layers.kernels.dropout import residual_dropout
from nmtgrid.layers.kernels.grid_conv import (
    grid_convolution,
    grid_convolution_step,
    prepare_step_weight,
)
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.kernels.linear_loss import linear_cross_entropy, plain_linear_cross_entropy

SIZE, WIDE, KERNEL, TYPES = 256, 1024, 11, 6632
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def learning(forward: Callable[[], Tensor], leaves: list[Tensor], outer: Tensor) -> Deed:
    """Return the deed of computing a result and the gradients of `leaves`."""
    return lambda: torch.autograd.grad(forward(), leaves, outer)


def ceiling(clock: Clock, name: str, inputs: int, outputs: int) -> Row:
    """A matrix product of one of the model's own shapes."""
    x = torch.randn(9216, inputs, device=clock.device).to(DTYPES[name])
    weight = torch.randn(outputs, inputs, device=clock.device).to(DTYPES[name])
    seconds = clock.best({"linear": lambda: F.linear(x, weight)})["linear"]
    rate = 2e-9 * 9216 * inputs * outputs / seconds
    return {"case": f"linear {inputs} to {outputs}", "dtype": name, "gflops": rate}


def lay_out(device: torch.device, sentences: int) -> GridLayout:
    """Return a layout of sentences of 20 to 24 tokens, as buckets of both lengths hold them."""
    lengths = torch.randint(20, 25, (2, sentences), generator=torch.Generator().manual_seed(1))
    return GridLayout.make(lengths[0].to(device), lengths[1].to(device))


def naive_convolution(x: Tensor, weight: Tensor, is_cell: Tensor) -> Tensor:
    """Convolve [B, D, T, S] with the whole k x k filter masked, as one would write it first."""
    live = torch.ones_like(weight)
    live[KERNEL // 2 + 1 :] = 0
    taps = (weight * live).permute(2, 0, 1).unsqueeze(1).to(x.dtype)
    return F.conv2d(x * is_cell, taps, padding=KERNEL // 2, groups=x.shape[1])


def convolution(clock: Clock, name: str, sentences: int) -> Iterator[Row]:
    """The grid convolution, flat and live taps only, against padded, masked and NCHW."""
    layout = lay_out(clock.device, sentences)
    is_cell = layout.is_cell[:, None]
    weight = torch.randn(KERNEL, KERNEL, SIZE, device=clock.device)
    flat = torch.randn(layout.cell_count, SIZE, device=clock.device).to(DTYPES[name])
    grid = layout.pad(flat).permute(0, 3, 1, 2).contiguous()
    learned, flat_leaf, grid_leaf = (x.clone().requires_grad_() for x in (weight, flat, grid))
    deeds: dict[str, Deed] = {
        "forward": lambda: grid_convolution(flat, weight, layout),
        "forward naive": lambda: naive_convolution(grid, weight, is_cell),
        "both ways": learning(
            lambda: grid_convolution(flat_leaf, learned, layout), [flat_leaf, learned], flat
        ),
        "both ways naive": learning(
            lambda: naive_convolution(grid_leaf, learned, is_cell), [grid_leaf, learned], grid
        ),
    }
    seconds = clock.best(deeds)
    work = 2e-9 * layout.cell_count * SIZE * KERNEL * (KERNEL // 2 + 1)
    yield compare("grid convolution", name, seconds, "forward", work)
    yield compare("grid convolution, both ways", name, seconds, "both ways", 3 * work)


def compare(case: str, dtype: str, seconds: dict[str, float], key: str, work: float) -> Row:
    """Return one row of times, their ratio, and the rate for `work` in GFLOP."""
    ours, naive = seconds[key], seconds[f"{key} naive"]
    row = {"case": case, "dtype": dtype, "ms": ours * 1e3, "naive_ms": naive * 1e3}
    return {**row, "ratio": naive / ours, **({"gflops": work / ours} if work else {})}


def loss(clock: Clock, name: str, count: int) -> Row:
    """The fused loss against logits of all sites at once, gradients included."""
    weight = (0.06 * torch.randn(TYPES, SIZE, device=clock.device)).requires_grad_()
    bias = torch.zeros(TYPES, device=clock.device, requires_grad=True)
    targets = torch.randint(0, TYPES, (count,), device=clock.device)
    x = torch.randn(count, SIZE, device=clock.device).to(DTYPES[name]).requires_grad_()
    given, one = (x, weight, bias, targets, None, 0.1), torch.ones((), device=clock.device)
    deeds = {
        "loss": learning(lambda: linear_cross_entropy(*given)[0], [x, weight, bias], one),
        "loss naive": learning(
            lambda: plain_linear_cross_entropy(*given)[0], [x, weight, bias], one
        ),
    }
    work = 6e-9 * count * SIZE * TYPES
    return compare("linear cross-entropy", name, clock.best(deeds), "loss", work)


def residual(clock: Clock, name: str, count: int) -> Row:
    """Dropout with a residual sum against the library's, gradients included."""
    drawn = [torch.randn(count, SIZE, device=clock.device).to(DTYPES[name]) for _ in range(3)]
    h, y, outer = drawn[0].requires_grad_(), drawn[1].requires_grad_(), drawn[2]
    deeds = {
        "residual": learning(lambda: residual_dropout(h, y, 0.2, 0.7, True), [h, y], outer),
        "residual naive": learning(lambda: (h + F.dropout(y, 0.2)) * 0.7, [h, y], outer),
    }
    return compare("residual dropout", name, clock.best(deeds), "residual", 0.0)


@torch.inference_mode()
def step(clock: Clock, name: str, rows: int) -> Row:
    """One decoding step's convolution against six rows convolved to keep one."""
    live, width = KERNEL // 2 + 1, 24
    weight = torch.randn(KERNEL, KERNEL, SIZE, device=clock.device)
    window = torch.randn(rows, live, width, SIZE, device=clock.device).to(DTYPES[name])
    grid = window.permute(0, 3, 1, 2).contiguous()
    prepared = prepare_step_weight(weight, DTYPES[name])
    is_cell = torch.ones(rows, 1, live, width, dtype=torch.bool, device=clock.device)
    deeds: dict[str, Deed] = {
        "step": lambda: grid_convolution_step(window, prepared),
        "step naive": lambda: naive_convolution(grid, weight, is_cell),
    }
    work = 2e-9 * rows * width * SIZE * live * KERNEL
    return compare(f"decoding step, {rows} rows", name, clock.best(deeds), "step", work)


def tile(clock: Clock, sentences: int, shape: dict[str, int]) -> Row:
    """One tile of the Triton kernels: forward and weight gradient in bfloat16."""
    from nmtgrid.layers.kernels.grid_conv_triton import convolve_cells, weight_gradient

    layout = lay_out(clock.device, sentences)
    x = torch.randn(layout.cell_count, SIZE, device=clock.device).bfloat16()
    taps = torch.randn(KERNEL // 2 + 1, KERNEL, SIZE, device=clock.device)
    rows, left = (taps.shape[0], taps.shape[1]), KERNEL // 2
    deeds: dict[str, Deed] = {
        "forward": lambda: convolve_cells(x, taps, layout, left, tile=shape),
        "weight": lambda: weight_gradient(x, x, layout, rows, left, tile=shape),
    }
    seconds = clock.best(deeds)
    case = "tile {BLOCK_S} x {BLOCK_D}, {num_warps} warps".format(**shape)
    return {"case": case, "ms": seconds["forward"] * 1e3, "weight_ms": seconds["weight"] * 1e3}


def measure(device: str, quick: bool) -> Iterator[Row]:
    """Yield all rows for one device."""
    clock = Clock(device, 2 if quick else 5)
    large = device == "cuda"
    sentences = 2 if quick else 284 if large else 16
    count = 256 if quick else 65_536 if large else 4096
    for name in DTYPES:
        for inputs, outputs in ((SIZE, SIZE), (SIZE, WIDE), (WIDE, SIZE)):
            yield ceiling(clock, name, inputs, outputs)
        yield from convolution(clock, name, sentences)
        yield loss(clock, name, count)
        yield residual(clock, name, count)
        yield step(clock, name, 1)
        yield step(clock, name, 512 if large else 16)
    for height, width, warps in itertools.product((8, 16, 32), (32, 64), (2, 4, 8)):
        if large:
            shape = {"BLOCK_S": height, "BLOCK_D": width, "num_warps": warps}
            yield tile(clock, sentences, shape)


def main() -> None:
    """Measure, print and perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(1)
    rows = list(measure(asked.device, asked.quick))
    report = {"facts": facts(asked.device), "rows": rows}
    headings = ["case", "dtype", "ms", "naive_ms", "ratio", "gflops", "weight_ms"]
    shown = [[row.get(heading, "") for heading in headings] for row in rows]
    console.table("Kernels", headings, shown)
    text = json.dumps(report, indent=1)
    console.output.print(text, markup=False)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
