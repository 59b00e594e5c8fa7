"""Configuration and presets of the convolution-to-recurrent model (book chapter 7.1).

The chapter gives no numbers, so sizes and training are the toolkit's own.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from nmtgrid.base.config import BELOW_1, FROM_1, between
from nmtgrid.layers.convolution import Convolution
from nmtgrid.models.config_checks import ModelConfig
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
)

_DEPTH = between(1, 30)
"""Upper bound to catch typing errors: the kernels of 30 layers span 466 words."""


@dataclasses.dataclass(frozen=True)
class ConvRNNConfig(ModelConfig):
    """Configuration of the convolution-to-recurrent model."""

    form: Literal["phrase", "sentence"] = "phrase"
    """`sentence` encodes the source as one vector (figure 7.1), `phrase` as several, mapped by a
    transfer layer (figure 7.2)."""
    convolution: Convolution = "full"
    """`full`: one matrix over all features of a window; `depthwise`: one weight per feature and
    position."""
    cell: Literal["plain", "lstm"] = "plain"
    """Recurrent network: a plain one, as in the 2013 paper, or an LSTM."""
    encoder_depth: Annotated[int, _DEPTH] = 2
    """Convolutions on each side, with kernels of 2, 3, 4, ... words. They reduce 1 + (1 + 2 + 3 +
    ...) words or fewer to a single phrase, so few layers are enough."""
    merge: Annotated[int, FROM_1] = 4
    """Form `sentence`: positions that the last kernel L distinguishes."""
    size: Annotated[int, FROM_1] = 256
    """Size of a state."""
    embedding_size: Annotated[int | None, FROM_1] = None
    """Size of an embedding; none: `size`."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared weight matrices: `none`; `target`, the target embeddings and the classifier; `all`,
    the source embeddings as well, which needs a joint vocabulary."""
    dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout after each convolution."""
    embedding_dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on embeddings."""
    output_dropout: Annotated[float, BELOW_1] = 0.2
    """Dropout on the input of the classifier."""

    @property
    def embedded(self) -> int:
        """Features of an embedding."""
        return self.embedding_size or self.size

    @property
    def merged_positions(self) -> int:
        """Number of positions by which all convolutions together shorten a sentence."""
        return self.encoder_depth * (self.encoder_depth + 1) // 2


_DROPOUT = model(dropout=0.2, embedding_dropout=0.2, output_dropout=0.3)
# Half an hour of one core, as in every architecture's `multi30k`.
_SMALL = (
    HALF_HOUR
    | model(cell="lstm", encoder_depth=2, size=256)
    | _DROPOUT
    | training(learning_rate=0.002)
)

CONVRNN = (
    toy(model(size=128, encoder_depth=2, cell="lstm") | dropout_rates(0.1), 0.004, 1500),
    Preset(
        "multi30k",
        "Multi30k De-En, thirty minutes of one CPU core, with an LSTM instead of a plain network",
        _SMALL,
    ),
    Preset(
        "multi30k-sentence",
        "the multi30k preset with one vector per sentence (figure 7.1) and a plain network",
        _SMALL | model(form="sentence", cell="plain", encoder_depth=4, merge=4),
    ),
    Preset(
        "iwslt14-de-en",
        "IWSLT'14 De-En; the chapter has no sizes, so these are those of the thesis",
        model(cell="lstm", size=256, encoder_depth=3)
        | _DROPOUT
        | training(learning_rate=0.001, schedule="inverse-sqrt", warmup_updates=4000)
        | training(max_updates=50000)
        | objective(label_smoothing=0.1)
        | batches(max_tokens=4000, max_length=175)
        | search(beam=5, length_penalty=1.0),
        (8848, 6632),
    ),
)
