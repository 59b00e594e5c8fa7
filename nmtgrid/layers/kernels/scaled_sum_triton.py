# Triton's language has no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The scaled sum of many tensors on a GPU, in Triton: four in one pass.

Imported only where Triton is installed, by scaled_sum.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmtgrid.layers.kernels.triton_options import OPTIONS

BLOCK = 1024
"""Elements per program."""
_AT_ONCE = 4


@triton.jit
def _sum_kernel(
    first, second, third, fourth, total, out, count, scale,
    TERMS: tl.constexpr, BEGINS: tl.constexpr, ENDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """total (float32; 0 where it BEGINS) += up to four terms; where it ENDS, out = total * scale.

    Terms are added one after the other, so that the sum does not depend on how many are in a pass.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = index < count
    value = tl.load(first + index, mask=is_inside, other=0.0).to(tl.float32)
    if not BEGINS:
        value = tl.load(total + index, mask=is_inside, other=0.0) + value
    if TERMS > 1:
        value += tl.load(second + index, mask=is_inside, other=0.0).to(tl.float32)
    if TERMS > 2:
        value += tl.load(third + index, mask=is_inside, other=0.0).to(tl.float32)
    if TERMS > 3:
        value += tl.load(fourth + index, mask=is_inside, other=0.0).to(tl.float32)
    if ENDS:
        tl.store(out + index, (value * scale).to(out.dtype.element_ty), mask=is_inside)
    else:
        tl.store(total + index, value, mask=is_inside)


def scaled_sum(terms: Sequence[Tensor], scale: float) -> Tensor:
    """Return `scale` times the sum of `terms` of one shape and type, summed in float32."""
    terms = [term.contiguous() for term in terms]
    out = torch.empty_like(terms[0])
    chunks = [terms[first : first + _AT_ONCE] for first in range(0, len(terms), _AT_ONCE)]
    # Neither read nor written if one pass is enough.
    total = out if len(chunks) == 1 else torch.empty_like(out, dtype=torch.float32)
    count = out.numel()
    with torch.cuda.device_of(out):
        for number, chunk in enumerate(chunks if count else ()):
            pointers = [*chunk, *chunk[:1] * (_AT_ONCE - len(chunk))]
            _sum_kernel[(triton.cdiv(count, BLOCK),)](
                *pointers, total, out, count, scale,
                len(chunk), number == 0, number == len(chunks) - 1, BLOCK, **OPTIONS,
            )  # fmt: skip
    return out
