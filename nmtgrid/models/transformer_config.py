"""What a Transformer is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.blocks import BlockPlan, Norm
from nmtgrid.models.bounds import LARGEST_DEPTH, no_rates, too_large, too_small

Encoder = Literal["bidirectional", "unidirectional", "window"]
SourceMarker = Literal["end", "none", "begin", "add-zero"]

_SIZES = (
    "encoder_depth", "decoder_depth", "size", "feed_forward_size", "heads", "max_positions",
    "window",
)  # fmt: skip
_RATES = (
    "dropout", "embedding_dropout", "attention_dropout", "activation_dropout",
    "transparent_dropout",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """What a Transformer is built from; the defaults are the base model of section 2.6.3.

    Depths are in blocks, sizes in features. `norm` post normalises after each sum as printed
    (2.42), pre before each sub-layer and once behind each stack. `transparent` gives each decoder
    block its own mixture of all encoder states, with dropout on the mixture's scores;
    `alignment` says whose attention over the source is the by-product alignment: the last decoder
    block's or the mean of all.

    `encoder` says what a source state sees: all that has been read (4.16: every prefix is encoded
    anew, so a limited read is costly), itself and what precedes it (4.17), or the last `window`
    tokens, itself included (4.18). `source_marker` (appendix C): the source as it comes, with its
    end symbol; none, not even that (an empty source keeps it, for there must be something to
    read); begin, with `<s>` before it too; add-zero, with a pair of a zero key and a zero value
    before it in the decoder's attention over the source. Reads count the tokens of the source as
    it comes whatever the marker: `<s>` and the zero pair are there before the first READ, and
    without an end symbol its READ shows nothing new.
    """

    encoder_depth: int = 6
    decoder_depth: int = 6
    size: int = 512
    feed_forward_size: int = 2048
    heads: int = 8
    norm: Norm = "post"
    encoder: Encoder = "bidirectional"
    window: int = 7
    source_marker: SourceMarker = "end"
    transparent: bool = False
    transparent_dropout: float = 0.1
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = 1024
    scale_embeddings: bool = True
    tie: Literal["none", "target", "all"] = "target"
    output_bias: bool = False
    alignment: Literal["last", "mean"] = "last"
    dropout: float = 0.1
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        found = too_small(self, *_SIZES)
        if self.heads > 0 and self.size > 0 and self.size % self.heads:
            found.append(
                f"`model.size` must be a multiple of `model.heads`, but {self.size} features do "
                f"not divide into {self.heads} heads."
            )
        found += too_large(self, LARGEST_DEPTH, "encoder_depth", "decoder_depth")
        return found + no_rates(self, *_RATES)


def block_plan(config: TransformerConfig) -> BlockPlan:
    """Return what the blocks need to know of `config`."""
    return BlockPlan(
        size=config.size,
        feed_forward_size=config.feed_forward_size,
        heads=config.heads,
        norm=config.norm,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )
