"""Masks whose names say what True means."""

from __future__ import annotations

import torch
from torch import Tensor


def is_token(lengths: Tensor, size: int) -> Tensor:
    """Return [B, size], True where a position is below the sentence's length [B]."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def is_padding(lengths: Tensor, size: int) -> Tensor:
    """Return [B, size], True at and after the sentence's length [B]."""
    return ~is_token(lengths, size)
