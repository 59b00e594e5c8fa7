"""What decoding costs in floating point operations (appendix B), for each token and in the mean.

Products count as two operations; non-linearities, norms and sums are left out. The encoder is not
counted. Exits [B, T] or, with a beam, [B, W, T] count from 1; 0 stands where a row wrote nothing.
The end symbol's step counts as a token's. With a beam, the source's keys and values and a
sentence-specific prediction are made once for a sentence, the rest in each of its rows.

Departs: skipped blocks are q+1 .. N (the print leaves one out); predicting exits and the output
map are counted for adaptive decoding too; a geometric predictor is not asked after block N.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.models.api import TranslationModel

FlopsMechanism = Literal["none", "confidence", "geometric", "multinomial", "sequence"]
"""How exits are chosen, which costs something too; "none" for fixed and given ones."""


@dataclasses.dataclass(frozen=True)
class DecoderSizes:
    """A decoder's blocks, features, feed-forward features and types, its encoder's features."""

    blocks: int
    size: int
    encoder_size: int
    feed_forward_size: int
    types: int

    @classmethod
    def of(cls, model: TranslationModel) -> DecoderSizes:
        """Return the sizes of a Transformer, with or without exits."""
        config = model.config
        return cls(
            blocks=config.decoder_depth,
            size=config.size,
            encoder_size=config.source_size,
            feed_forward_size=config.feed_forward_size,
            types=model.classifier().weight.shape[0],
        )

    @property
    def output(self) -> float:
        """Return the cost of one classifier, 2 |V| d."""
        return 2.0 * self.types * self.size

    @property
    def skipped_block(self) -> float:
        """Return FS, the keys and values of a block that a token skips."""
        return 4.0 * self.size**2

    @property
    def source_token(self) -> float:
        """Return the keys and values of one source state for one block."""
        return 4.0 * self.size * self.encoder_size

    def block(self, source_length: float, step: int) -> float:
        """Return FC of a block that has the source's keys and values, at step t from 1."""
        size = self.size
        fixed = 12.0 * size**2 + 4.0 * self.feed_forward_size * size
        return fixed + 4.0 * step * size + 4.0 * source_length * size


def token_flops(
    sizes: DecoderSizes, source_lengths: Tensor, exits: Tensor, mechanism: FlopsMechanism = "none"
) -> Tensor:
    """Return [B, T] (float64), the operations of each step, all rows of a beam together.

    `source_lengths` [B] are the states that the decoder attends to; a pair of zeros, which needs
    no products, is none. A block's source keys and values are counted at the step where a row of
    the sentence first comes to it.
    """
    rows = exits if exits.dim() == 3 else exits[:, None]
    taken, written = rows.double(), (rows > 0).double()
    steps = torch.arange(1, rows.shape[-1] + 1, device=rows.device).double()
    source = source_lengths.double()[:, None]
    fixed, states = sizes.block(0, 0), 4.0 * sizes.size
    blocks = taken.sum(1) * (fixed + states * (steps + source))
    skipped = (sizes.blocks * written - taken).sum(1) * sizes.skipped_block
    reached = pad(rows.amax(1).cummax(-1).values, (1, 0)).diff().double()
    first_calls = reached * source * sizes.source_token
    total = blocks + skipped + first_calls + prediction_flops(sizes, rows, mechanism).sum(1)
    if mechanism == "sequence":
        total[:, 0] += 2.0 * sizes.blocks * sizes.encoder_size
    # Thresholds on confidence have computed the output already.
    return total if mechanism == "confidence" else total + written.sum(1) * sizes.output


def prediction_flops(sizes: DecoderSizes, exits: Tensor, mechanism: FlopsMechanism) -> Tensor:
    """Return FP of each token, of the shape of `exits`, without that of "sequence"."""
    taken, size = exits.double(), float(sizes.size)
    if mechanism == "confidence":
        return taken * sizes.output
    if mechanism == "geometric":
        return 2.0 * size * taken.clamp(max=sizes.blocks - 1)
    if mechanism == "multinomial":
        return 2.0 * sizes.blocks * size * (taken > 0)
    return torch.zeros_like(taken)


def corpus_flops(
    sizes: DecoderSizes, source_lengths: Tensor, exits: Tensor, mechanism: FlopsMechanism = "none"
) -> float:
    """Return the mean operations per step, end symbols' steps counted."""
    rows = exits if exits.dim() == 3 else exits[:, None]
    steps = (rows > 0).any(1).sum().clamp(min=1)
    return float(token_flops(sizes, source_lengths, exits, mechanism).sum() / steps)


def average_exit(exits: Tensor) -> float:
    """Return the mean exit over all tokens, end symbols counted (section 5.4.3)."""
    return float(exits.double().sum() / (exits > 0).sum().clamp(min=1))
