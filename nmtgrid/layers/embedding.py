"""Token embeddings with the options of the published systems."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.layers.kernels.dropout import dropout

Positions = Literal["none", "sinusoidal"]


class Embedding(nn.Module):
    """Token vectors, optionally scaled by sqrt(d) and summed with sinusoidal positions (2.39).

    The padding type's row is zero at the start. One dropout mask covers a token's vector, so a
    whole row or column of the grid is dropped alike.
    """

    def __init__(
        self,
        vocabulary_size: int,
        size: int,
        *,
        positions: Positions,
        scale: bool,
        dropout_rate: float,
        padding: int,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary_size, size))
        self.size, self.positions, self.padding = size, positions, padding
        self.scale = math.sqrt(size) if scale else 1.0
        self.dropout_rate = dropout_rate
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw N(0, 1/d) vectors, the padding row zero."""
        nn.init.normal_(self.weight, std=self.size**-0.5)
        with torch.no_grad():
            self.weight[self.padding].zero_()

    def forward(self, tokens: Tensor, first_position: int = 0) -> Tensor:
        """Return [..., L, d] for tokens [..., L] that stand at `first_position` and after."""
        vectors = nn.functional.embedding(tokens, self.weight, padding_idx=self.padding)
        vectors = vectors * self.scale
        if self.positions == "sinusoidal":
            vectors = vectors + sinusoids(first_position, tokens.shape[-1], vectors)
        return dropout(vectors, self.dropout_rate, self.training)


def sinusoids(first: int, count: int, like: Tensor) -> Tensor:
    """Return [count, d] sinusoidal position vectors from `first` on, Eq. (2.39)."""
    size = like.shape[-1]
    places = torch.arange(first, first + count, device=like.device, dtype=torch.float32)
    pairs = torch.arange((size + 1) // 2, device=like.device, dtype=torch.float32)
    angles = places[:, None] * torch.exp(pairs * (-2.0 * math.log(10000.0) / size))
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return waves[:, :size].to(like.dtype)
