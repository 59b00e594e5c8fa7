"""What a Bi-LSTM model is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.models.config_checks import no_rates, too_large, too_small
from nmtgrid.models.first_symbol import FirstSymbol

LARGEST_DEPTH = 100
"""A bound against slips: far above what any text has tried."""


@dataclasses.dataclass(frozen=True)
class BiLSTMConfig:
    """What a Bi-LSTM model is built from; the defaults are the thesis' baseline (section 3.3.1)."""

    encoder_depth: int = 2
    """Layers of the encoder."""
    decoder_depth: int = 2
    """Layers of the decoder."""
    size: int = 256
    """Features of each direction of the encoder, of which a unidirectional one has one."""
    encoder: Literal["bidirectional", "unidirectional"] = "bidirectional"
    """Whether the encoder reads backwards too."""
    decoder_size: int | None = None
    """Features of the decoder; none: `size`."""
    embedding_size: int | None = None
    """Features of an embedding; none: `size`."""
    input_feeding: bool = True
    """Whether the decoder reads the output that predicted the last token, beside that token."""
    initial: Literal["mapped", "zero"] = "mapped"
    """Where the decoder's first states come from: maps of the encoder's last ones, shared by all
    layers, or zero."""
    output_bias: bool = False
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Matrices that are one: none; the target embeddings and the classifier; or, of a joint
    vocabulary, the source embeddings too."""
    first_symbol: FirstSymbol = "begin"
    """What the target begins with: `<s>`, or `</s>` as in fairseq."""
    dropout: float = 0.3
    """On what the LSTM of each layer puts out."""
    embedding_dropout: float = 0.3
    """On embeddings."""
    output_dropout: float = 0.3
    """On what the classifier reads."""

    @property
    def both_ways(self) -> bool:
        """Whether the encoder reads backwards too."""
        return self.encoder == "bidirectional"

    @property
    def encoded(self) -> int:
        """Features of a source state."""
        return 2 * self.size if self.both_ways else self.size

    @property
    def embedded(self) -> int:
        """Features of an embedding."""
        return self.embedding_size or self.size

    @property
    def decoded(self) -> int:
        """Features of a decoder layer."""
        return self.decoder_size or self.size

    @property
    def classified(self) -> int:
        """Features of the output, which the classifier reads and which is fed back."""
        return self.decoded if self.tie == "none" else self.embedded

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        return [
            *too_small(
                self, "encoder_depth", "decoder_depth", "size", "decoder_size", "embedding_size"
            ),
            *too_large(self, LARGEST_DEPTH, "encoder_depth", "decoder_depth"),
            *no_rates(self, "dropout", "embedding_dropout", "output_dropout"),
        ]
