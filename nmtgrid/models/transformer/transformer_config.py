"""What a Transformer is built from."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.embedding import Positions
from nmtgrid.layers.transformer.blocks import BlockPlan, Norm
from nmtgrid.models.api import Halting
from nmtgrid.models.config_checks import LARGEST_DEPTH, no_rates, too_large, too_small
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
    """What a Transformer is built from; the defaults are the base model of section 2.6.3."""

    encoder_depth: int = 6
    """Blocks of the encoder."""
    decoder_depth: int = 6
    """Blocks of the decoder."""
    size: int = 512
    """d, features of a state; a multiple of `heads`."""
    encoder_size: int = 0
    """Features of the encoder's states, if not `size` (0)."""
    feed_forward_size: int = 2048
    """d_FF, features between the two maps of a block."""
    heads: int = 8
    """Heads of each attention."""
    norm: Norm = "post"
    """`post` normalises after each sum, as printed (2.42); `pre` before each sub-layer, and once
    behind each stack."""
    encoder: Encoder = "bidirectional"
    """What a source state sees: all that has been read (4.16: every prefix is encoded anew, so a
    limited read is costly), itself and what precedes it (4.17), or the last `window` tokens
    (4.18)."""
    window: int = 7
    """Tokens that a source state of encoder `window` sees, itself included."""
    source_marker: SourceMarker = "end"
    """How the source ends or begins (appendix C): `end`, as it comes, with its end symbol; `none`,
    without (an empty source keeps it, for there must be something to read), and translations are as
    long as their sources; `begin`, with `<s>` before it too; `add-zero`, with a pair of a zero key
    and a zero value before it in the decoder's attention over the source. Reads count the tokens of
    the source as it comes whatever the marker: `<s>` and the zero pair are there before the first
    READ, and without an end symbol its READ shows nothing new."""
    transparent: bool = False
    """Whether each decoder block has its own mixture of all encoder blocks' states."""
    transparent_dropout: float = 0.1
    """On the scores of those mixtures."""
    positions: Positions = "sinusoidal"
    """Added to the embeddings of both sides; `sinusoidal-halves` are other programs'."""
    max_positions: int = 1024
    """Learned positions of each side; the last one serves all places beyond."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the square root of their size."""
    tie: Literal["none", "target", "all"] = "target"
    """Matrices that are one: none; the target embeddings and the classifier; or, of a joint
    vocabulary, the source embeddings too."""
    first_symbol: FirstSymbol = "begin"
    """What the target begins with: `<s>`, or `</s>` as in fairseq."""
    output_bias: bool = False
    """Whether the classifier has a bias."""
    exits: Exits = "none"
    """A classifier behind every decoder block (5.3): the same one, or one for each, of which the
    last is the model's own, tied or not; with `norm` pre a norm stands before each, shared or not
    likewise."""
    halting: Halting = "none"
    """The network that says when to exit: from the mean source state (5.11), from the first block's
    state (5.19), or from each block's (5.20); it reads what the classifiers read."""
    alignment: Literal["last", "mean"] = "last"
    """Whose attention over the source is the by-product alignment: the last decoder block's or the
    mean of all."""
    dropout: float = 0.1
    """On what each sub-layer adds."""
    embedding_dropout: float = 0.1
    """On embeddings."""
    attention_dropout: float = 0.0
    """On the weights of attention."""
    activation_dropout: float = 0.0
    """Between the two maps of a feed-forward layer."""

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
