"""Configuration, traits, costs and presets of ConvS2S (sections 2.6.2, 3.3.1; CoNLL table 3)."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from nmtgrid.layers.embedding import Positions
from nmtgrid.models.api import Report, Traits
from nmtgrid.models.config_checks import (
    LARGEST_DEPTH,
    FirstSymbol,
    no_kernels,
    no_rates,
    too_large,
    too_small,
)
from nmtgrid.models.cost_report import table_report
from nmtgrid.models.presets import HALF_HOUR, Preset, dropout_rates

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
        faults = too_small(self, *counts)
        # A tied classifier reads vectors as wide as an embedding.
        if self.tie != "none" and self.output_size not in (None, self.embedding_size):
            faults.append(
                f"`model.tie` {self.tie} makes the classifier of the embeddings, so "
                "`model.output_size` must be none or `model.embedding_size` "
                f"({self.embedding_size}), but is {self.output_size}."
            )
        return [
            *faults,
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
    size, embedded = config.size, config.embedding_size
    # A gated convolution makes 2 C channels of k C. Each stack is entered and left by a projection
    # between embedding and channels.
    convolution, stack_maps = 4 * config.kernel * size * size, 4 * size * embedded
    leaving = 2 * size * (embedded + config.classified)
    # Two projections around the attention, then products with the keys and with the values.
    attention = 4 * size * embedded + 4 * embedded * source_length
    source = config.encoder_depth * convolution + stack_maps
    target = config.decoder_depth * (convolution + attention) + leaving
    classified = 2 * target_types * config.classified
    # Attention sees every source token; the encoder's reach says what is mixed into each of them.
    reach = 1 + config.encoder_depth * (config.kernel - 1)
    return table_report(
        "ConvS2S",
        3.0 * (source_length * source + target_length * (target + classified)),
        f"{convs2s_traits(config).target_receptive_field} target tokens, and all source "
        f"tokens, each encoded with {reach - 1} neighbours",
    )


# Gehring et al. (2017), section 4.2, and the CoNLL paper: the rate falls to a tenth whenever an
# epoch brings no improvement.
_PUBLISHED_TRAINING: dict[str, Any] = {
    # The published system's form; the print's is the config's default.
    "model.residual": "layer",
    "training.optimiser": "nesterov",
    "training.learning_rate": 0.25,
    "training.momentum": 0.99,
    "training.weight_decay": 0.0,
    "training.clip_norm": 0.1,
    "training.schedule": "plateau",
    "training.warmup_updates": 0,
    "training.decay_factor": 0.1,
    "training.decay_patience": 1,
    "training.patience": 5,
    "training.max_updates": 0,
    "training.max_epochs": 80,
    "objective.label_smoothing": 0.1,
    "batches.max_tokens": 4000,
    "batches.max_length": 175,
    "search.beam": 5,
    "search.length_penalty": 1.0,
}

# The CoNLL paper, as in its first version: a shallower decoder, dropout 0.2, a classifier of its
# own (which is what its counts fit), maximum likelihood, search without penalties.
_CONLL: dict[str, Any] = {
    **_PUBLISHED_TRAINING,
    "model.decoder_depth": 12,
    "model.tie": "none",
    **dropout_rates(0.2),
    "objective.label_smoothing": 0.0,
    "search.length_penalty": 0.0,
}

# Half an hour of one core, as every architecture's `multi30k` has it.
_SMALL: dict[str, Any] = {
    **HALF_HOUR,
    "model.encoder_depth": 5,
    "model.decoder_depth": 5,
    "model.size": 160,
    "model.embedding_size": 160,
    "model.max_positions": 256,
    **dropout_rates(0.2),
    "training.learning_rate": 0.003,
}

CONVS2S = (
    Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        {
            "model.encoder_depth": 3,
            "model.decoder_depth": 3,
            "model.size": 128,
            "model.embedding_size": 128,
            "model.max_positions": 128,
            **dropout_rates(0.1),
            "objective.label_smoothing": 0.1,
            "training.learning_rate": 0.003,
            "training.schedule": "cosine",
            "training.warmup_updates": 100,
            "training.max_updates": 1500,
            "batches.max_tokens": 1500,
            "search.beam": 5,
        },
    ),
    Preset("multi30k", "Multi30k De-En, thirty minutes of one CPU core", _SMALL),
    Preset(
        "iwslt14-de-en",
        "table 3.7: 16+16 layers of width 3, dropout 0.3, trained as Gehring et al. (2017) do",
        _PUBLISHED_TRAINING,
        (8848, 6632),
        19.5e6,
    ),
    Preset(
        "iwslt14-de-en-conll",
        "CoNLL table 3, first version: 16+12 layers. Its 21M and 22M fit a classifier of its own",
        _CONLL,
        (12000, 8800),
        21e6,
    ),
    Preset(
        "iwslt14-en-de-conll",
        "CoNLL table 3, the other direction",
        _CONLL,
        (8800, 12000),
        22e6,
    ),
    Preset(
        "wmt16-en-ro",
        "table 3.11 (Gehring et al., 2017): 20+20 layers of 512; its 111.5M fit 35K types a side "
        "(the table says 40K) and a classifier tied to the target embeddings",
        {
            **_PUBLISHED_TRAINING,
            "model.encoder_depth": 20,
            "model.decoder_depth": 20,
            "model.size": 512,
            "model.embedding_size": 512,
            **dropout_rates(0.2),
            "objective.label_smoothing": 0.0,
            "batches.accumulation": 2,
        },
        (35000, 35000),
        111.5e6,
    ),
)
