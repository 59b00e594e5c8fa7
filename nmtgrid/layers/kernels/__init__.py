"""Kernels: operations with backward passes of their own; benchmarks/kernels.py measures most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Return `function.apply(*inputs)`, for which torch has no types."""
    result: Tensor = function.apply(*inputs)
    return result
