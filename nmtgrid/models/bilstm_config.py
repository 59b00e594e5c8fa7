"""Configuration and presets of the Bi-LSTM (section 3.3.1, CoNLL section 4.1, appendix E)."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from nmtgrid.base.config import BELOW_1, FROM_1, between
from nmtgrid.models.config_checks import FirstSymbol, ModelConfig
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

_DEPTH = between(1, 100)
"""Upper bound to catch typing errors, far above any published depth."""


@dataclasses.dataclass(frozen=True)
class BiLSTMConfig(ModelConfig):
    """Configuration of the Bi-LSTM; the defaults are those of the thesis' baseline (3.3.1)."""

    encoder_depth: Annotated[int, _DEPTH] = 2
    """Layers of the encoder."""
    decoder_depth: Annotated[int, _DEPTH] = 2
    """Layers of the decoder."""
    size: Annotated[int, FROM_1] = 256
    """Size of the encoder's state in each direction."""
    encoder: Literal["bidirectional", "unidirectional"] = "bidirectional"
    """Whether the encoder reads the source in both directions or from left to right only."""
    decoder_size: Annotated[int | None, FROM_1] = None
    """Size of the decoder's state; none: `size`."""
    embedding_size: Annotated[int | None, FROM_1] = None
    """Size of an embedding; none: `size`."""
    input_feeding: bool = True
    """Whether the decoder also reads its previous output vector (input feeding)."""
    initial: Literal["mapped", "zero"] = "mapped"
    """Initial states of the decoder: a linear map of the encoder's final states, shared by all
    layers (`mapped`), or zeros."""
    output_bias: bool = False
    """Whether the classifier has a bias."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared weight matrices: `none`; `target`, the target embeddings and the classifier; `all`,
    the source embeddings as well, which needs a joint vocabulary."""
    first_symbol: FirstSymbol = "begin"
    """First input of the decoder: `begin` is `<s>`, `end` is `</s>`, as in fairseq."""
    dropout: Annotated[float, BELOW_1] = 0.3
    """Dropout on the output of each LSTM layer."""
    embedding_dropout: Annotated[float, BELOW_1] = 0.3
    """Dropout on embeddings."""
    output_dropout: Annotated[float, BELOW_1] = 0.3
    """Dropout on the input of the classifier."""

    @property
    def both_ways(self) -> bool:
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


# Section 3.3.1 and table 3.3; clipping is not in the text.
_PUBLISHED_TRAINING = (
    training(learning_rate=0.002, schedule="inverse-sqrt", warmup_updates=4000, beta2=0.98)
    | training(weight_decay=1e-4, clip_norm=5.0, max_updates=50000)
    | objective(label_smoothing=0.1)
    | batches(max_tokens=4000, accumulation=2, max_length=175)
    | search(beam=5, length_penalty=1.0)
)

# The CoNLL paper's first version: one layer each, embeddings of 128, a decoder of 256, dropout 0.2
# on the inputs of both sides and before the classifier, maximum likelihood. Its batches are not in
# the text.
_CONLL = (
    _PUBLISHED_TRAINING
    | model(encoder_depth=1, decoder_depth=1, size=128, decoder_size=256)
    | model(dropout=0.0, embedding_dropout=0.2, output_dropout=0.2)
    | training(learning_rate=0.0005, beta2=0.999, weight_decay=0.0, schedule="plateau")
    | training(decay_factor=0.8, decay_patience=3, decay_threshold=0.01, warmup_updates=0)
    | training(max_updates=0, max_epochs=40, validate_epochs=0, validate_updates=8000)
    | objective(label_smoothing=0.0)
    | batches(accumulation=1)
    | search(length_penalty=0.0)
)

# Half an hour of one core, as in every architecture's `multi30k`.
_SMALL = (
    HALF_HOUR
    | model(size=192)
    | dropout_rates(0.25)
    # The best of recipes/tune.sh (recipes/records/tune-multi30k-3-bilstm.json).
    | training(optimiser="muon", learning_rate=0.006)
)

BILSTM = (
    toy(model(encoder_depth=1, decoder_depth=1, size=128) | dropout_rates(0.1), 0.005, 1000),
    Preset("multi30k", "Multi30k De-En, thirty minutes of one CPU core", _SMALL),
    two_hours(_SMALL),
    Preset(
        "iwslt14-de-en",
        "table 3.7: two layers, d=256, trained as in table 3.3",
        _PUBLISHED_TRAINING,
        (8848, 6632),
        8.50e6,
    ),
    Preset(
        "iwslt14-de-en-conll",
        "CoNLL table 3, first version, RNNsearch: one layer (published: 6M). The text says that "
        "the classifier is tied to the embeddings, but the count agrees with a separate one",
        _CONLL | model(embedding_size=128, tie="none"),
        (12000, 9000),
    ),
    Preset(
        "iwslt14-de-en-conll-tied",
        "iwslt14-de-en-conll with a tied classifier (3.7M), as its text says",
        _CONLL | model(embedding_size=128),
        (12000, 9000),
    ),
    Preset(
        "wmt14-en-fr",
        "table E.3: one layer, with the sizes of Bahdanau et al. (2015), whom the appendix cites",
        _PUBLISHED_TRAINING
        | model(encoder_depth=1, decoder_depth=1, size=1000, embedding_size=620)
        | model(dropout=0.0, embedding_dropout=0.0, output_dropout=0.2)
        | training(learning_rate=0.001)
        | batches(accumulation=1, max_length=50),
        (30000, 30000),
    ),
)
