"""What a convolution-to-recurrent model is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.phrase_convolution import Convolution
from nmtgrid.models.bounds import no_rates, too_large, too_small

LARGEST_DEPTH = 30
"""A bound against slips: the kernels of so many layers span 466 words."""


@dataclasses.dataclass(frozen=True)
class ConvRNNConfig:
    """What a convolution-to-recurrent model is built from.

    encoder_depth is the number of convolutions on each side, whose kernels are 2, 3, 4, ...: of a
    row of at most 1 + (1 + 2 + 3 + ...) words one phrase is left, which few layers should reach;
    merge is the number of places that the last kernel L tells apart (form "sentence").
    """

    form: Literal["phrase", "sentence"] = "phrase"
    convolution: Convolution = "full"
    cell: Literal["plain", "lstm"] = "plain"
    encoder_depth: int = 2
    merge: int = 4
    size: int = 256
    embedding_size: int | None = None
    tie: Literal["none", "target", "all"] = "target"
    dropout: float = 0.2
    embedding_dropout: float = 0.2
    output_dropout: float = 0.2

    @property
    def embedded(self) -> int:
        """Features of an embedding."""
        return self.embedding_size or self.size

    @property
    def lost(self) -> int:
        """Positions that all convolutions together merge away."""
        return self.encoder_depth * (self.encoder_depth + 1) // 2

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        return [
            *too_small(self, "encoder_depth", "merge", "size", "embedding_size"),
            *too_large(self, LARGEST_DEPTH, "encoder_depth"),
            *no_rates(self, "dropout", "embedding_dropout", "output_dropout"),
        ]
