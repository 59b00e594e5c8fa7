"""Whether the Triton kernels can be used here: asked once, by compiling and running one."""

from __future__ import annotations

import functools

import torch

from nmtgrid.base import console
from nmtgrid.base.devices import is_out_of_memory


@functools.cache
def has_triton() -> bool:
    """Return whether Triton compiles for this machine's GPU; where it does not, say so once.

    Raises what tells of too little memory, which says nothing of Triton and may pass: the next call
    asks again.
    """
    try:
        _try_kernel()
    except Exception as fault:  # a missing compiler, header or library: Triton raises anything
        if is_out_of_memory(fault):
            raise
        why = str(fault).strip().partition("\n")[0] or type(fault).__name__
        console.warn(
            f"triton: its kernels cannot be compiled here ({why}); slower ones of torch are used."
        )
        return False
    return True


def _try_kernel() -> None:
    # Imported here: builds of torch for a CPU alone come without Triton.
    from nmtgrid.layers.kernels.dropout_triton import TritonResidual

    one = torch.ones(1, device="cuda")
    TritonResidual.apply(one, one, 0.0, 0.5)  # type: ignore[no-untyped-call]
