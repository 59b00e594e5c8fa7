"""Configuration and presets of ConvS2S (sections 2.6.2, 3.3.1; CoNLL table 3)."""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Literal

from nmtgrid.base.config import BELOW_1, FROM_1, between
from nmtgrid.layers.embedding import Positions
from nmtgrid.models.config_checks import DEPTH, KERNEL, FirstSymbol, ModelConfig
from nmtgrid.models.presets import (
    HALF_HOUR,
    Preset,
    batches,
    dropout_rates,
    model,
    objective,
    search,
    toy,
    training,
    two_hours,
)

_POSITIONS = between(1, 65536)
"""Upper bound to catch typing errors, far above any published value."""


@dataclasses.dataclass(frozen=True)
class ConvS2SConfig(ModelConfig):
    """Configuration of ConvS2S; the defaults are those of the thesis' baseline (section 3.3.1).

    Departs: Section 2.6.2 has dropout on the outputs of the convolutions, before the gates. Here it
    is on their inputs and before the classifier, as in Gehring et al. (2017), whose published
    system is in the tables.
    """

    only_with = types.MappingProxyType({"max_positions": ("positions", ("learned",))})

    encoder_depth: Annotated[int, DEPTH] = 16
    """Layers of the encoder."""
    decoder_depth: Annotated[int, DEPTH] = 16
    """Layers of the decoder, each with its own attention."""
    size: Annotated[int, FROM_1] = 256
    """Channels of a layer."""
    embedding_size: Annotated[int, FROM_1] = 256
    """Size of an embedding."""
    output_size: Annotated[int | None, FROM_1] = None
    """Size of the classifier's input; none: `embedding_size`."""
    kernel: Annotated[int, KERNEL] = 3
    """Width of a filter in tokens (odd)."""
    positions: Positions = "learned"
    """Position encodings added to the embeddings of both sides: none, sinusoidal as in Eq. (2.39),
    with fairseq's or Marian's order of sines and cosines, or learned."""
    max_positions: Annotated[int, _POSITIONS] = 1024
    """Number of learned positions per side; all later positions share the last one."""
    residual: Literal["convolution", "layer"] = "convolution"
    """What the residual connection of a decoder layer skips: only the convolution, as printed in
    Eq. (2.36) and by Gehring et al. (2017), or also the attention, as in their published system."""
    attention_scale: Literal["none", "size"] = "none"
    """Divisor of attention scores: none, or sqrt(d) as in Eq. (2.13)."""
    length_scale: bool = True
    """Whether the output of the attention is scaled by sqrt(|x|) (Gehring et al., 2017)."""
    gradient_scale: bool = True
    """Whether the gradient into the encoder is divided by twice the number of attentions (Gehring
    et al., 2017)."""
    weight_norm: bool = True
    """Whether filters and linear maps have weight normalisation."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared weight matrices: `none`; `target`, the target embeddings and the classifier; `all`,
    the source embeddings as well, which needs a joint vocabulary."""
    first_symbol: FirstSymbol = "begin"
    """First input of the decoder: `begin` is `<s>`, `end` is `</s>`, as in fairseq."""
    alignment: Literal["average", "last"] = "average"
    """Decoder layers whose attention is reported as the alignment: the average of all, or the
    last."""
    dropout: Annotated[float, BELOW_1] = 0.3
    """Dropout on the inputs of the convolutions."""
    embedding_dropout: Annotated[float, BELOW_1] = 0.3
    """Dropout on embeddings."""
    output_dropout: Annotated[float, BELOW_1] = 0.3
    """Dropout on the input of the classifier."""

    @property
    def classified(self) -> int:
        """Features that the classifier reads."""
        return self.output_size or self.embedding_size

    def faults(self) -> list[str]:
        faults = super().faults()
        # A tied classifier reads vectors as wide as an embedding.
        if self.tie != "none" and self.output_size not in (None, self.embedding_size):
            faults.append(
                f"`model.tie` {self.tie} shares the embeddings with the classifier, so "
                "`model.output_size` must be none or `model.embedding_size` "
                f"({self.embedding_size}), but is {self.output_size}."
            )
        return faults


# Gehring et al. (2017), section 4.2, and the CoNLL paper: the rate falls to a tenth whenever an
# epoch brings no improvement.
_PUBLISHED_TRAINING = (
    # As in the published system; the config's default is as printed.
    model(residual="layer")
    | training(optimiser="nesterov", learning_rate=0.25, momentum=0.99, weight_decay=0.0)
    | training(clip_norm=0.1, schedule="plateau", warmup_updates=0, decay_factor=0.1)
    | training(decay_patience=1, patience=5, max_updates=0, max_epochs=80)
    | objective(label_smoothing=0.1)
    | batches(max_tokens=4000, max_length=175)
    | search(beam=5, length_penalty=1.0)
)

# The CoNLL paper, first version: a shallower decoder, dropout 0.2, an untied classifier (which
# agrees with its counts), maximum likelihood, search without penalties.
_CONLL = (
    _PUBLISHED_TRAINING
    | model(decoder_depth=12, tie="none")
    | dropout_rates(0.2)
    | objective(label_smoothing=0.0)
    | search(length_penalty=0.0)
)

# Half an hour of one core, as in every architecture's `multi30k`. Optimiser and rate are the
# best of recipes/tune.sh (recipes/records/tune-multi30k-3-convs2s.json).
_SMALL = (
    HALF_HOUR
    | model(encoder_depth=5, decoder_depth=5, size=160, embedding_size=160, max_positions=256)
    | dropout_rates(0.2)
    | training(learning_rate=0.006)
)

CONVS2S = (
    toy(
        model(encoder_depth=3, decoder_depth=3, size=128, embedding_size=128, max_positions=128)
        | dropout_rates(0.1),
        0.003,
        1500,
    ),
    Preset("multi30k", "Multi30k De-En, thirty minutes of one CPU core", _SMALL),
    two_hours(_SMALL),
    Preset(
        "iwslt14-de-en",
        "table 3.7: 16+16 layers, kernels of 3, dropout 0.3, trained as in Gehring et al. (2017)",
        _PUBLISHED_TRAINING,
        (8848, 6632),
        19.5e6,
    ),
    Preset(
        "iwslt14-de-en-conll",
        "CoNLL table 3, first version: 16+12 layers, with a separate classifier (from its count)",
        _CONLL,
        (12000, 8800),
        21e6,
    ),
    Preset("iwslt14-en-de-conll", "as iwslt14-de-en-conll", _CONLL, (8800, 12000), 22e6),
    Preset(
        "wmt16-en-ro",
        "table 3.11 (Gehring et al., 2017): 20+20 layers of 512. The table says 40K types, but its "
        "count agrees with 35K on each side and a tied classifier",
        _PUBLISHED_TRAINING
        | model(encoder_depth=20, decoder_depth=20, size=512, embedding_size=512)
        | dropout_rates(0.2)
        | objective(label_smoothing=0.0)
        | batches(accumulation=2),
        (35000, 35000),
        111.5e6,
    ),
)
