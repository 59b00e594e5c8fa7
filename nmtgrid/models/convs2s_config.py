"""What a ConvS2S model is built from, and what it costs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.layers.embedding import Positions
from nmtgrid.models.api import Report, Traits
from nmtgrid.models.config_checks import LARGEST_DEPTH, no_kernels, no_rates, too_large, too_small
from nmtgrid.models.cost_report import properties
from nmtgrid.models.first_symbol import FirstSymbol

MOST_POSITIONS = 65536
"""A bound against slips: far above what any text has tried."""


@dataclasses.dataclass(frozen=True)
class ConvS2SConfig:
    """What a ConvS2S model is built from; the defaults are the thesis' baseline (section 3.3.1).

    Departs: section 2.6.2 has dropout on the outputs of the convolutions, before the gates. Here it
    is on their inputs and before the classifier, as in Gehring et al. (2017), whose published
    system the tables compare with.
    """

    encoder_depth: int = 16
    """Layers of the encoder."""
    decoder_depth: int = 16
    """Layers of the decoder, each with an attention."""
    size: int = 256
    """Channels of a layer."""
    embedding_size: int = 256
    """Features of an embedding."""
    output_size: int | None = None
    """Features that the classifier reads; none: as many as an embedding has."""
    kernel: int = 3
    """Tokens that a filter spans (odd)."""
    positions: Positions = "learned"
    """Added to the embeddings of both sides."""
    max_positions: int = 1024
    """Learned positions of each side; the last one serves all places beyond."""
    residual: Literal["convolution", "layer"] = "convolution"
    """What a decoder layer's residual sum spans: the convolution alone, as Eq. (2.36) and Gehring
    et al. (2017) print it, or the attention too, as their published system does."""
    attention_scale: Literal["none", "size"] = "none"
    """What divides the products of queries and keys: nothing, or sqrt(d) as in Eq. (2.13)."""
    length_scale: bool = True
    """Whether what the attention reads is scaled by sqrt(|x|) (Gehring et al., 2017)."""
    gradient_scale: bool = True
    """Whether the gradient into the encoder is divided by twice the number of attentions."""
    weight_norm: bool = True
    """Whether filters and maps are parametrised by direction and length."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Matrices that are one: none; the target embeddings and the classifier; or, of a joint
    vocabulary, the source embeddings too."""
    first_symbol: FirstSymbol = "begin"
    """What the target begins with: `<s>`, or `</s>` as in fairseq."""
    alignment: Literal["average", "last"] = "average"
    """Which decoder layers' attention counts as the alignment."""
    dropout: float = 0.3
    """On the inputs of the convolutions."""
    embedding_dropout: float = 0.3
    """On embeddings."""
    output_dropout: float = 0.3
    """On what the classifier reads."""

    @property
    def classified(self) -> int:
        """Features that the classifier reads."""
        return self.output_size or self.embedding_size

    def faults(self) -> list[str]:
        """Return what is wrong with these values."""
        counts = (
            "encoder_depth", "decoder_depth", "size", "embedding_size", "output_size",
            "max_positions",
        )  # fmt: skip
        found = too_small(self, *counts)
        if self.tie != "none" and self.output_size not in (None, self.embedding_size):
            found.append(
                f"`model.tie` {self.tie} makes the classifier of the embeddings, so "
                "`model.output_size` must be none or `model.embedding_size` "
                f"({self.embedding_size}), but is {self.output_size}."
            )
        return [
            *found,
            *no_kernels(self, "kernel"),
            *too_large(self, LARGEST_DEPTH, "encoder_depth", "decoder_depth"),
            *too_large(self, MOST_POSITIONS, "max_positions"),
            *no_rates(self, "dropout", "embedding_dropout", "output_dropout"),
        ]


def convs2s_traits(config: ConvS2SConfig) -> Traits:
    """Return what such a model can do: a feature sees 1 + N (k - 1) target tokens (table 2.1)."""
    reach = 1 + config.decoder_depth * (config.kernel - 1)
    return Traits(target_receptive_field=reach, aligns=True)


def convs2s_report(
    config: ConvS2SConfig, target_types: int, source_length: float, target_length: float
) -> Report:
    """Return the report of a model for these lengths (end symbols included).

    Products count as two FLOPs; the backward pass costs twice the forward one.
    """
    row = properties("ConvS2S")
    size, embedded = config.size, config.embedding_size
    convolution, stack_maps = 4 * config.kernel * size * size, 4 * size * embedded
    leaving = 2 * size * (embedded + config.classified)
    attention = 4 * size * embedded + 4 * embedded * source_length
    source = config.encoder_depth * convolution + stack_maps
    target = config.decoder_depth * (convolution + attention) + leaving
    classified = 2 * target_types * config.classified
    reach = 1 + config.encoder_depth * (config.kernel - 1)
    return Report(
        flops_per_pair=3.0 * (source_length * source + target_length * (target + classified)),
        receptive_field=(
            f"{convs2s_traits(config).target_receptive_field} target tokens, and all source "
            f"tokens, each encoded with {reach - 1} neighbours"
        ),
        computation=row.computation,
        sequential=row.sequential,
        target_path=row.target_path,
        source_path=row.source_path,
    )
