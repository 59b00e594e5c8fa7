"""What a convolution-to-recurrent model is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.phrase_convolution import Convolution
from nmtgrid.models.config_checks import no_rates, too_large, too_small

LARGEST_DEPTH = 30
"""A bound against slips: the kernels of so many layers span 466 words."""


@dataclasses.dataclass(frozen=True)
class ConvRNNConfig:
    """What a convolution-to-recurrent model is built from."""

    form: Literal["phrase", "sentence"] = "phrase"
    """`sentence` makes one vector of the source (figure 7.1), `phrase` several, which a transfer
    layer maps (figure 7.2)."""
    convolution: Convolution = "full"
    """One matrix over all features of a window, or a weight for each feature and place."""
    cell: Literal["plain", "lstm"] = "plain"
    """Of the recurrent network; plain as in 2013."""
    encoder_depth: int = 2
    """Convolutions on each side, whose kernels are 2, 3, 4, ...: of a row of at most 1 + (1 + 2 + 3
    + ...) words one phrase is left, which few layers should reach."""
    merge: int = 4
    """Places that the last kernel L tells apart (form sentence)."""
    size: int = 256
    """Features of a state."""
    embedding_size: int | None = None
    """Features of an embedding; none: `size`."""
    tie: Literal["none", "target", "all"] = "target"
    """Matrices that are one: none; the target embeddings and the classifier; or, of a joint
    vocabulary, the source embeddings too."""
    dropout: float = 0.2
    """Behind each convolution."""
    embedding_dropout: float = 0.2
    """On embeddings."""
    output_dropout: float = 0.2
    """On what the classifier reads."""

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
