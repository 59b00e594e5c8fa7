"""Each fast kernel against its naive form.

A ratio is the speedup of the fast form. The grid convolution is also compared with the library's
convolution restricted to unmasked taps. On CUDA, the tiles of the Triton kernels are swept as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.store import Section, section
from benchmarks.timing import Clock, Conditions, Row, Workload, facts, run_in_process
from nmtgrid.layers.kernels.dropout import residual_dropout
from nmtgrid.layers.kernels.grid_conv import (
    grid_convolution,
    grid_convolution_step,
    prepare_step_weight,
)
from nmtgrid.layers.kernels.layout import GridLayout
from nmtgrid.layers.kernels.linear_loss import linear_cross_entropy

SIZE, KERNEL, TYPES = 256, 11, 6632
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def learning(forward: Callable[[], Tensor], leaves: list[Tensor], outer: Tensor) -> Workload:
    """Return the workload of computing a result and the gradients of `leaves`."""
    return lambda: torch.autograd.grad(forward(), leaves, outer)


def lay_out(device: torch.device, sentences: int) -> GridLayout:
    """Return a layout of sentences of 20 to 24 tokens, as in a bucket of similar lengths."""
    lengths = torch.randint(20, 25, (2, sentences), generator=torch.Generator().manual_seed(1))
    return GridLayout.make(lengths[0].to(device), lengths[1].to(device))


def naive_convolution(x: Tensor, weight: Tensor, is_cell: Tensor) -> Tensor:
    """Convolve [B, D, T, S] with the whole masked k x k filter: the straightforward form."""
    live = torch.ones_like(weight)
    live[KERNEL // 2 + 1 :] = 0
    taps = (weight * live).permute(2, 0, 1).unsqueeze(1).to(x.dtype)
    return F.conv2d(x * is_cell, taps, padding=KERNEL // 2, groups=x.shape[1])


def convolution(clock: Clock, name: str, sentences: int) -> Iterator[Row]:
    """Time the grid convolution (flat, unmasked taps only) against the padded, masked NCHW form."""
    layout = lay_out(clock.device, sentences)
    is_cell = layout.pad(torch.ones_like(layout.cells)[:, None])[..., 0].bool()[:, None]
    weight = torch.randn(KERNEL, KERNEL, SIZE, device=clock.device)
    flat = torch.randn(layout.cell_count, SIZE, device=clock.device).to(DTYPES[name])
    grid = layout.pad(flat).permute(0, 3, 1, 2).contiguous()
    learned, flat_leaf, grid_leaf = (x.clone().requires_grad_() for x in (weight, flat, grid))
    workloads: dict[str, Workload] = {
        "forward": lambda: grid_convolution(flat, weight, layout),
        "forward naive": lambda: naive_convolution(grid, weight, is_cell),
        "both ways": learning(
            lambda: grid_convolution(flat_leaf, learned, layout), [flat_leaf, learned], flat
        ),
        "both ways naive": learning(
            lambda: naive_convolution(grid_leaf, learned, is_cell), [grid_leaf, learned], grid
        ),
    }
    seconds = clock.best(workloads)
    work = 2e-9 * layout.cell_count * SIZE * KERNEL * (KERNEL // 2 + 1)
    yield compare("grid convolution", name, seconds, "forward", work)
    yield compare("grid convolution, both ways", name, seconds, "both ways", 3 * work)


def library_convolution(clock: Clock, name: str, sentences: int, order: torch.memory_format) -> Row:
    """Time the library's depthwise convolution of the unmasked taps, S = T = 24."""
    rows = KERNEL // 2 + 1
    x = torch.randn(sentences, SIZE, 24 + rows - 1, 24, device=clock.device).to(DTYPES[name])
    x = x.contiguous(memory_format=order).requires_grad_()
    taps = torch.randn(SIZE, 1, rows, KERNEL, device=clock.device).to(DTYPES[name])
    taps.requires_grad_()

    def forward() -> Tensor:
        return F.conv2d(x, taps, padding=(0, KERNEL // 2), groups=SIZE)

    outer = torch.randn_like(forward()).contiguous(memory_format=order)
    workloads = {"forward": forward, "both ways": learning(forward, [x, taps], outer)}
    seconds = clock.best(workloads)
    work = 2e-9 * sentences * 24 * 24 * SIZE * KERNEL * rows
    word = "channels last" if order == torch.channels_last else "channels first"
    return {
        "case": f"library convolution, {word}", "dtype": name, "ms": seconds["forward"] * 1e3,
        "gflops": work / seconds["forward"], "both_ways_ms": seconds["both ways"] * 1e3,
    }  # fmt: skip


def compare(case: str, dtype: str, seconds: dict[str, float], key: str, work: float) -> Row:
    """Return a row with both times, their ratio, and the GFLOP/s for `work` in GFLOP."""
    ours, naive = seconds[key], seconds[f"{key} naive"]
    row = {"case": case, "dtype": dtype, "ms": ours * 1e3, "naive_ms": naive * 1e3}
    return {**row, "ratio": naive / ours, **({"gflops": work / ours} if work else {})}


def loss(clock: Clock, name: str, count: int) -> Row:
    """Time the fused loss against logits of all sites at once, including gradients."""
    weight = (0.06 * torch.randn(TYPES, SIZE, device=clock.device)).requires_grad_()
    bias = torch.zeros(TYPES, device=clock.device, requires_grad=True)
    targets = torch.randint(0, TYPES, (count,), device=clock.device)
    x = torch.randn(count, SIZE, device=clock.device).to(DTYPES[name]).requires_grad_()
    inputs, unit = (x, weight, bias, targets, None, 0.1), torch.ones((), device=clock.device)
    workloads = {
        "loss": learning(lambda: linear_cross_entropy(*inputs)[0], [x, weight, bias], unit),
        "loss naive": learning(lambda: naive_loss(*inputs[:4]), [x, weight, bias], unit),
    }
    work = 6e-9 * count * SIZE * TYPES
    return compare("linear cross-entropy", name, clock.best(workloads), "loss", work)


def naive_loss(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Return the smoothed loss from the logits of all sites; also compute the likelihood."""
    logits = F.linear(x, weight.to(x.dtype), bias.to(x.dtype)).float()
    F.cross_entropy(logits.detach(), targets)
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)


def residual(clock: Clock, name: str, count: int) -> Row:
    """Time dropout with a residual sum against the library's, including gradients."""
    drawn = [torch.randn(count, SIZE, device=clock.device).to(DTYPES[name]) for _ in range(3)]
    h, y, outer = drawn[0].requires_grad_(), drawn[1].requires_grad_(), drawn[2]
    workloads = {
        "residual": learning(lambda: residual_dropout(h, y, 0.2, 0.7, True), [h, y], outer),
        "residual naive": learning(lambda: (h + F.dropout(y, 0.2)) * 0.7, [h, y], outer),
    }
    return compare("residual dropout", name, clock.best(workloads), "residual", 0.0)


@torch.inference_mode()
def step(clock: Clock, name: str, rows: int) -> Row:
    """Time the convolution of one decoding step against convolving six rows to keep one."""
    live, width = KERNEL // 2 + 1, 24
    weight = torch.randn(KERNEL, KERNEL, SIZE, device=clock.device)
    window = torch.randn(rows, live, width, SIZE, device=clock.device).to(DTYPES[name])
    grid = window.permute(0, 3, 1, 2).contiguous()
    prepared = prepare_step_weight(weight, DTYPES[name])
    is_cell = torch.ones(rows, 1, live, width, dtype=torch.bool, device=clock.device)
    workloads: dict[str, Workload] = {
        "step": lambda: grid_convolution_step(window, prepared),
        "step naive": lambda: naive_convolution(grid, weight, is_cell),
    }
    work = 2e-9 * rows * width * SIZE * live * KERNEL
    return compare(f"decoding step, {rows} rows", name, clock.best(workloads), "step", work)


def tile(clock: Clock, sentences: int, shape: dict[str, int]) -> Row:
    """Time one tile of the Triton kernels: forward and weight gradient in bfloat16."""
    from nmtgrid.layers.kernels.grid_conv_triton import convolve_cells, weight_gradient

    layout = lay_out(clock.device, sentences)
    x = torch.randn(layout.cell_count, SIZE, device=clock.device).bfloat16()
    taps = torch.randn(KERNEL // 2 + 1, KERNEL, SIZE, device=clock.device)
    rows, left = (taps.shape[0], taps.shape[1]), KERNEL // 2
    workloads: dict[str, Workload] = {
        "forward": lambda: convolve_cells(x, taps, layout, left, tile=shape),
        "weight": lambda: weight_gradient(x, x, layout, rows, left, tile=shape),
    }
    seconds = clock.best(workloads)
    case = "tile {BLOCK_S} x {BLOCK_D}, {num_warps} warps".format(**shape)
    return {"case": case, "ms": seconds["forward"] * 1e3, "weight_ms": seconds["weight"] * 1e3}


def list_rows(conditions: Conditions) -> list[Row]:
    """Return all rows."""
    conditions.begin()
    quick, large = conditions.quick, conditions.is_large
    clock = Clock(conditions.device, 2 if quick else 5)
    rows: list[Row] = []
    sentences = 2 if quick else 284 if large else 16
    count = 256 if quick else 65_536 if large else 4096
    for name in DTYPES:
        rows += convolution(clock, name, sentences)
        for order in (torch.channels_last, torch.contiguous_format):
            rows.append(library_convolution(clock, name, sentences, order))
        rows += [loss(clock, name, count), residual(clock, name, count)]
        rows += [step(clock, name, 1), step(clock, name, 512 if large else 16)]
    for height, width, warps in itertools.product((8, 16, 32), (32, 64), (2, 4, 8)):
        if large:
            shape = {"BLOCK_S": height, "BLOCK_D": width, "num_warps": warps}
            rows.append(tile(clock, sentences, shape))
    return rows


def measure(conditions: Conditions) -> Section:
    """Measure the kernels in both precisions, regardless of the conditions."""
    rows = run_in_process(list_rows, conditions)
    tiles = [row for row in rows if row["case"].startswith("tile")]
    tables = {"Kernels": [row for row in rows if row not in tiles]}
    if tiles:
        tables["Tiles of the Triton kernels, bf16"] = tiles
    note = (
        "`ratio` is `naive_ms` divided by `ms`: above 1 the kernel is faster than its naive form."
    )
    return section(facts(conditions.device), tables, [note])
