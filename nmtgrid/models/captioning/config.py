"""What models that caption pictures are built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.models.config_checks import no_rates, too_large, too_small

LARGEST_DEPTH = 100


@dataclasses.dataclass(frozen=True)
class CaptionConfig:
    """What both have."""

    size: int = 512
    """Features of a state."""
    embedding_size: int | None = None
    """Features of an embedding; none: `size`."""
    tie: Literal["none", "target"] = "none"
    """Matrices that are one: none, or the embeddings and the classifier, through a map where their
    sizes differ."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    embedding_dropout: float = 0.0
    """On embeddings."""
    output_dropout: float = 0.3
    """On what the classifier reads."""

    @property
    def embedded(self) -> int:
        """Features of an embedding."""
        return self.embedding_size or self.size

    @property
    def classified(self) -> int:
        """Features that the classifier reads."""
        return self.size if self.tie == "none" else self.embedded

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        return [
            *too_small(self, "size", "embedding_size"),
            *no_rates(self, "embedding_dropout", "output_dropout"),
        ]


@dataclasses.dataclass(frozen=True)
class CaptionLSTMConfig(CaptionConfig):
    """An LSTM that sees the picture once (Vinyals et al., 2015).

    `picture` says how: as the first input, or as the first states.
    """

    depth: int = 1
    """Layers of the LSTM."""
    picture: Literal["input", "state"] = "input"
    """How it is seen: as the first input, or as the first states."""
    dropout: float = 0.0
    """Between layers."""

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        return [
            *super().faults(),
            *too_small(self, "depth"),
            *too_large(self, LARGEST_DEPTH, "depth"),
            *no_rates(self, "dropout"),
        ]


@dataclasses.dataclass(frozen=True)
class CaptionTopDownConfig(CaptionConfig):
    """Two LSTMs with attention over regions between them (Anderson et al., 2018)."""

    attention_size: int | None = None
    """Features in which regions are compared with the state."""

    @property
    def compared(self) -> int:
        """Features in which regions are compared with the state."""
        return self.attention_size or self.size

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        return [*super().faults(), *too_small(self, "attention_size")]
