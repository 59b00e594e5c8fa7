"""What an architecture can do, asked instead of its name."""

from __future__ import annotations

import dataclasses
from typing import Literal

Halting = Literal["none", "sequence", "multinomial", "geometric"]
"""Networks that say when to exit: Eq. (5.11), (5.19), (5.20)."""


@dataclasses.dataclass(frozen=True)
class Traits:
    """What an architecture can do, asked instead of its name."""

    prefix_safe: bool = False
    """The model serves limited reads, each equal to a truncated source: uni-directional models, and
    bi-directional ones that encode every prefix anew. The others refuse reads."""
    every_cell: bool = False
    """Predictions exist at every cell of the grid, whatever path led there."""
    path_dependent: bool = False
    """A prediction depends on how much had been read at each earlier position too."""
    reencodes: bool = False
    """A READ changes what was encoded before it, so every limited read costs an encoding."""
    num_exits: int = 1
    """Number of depths at which a prediction can be made."""
    halting: Halting = "none"
    """The network that says at which of them."""
    hides_source_end: bool = False
    """The model is not shown where its source ends, so it cannot know when to end (appendix C)."""
    source_receptive_field: int | None = None
    """Source tokens that one feature sees, or None for all."""
    target_receptive_field: int | None = None
    """Target tokens that one feature sees, itself included, or None for all."""
    reads: bool = False
    """A reader says at every cell of the grid how likely it is to read on."""
    aligns: bool = False
    """Alignments come as a by-product of decoding."""
    batch_statistics: bool = False
    """In training mode a prediction depends on the other sentences of its batch and on later target
    tokens, through normalisation statistics; in evaluation mode it does not."""
    source_features: int = 0
    """Where the source is a picture: the features F of its regions [B, S, F], which have no order
    and no end symbol; 0 for text."""
