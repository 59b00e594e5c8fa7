"""What a Transformer is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.blocks import BlockPlan, Norm
from nmtgrid.layers.embedding import Positions
from nmtgrid.models.api import Halting
from nmtgrid.models.bounds import LARGEST_DEPTH, no_rates, too_large, too_small
from nmtgrid.models.first_symbol import FirstSymbol

Encoder = Literal["bidirectional", "unidirectional", "window"]
SourceMarker = Literal["end", "none", "begin", "add-zero"]
Exits = Literal["none", "tied", "separate"]

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
    read), and translations are as long as their sources; begin, with `<s>` before it too;
    add-zero, with a pair of a zero key and a zero value before it in the decoder's attention over
    the source. Reads count the tokens of the source as it comes whatever the marker: `<s>` and the
    zero pair are there before the first READ, and without an end symbol its READ shows nothing new.

    `positions` sinusoidal-halves and `first_symbol` end (the target begins with `</s>`) are what
    other programs' models have.

    `encoder_size` gives the encoder features of its own (0: `size`). `exits` puts a classifier
    behind every decoder block (5.3): the same one, or one for each, of which the last is the
    model's own, tied or not; with `norm` pre a norm stands before each, shared or not likewise.
    `halting` is the network that says when to exit: from the mean source state (5.11), from the
    first block's state (5.19), or from each block's (5.20); it reads what the classifiers read.
    """

    encoder_depth: int = 6
    decoder_depth: int = 6
    size: int = 512
    encoder_size: int = 0
    feed_forward_size: int = 2048
    heads: int = 8
    norm: Norm = "post"
    encoder: Encoder = "bidirectional"
    window: int = 7
    source_marker: SourceMarker = "end"
    transparent: bool = False
    transparent_dropout: float = 0.1
    positions: Positions = "sinusoidal"
    max_positions: int = 1024
    scale_embeddings: bool = True
    tie: Literal["none", "target", "all"] = "target"
    first_symbol: FirstSymbol = "begin"
    output_bias: bool = False
    exits: Exits = "none"
    halting: Halting = "none"
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
        found += self._encoder_faults()
        if self.halting != "none" and self.exits == "none":
            found.append(
                f"`model.halting` is {self.halting}, but there is no exit to choose: set "
                "`model.exits=tied` (or separate)."
            )
        if self.exits != "none" and self.decoder_depth == 1:
            found.append("`model.exits` needs a `model.decoder_depth` of at least 2, but it is 1.")
        found += too_large(self, LARGEST_DEPTH, "encoder_depth", "decoder_depth")
        return found + no_rates(self, *_RATES)

    @property
    def source_size(self) -> int:
        """Return the features of the encoder."""
        return self.encoder_size or self.size

    def _encoder_faults(self) -> list[str]:
        found = []
        if self.encoder_size < 0:
            found.append(f"`model.encoder_size` must be at least 0, but is {self.encoder_size}.")
        if self.heads > 0 and self.encoder_size > 0 and self.encoder_size % self.heads:
            found.append(
                f"`model.encoder_size` must be a multiple of `model.heads`, but "
                f"{self.encoder_size} features do not divide into {self.heads} heads."
            )
        if self.tie == "all" and self.source_size != self.size:
            found.append(
                "`model.tie` all shares one matrix between both sides, so `model.encoder_size` "
                f"must be 0 or `model.size` ({self.size}), but is {self.encoder_size}."
            )
        return found


def block_plan(config: TransformerConfig, size: int) -> BlockPlan:
    """Return what the blocks of one side, of `size` features, need to know of `config`."""
    return BlockPlan(
        size=size,
        feed_forward_size=config.feed_forward_size,
        heads=config.heads,
        norm=config.norm,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )
