"""Token embeddings with the options of published systems, and position vectors, Eq. (2.39)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.static_cache import Position, StaticPosition

Positions = Literal["none", "sinusoidal", "sinusoidal-halves", "sinusoidal-marian", "learned"]

LARGEST_TABLE = 4096
"""Maximum number of sinusoidal positions in the cached table; others are computed at each call."""


class Embedding(nn.Module):
    """Token vectors, optionally scaled by sqrt(d) and summed with positions.

    Positions are sinusoidal, as printed in (2.39) or as in other toolkits, or `max_positions`
    learned vectors, the last of which is used for all later positions. The padding type's row is
    initialised to zero. Dropout applies to token vectors, so that a feature is dropped in a whole
    row or column of the grid. With an `alias` (first, second) the first id has the vector of the
    second.
    """

    vector_parameters = ("weight", "position_weight")

    def __init__(
        self,
        vocabulary_size: int,
        size: int,
        *,
        positions: Positions,
        scale: bool,
        dropout_rate: float,
        padding: int,
        max_positions: int = 1024,
        alias: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary_size, size))
        self.position_weight = (
            nn.Parameter(torch.empty(max_positions, size)) if positions == "learned" else None
        )
        self.size, self.positions, self.padding = size, positions, padding
        self.scale = math.sqrt(size) if scale else 1.0
        self.dropout_rate, self.alias = dropout_rate, alias
        self._table: Tensor | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw N(0, 1/d) vectors, the padding row zero."""
        nn.init.normal_(self.weight, std=self.size**-0.5)
        if self.position_weight is not None:
            nn.init.normal_(self.position_weight, std=self.size**-0.5)
        # Zeroed after the draw, so that the other rows do not depend on the padding id.
        with torch.no_grad():
            self.weight[self.padding].zero_()

    def forward(self, tokens: Tensor, first_position: Position = 0) -> Tensor:
        """Return [..., L, d] for tokens [..., L] at positions from `first_position` on."""
        vectors = self._vectors(tokens)
        if self.positions == "none":
            vectors = vectors * self.scale
        else:
            positions = self._position_vectors(first_position, tokens.shape[-1], vectors)
            vectors = torch.add(positions, vectors, alpha=self.scale)
        return dropout(vectors, self.dropout_rate, self.training)

    def at(self, tokens: Tensor, positions: Tensor, last: int) -> Tensor:
        """Return [R, d] for tokens [R] at `positions` [R], none beyond `last`; without dropout."""
        vectors = self._vectors(tokens)
        if self.positions == "none":
            return vectors * self.scale
        table = self._position_vectors(0, last + 1, vectors)
        return torch.add(table.index_select(0, positions), vectors, alpha=self.scale)

    def _vectors(self, tokens: Tensor) -> Tensor:
        # The alias costs a pass over ids only, not over vectors, and shares gradients too.
        if self.alias is not None:
            tokens = tokens.masked_fill(tokens == self.alias[0], self.alias[1])
        return nn.functional.embedding(tokens, self.weight, padding_idx=self.padding)

    def _position_vectors(self, first: Position, count: int, like: Tensor) -> Tensor:
        if self.position_weight is not None:
            positions = _positions(first, count, like).clamp_(max=len(self.position_weight) - 1)
            return nn.functional.embedding(positions, self.position_weight)
        waves = WAVES[self.positions]
        # A step recorded as a CUDA graph cannot slice the table at a position that changes.
        if isinstance(first, StaticPosition) or first + count > LARGEST_TABLE:
            return waves(first, count, like)
        last, table = first + count, self._table
        if table is not None and (table.dtype, table.device) != (like.dtype, like.device):
            table = None
        if table is None or len(table) < last:
            # Sizes are powers of two, so that longer sentences rarely need a new table.
            table = self._table = waves(0, max(128, 1 << (last - 1).bit_length()), like)
        return table[first:last]


def _positions(first: Position, count: int, like: Tensor) -> Tensor:
    start = first.index if isinstance(first, StaticPosition) else first
    return torch.arange(count, device=like.device) + start


def sinusoids(first: Position, count: int, like: Tensor) -> Tensor:
    """Return [count, d] sinusoidal position vectors from `first` on, Eq. (2.39)."""
    size = like.shape[-1]
    positions = _positions(first, count, like).float()
    pairs = torch.arange((size + 1) // 2, device=like.device, dtype=torch.float32)
    angles = positions[:, None] * torch.exp(pairs * (-2.0 * math.log(10000.0) / size))
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return waves[:, :size].to(like.dtype)


def halved_sinusoids(first: Position, count: int, like: Tensor) -> Tensor:
    """Return [count, d]: all sines, then all cosines, of wavelengths from 2 pi to 10000 * 2 pi.

    The form of tensor2tensor and fairseq, in which the first position has the number 2. For an odd
    d the last feature is zero.

    Departs: In Eq. (2.39) sines and cosines alternate, and the longest wavelength is a little
    shorter. This form is needed for fairseq models.
    """
    size = like.shape[-1]
    positions = (_positions(first, count, like) + 2).float()
    half = size // 2
    waves = torch.arange(half, device=like.device, dtype=torch.float32)
    angles = positions[:, None] * torch.exp(waves * (-math.log(10000.0) / max(half - 1, 1)))
    joined = torch.cat([angles.sin(), angles.cos()], dim=1)
    return nn.functional.pad(joined, (0, size - 2 * half)).to(like.dtype)


def marian_sinusoids(first: Position, count: int, like: Tensor) -> Tensor:
    """Return [count, d]: the sines of Eq. (2.39), then its cosines, as in Marian and transformers.

    Departs: In Eq. (2.39) sines and cosines alternate. This order is needed for Marian models.
    """
    size = like.shape[-1]
    # In double precision, as in transformers: at position 500 float32 is off by 5e-5.
    positions = _positions(first, count, like).double()
    pairs = torch.arange((size + 1) // 2, device=like.device, dtype=torch.float64)
    angles = positions[:, None] * torch.exp(pairs * (-2.0 * math.log(10000.0) / size))
    return torch.cat([angles.sin(), angles[:, : size // 2].cos()], dim=1).to(like.dtype)


WAVES = {
    "sinusoidal": sinusoids,
    "sinusoidal-halves": halved_sinusoids,
    "sinusoidal-marian": marian_sinusoids,
}
"""The sinusoidal positions by their names."""
