"""Whether the Triton kernels work on this machine: tried once, by compiling and running one."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from nmtgrid.base import console
from nmtgrid.base.devices import is_out_of_memory


def uses_triton(x: Tensor) -> bool:
    """Return whether the Triton kernels apply to `x`: on a GPU, and not float64."""
    return x.device.type == "cuda" and x.dtype != torch.float64 and has_triton()


@functools.cache
def has_triton() -> bool:
    """Return whether Triton compiles for this machine's GPU; if not, warn once.

    Out-of-memory errors are raised, since they are not Triton's and may pass: the next call tries
    again.
    """
    try:
        _try_kernel()
    # Triton raises errors of any type for a missing compiler, header or library.
    except Exception as fault:
        if is_out_of_memory(fault):
            raise
        why = str(fault).strip().partition("\n")[0] or type(fault).__name__
        console.warn(
            f"triton: its kernels cannot be compiled here ({why}); slower ones of torch are used."
        )
        return False
    return True


def _try_kernel() -> None:
    # Imported here: CPU builds of torch come without Triton.
    from nmtgrid.layers.kernels.dropout_triton import TritonResidual

    ones = torch.ones(1, device="cuda")
    TritonResidual.apply(ones, ones, 0.0, 0.5)  # type: ignore[no-untyped-call]
