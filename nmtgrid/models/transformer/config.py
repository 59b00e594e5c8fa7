"""Configuration and presets of the Transformer.

Options: the model of section 2.6.3, encoders for simultaneous translation (4.3.1), source markers
(appendix C), exits and their predictors (section 5.3). Presets: tables 3.3, 3.7, 3.8 and 3.11,
chapter 5, the CoNLL paper and the poster on transparent attention.
"""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Annotated, Any, Literal

from nmtgrid.base.config import BELOW_1, FROM_1, WHOLE_FROM_0
from nmtgrid.layers.embedding import Positions
from nmtgrid.layers.transformer.blocks import Activation, Norm
from nmtgrid.models.api import Halting
from nmtgrid.models.config_checks import DEPTH, FirstSymbol, ModelConfig
from nmtgrid.models.presets import (
    HALF_HOUR,
    PUBLISHED,
    Preset,
    batches,
    model,
    objective,
    search,
    toy,
    training,
    two_hours,
)

Encoder = Literal["bidirectional", "unidirectional", "window"]
SourceMarker = Literal["end", "none", "begin", "add-zero"]
Exits = Literal["none", "tied", "separate"]


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Configuration of the Transformer; the defaults are the base model of section 2.6.3."""

    only_with = types.MappingProxyType(
        {
            "window": ("encoder", ("window",)),
            "transparent_dropout": ("transparent", (True,)),
            "max_positions": ("positions", ("learned",)),
            "selection_bias": ("reader", ("monotonic",)),
            "selection_noise": ("reader", ("monotonic",)),
        }
    )

    encoder_depth: Annotated[int, DEPTH] = 6
    """Blocks of the encoder."""
    decoder_depth: Annotated[int, DEPTH] = 6
    """Blocks of the decoder."""
    size: Annotated[int, FROM_1] = 512
    """d, size of a state; a multiple of `heads`."""
    encoder_size: Annotated[int, WHOLE_FROM_0] = 0
    """Size of the encoder's states; 0: `size`."""
    feed_forward_size: Annotated[int, FROM_1] = 2048
    """d_FF, size of the hidden layer of a block."""
    heads: Annotated[int, FROM_1] = 8
    """Heads of each attention."""
    norm: Norm = "post"
    """Layer normalisation: `post`, after each residual sum, as printed in Eq. (2.42); `pre`, before
    each sub-layer and once after each stack."""
    activation: Activation = "relu"
    """Activation of the feed-forward layers; `swish(x)` is x times the logistic function of x."""
    encoder: Encoder = "bidirectional"
    """What each source state sees: `bidirectional`, all source tokens read so far (4.16), which
    requires encoding every prefix anew and is slow in simultaneous translation; `unidirectional`,
    itself and the tokens before it (4.17); `window`, the last `window` tokens (4.18)."""
    window: Annotated[int, FROM_1] = 7
    """With `encoder=window`: tokens that a source state sees, including its own."""
    source_marker: SourceMarker = "end"
    """Symbols around the source (appendix C). `end`: the end symbol after it. `none`: no symbols,
    except in an empty source; translations have as many tokens as their sources. `begin`: `<s>`
    before it and the end symbol after it. `add-zero`: like `end`, with a zero key and a zero value
    at the front of the decoder's attention over the source. `<s>` and the zero pair are visible
    before the first READ and do not count as reads; with `none`, reading the end symbol still
    counts but shows nothing new."""
    transparent: bool = False
    """Transparent attention: whether each decoder block attends to its own weighted sum of the
    states of all encoder blocks."""
    transparent_dropout: Annotated[float, BELOW_1] = 0.1
    """Dropout on the weights of those sums, before the softmax."""
    positions: Positions = "sinusoidal"
    """Position encodings added to the embeddings of both sides: none, sinusoidal as in Eq. (2.39),
    with fairseq's or Marian's order of sines and cosines, or learned."""
    max_positions: Annotated[int, FROM_1] = 1024
    """Number of learned positions per side; all later positions share the last one."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the square root of their size."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared weight matrices: `none`; `target`, the target embeddings and the classifier; `all`,
    the source embeddings as well, which needs a joint vocabulary."""
    first_symbol: FirstSymbol = "begin"
    """First input of the decoder: `begin` is `<s>`, `end` is `</s>`, as in fairseq."""
    output_bias: bool = False
    """Whether the classifier has a bias."""
    exits: Exits = "none"
    """Output classifiers after every decoder block (section 5.3): `tied`, one for all; `separate`,
    one per exit, the last being the model's own. With `norm=pre` a normalisation precedes each
    classifier, shared or separate in the same way."""
    halting: Halting = "none"
    """Exit predictor: from the mean source state (5.11), from the state of the first block (5.19),
    or from the state of each block (5.20). Its input is that of the classifiers."""
    alignment: Literal["last", "mean"] = "last"
    """Attention that is reported as the alignment: of the last decoder block, or the mean of
    all."""
    reader: Literal["none", "transport", "information", "monotonic"] = "none"
    """Mechanism that estimates whether the model is ready to write: information transport (ITST),
    information per token (Wait-info) or monotonic heads (MMA)."""
    selection_bias: float = 0.0
    """With `reader=monotonic`: initial bias of the selection energies; a lower bias reads more."""
    selection_noise: float = 1.0
    """With `reader=monotonic`: standard deviation of the noise added to selection energies in
    training, which moves selection probabilities away from one half."""
    dropout: Annotated[float, BELOW_1] = 0.1
    """Dropout on the output of each sub-layer."""
    embedding_dropout: Annotated[float, BELOW_1] = 0.1
    """Dropout on embeddings."""
    attention_dropout: Annotated[float, BELOW_1] = 0.0
    """Dropout on attention weights."""
    activation_dropout: Annotated[float, BELOW_1] = 0.0
    """Dropout on the hidden layer of feed-forward layers."""

    def faults(self) -> list[str]:
        faults = super().faults()
        # Values below 1 are reported already and must not be used as divisors.
        if self.heads > 0 and self.size > 0 and self.size % self.heads:
            faults.append(
                f"`model.size` must be a multiple of `model.heads`, but {self.size} features do "
                f"not divide into {self.heads} heads."
            )
        faults += self._encoder_faults()
        if self.halting != "none" and self.exits == "none":
            faults.append(
                f"`model.halting` is {self.halting}, but the model has a single exit: set "
                "`model.exits=tied` (or separate)."
            )
        # The exit of the only block would be the model's own output.
        if self.exits != "none" and self.decoder_depth == 1:
            faults.append("`model.exits` needs a `model.decoder_depth` of at least 2, but it is 1.")
        faults += self._reader_faults()
        if self.reader == "monotonic":
            faults += self._monotonic_faults()
        return faults

    @property
    def source_size(self) -> int:
        return self.encoder_size or self.size

    def _reader_faults(self) -> list[str]:
        faults = []
        if self.reader == "transport" and self.encoder == "bidirectional":
            faults.append(
                "`model.reader` transport sums what each source token transports, but with "
                "`model.encoder` bidirectional each READ changes the encoding of earlier tokens: "
                "set `model.encoder=unidirectional` (or window)."
            )
        if self.reader in ("transport", "information") and self.exits != "none":
            faults.append(
                f"`model.reader` {self.reader} is for policies that inspect predictions of all "
                f"decoder blocks, but with `model.exits` {self.exits} tokens exit before the last "
                "one: leave out one of the two settings."
            )
        return faults

    def _monotonic_faults(self) -> list[str]:
        faults = []
        if self.encoder == "bidirectional":
            faults.append(
                "`model.reader` monotonic chooses source positions while the source is read, but "
                "with `model.encoder` bidirectional each READ changes the encoding of earlier "
                "positions, and in training they would contain later ones: set "
                "`model.encoder=unidirectional` (or window)."
            )
        if self.exits != "none":
            faults.append(
                "`model.reader` monotonic writes once the heads of every decoder block have chosen "
                f"a source position, but with `model.exits` {self.exits} tokens exit before some "
                "blocks have: leave out one of the two settings."
            )
        if not math.isfinite(self.selection_bias):
            faults.append(f"`model.selection_bias` must be a number, but is {self.selection_bias}.")
        if not 0 <= self.selection_noise < math.inf:
            faults.append(
                f"`model.selection_noise` must be a number from 0 on, but is "
                f"{self.selection_noise}."
            )
        return faults

    def _encoder_faults(self) -> list[str]:
        faults = []
        if self.heads > 0 and self.encoder_size > 0 and self.encoder_size % self.heads:
            faults.append(
                f"`model.encoder_size` must be a multiple of `model.heads`, but "
                f"{self.encoder_size} features do not divide into {self.heads} heads."
            )
        if self.tie == "all" and self.source_size != self.size:
            faults.append(
                "`model.tie` all shares one matrix between source and target, so "
                f"`model.encoder_size` must be 0 or `model.size` ({self.size}), but is "
                f"{self.encoder_size}."
            )
        return faults


# Section 3.3.1 and table 3.3.
_PUBLISHED_TRAINING = (
    PUBLISHED | training(optimiser="adamw") | batches(max_tokens=4000, max_length=175)
)


def _dropped(rate: float) -> dict[str, Any]:
    """Return dropout on embeddings and on the output of every sub-layer, as in section 2.6.3."""
    return model(dropout=rate, embedding_dropout=rate)


# The thesis' small and big models; the base model is the default.
_SMALL = model(size=256, feed_forward_size=1024, heads=4)
_BIG = model(size=1024, feed_forward_size=4096, heads=16)
_EN_RO = (
    _PUBLISHED_TRAINING
    | _dropped(0.2)
    | model(tie="all")
    | training(learning_rate=0.001)
    | batches(max_tokens=7250, accumulation=4)
    | search(length_penalty=0.5)
)
_DE_EN = (
    _EN_RO
    | training(learning_rate=0.0015, warmup_updates=2000)
    | batches(max_tokens=7200, accumulation=64)
    | search(length_penalty=0.6)
)
# Chapter 5 without exits; learning rate and warm-up, which it does not give, are as on WMT'15.
_EN_FR = _DE_EN | _dropped(0.1) | training(clip_norm=3.0, average=10) | search(beam=4)
# Section 5.4.1: batches of 8K tokens (on two GPUs together: its 50K updates are 78 epochs, as in
# table 3.3); settings that it does not give are as in table 3.7.
_EXITS_DE_EN = (
    _PUBLISHED_TRAINING
    | _SMALL
    | _dropped(0.3)
    | model(encoder_size=512, tie="none", exits="separate")
    | training(clip_norm=3.0)
)
# The CoNLL paper: 512 features, 4 heads, d_FF left blank. Its counts fit 1024 and three matrices.
_CONLL = (
    _PUBLISHED_TRAINING
    | _dropped(0.3)
    | model(feed_forward_size=1024, heads=4, tie="none")
    | training(learning_rate=5e-4)
)
# The poster gives neither training nor vocabulary; these are as for the base model (2017).
_EN_DE = (
    _PUBLISHED_TRAINING
    | _dropped(0.1)
    | training(learning_rate=7e-4, max_updates=100000)
    | batches(max_tokens=6250, accumulation=4)
    | search(beam=4, length_penalty=0.6)
)
# Depth of the encoder -> the poster's count. The counts grow by 4.25M per encoder block, but with a
# d_FF of 2048 a block has 3.15M, which no vocabulary explains. d_FF = 3072 with 37K types on each
# side and a tied classifier gives 94.6M, 119.8M, 136.6M and 153.4M.
_POSTER_COUNTS = {6: 94e6, 12: 120e6, 16: 137e6, 20: 154e6}

# Models for half an hour of one CPU core: small, so that they see each sentence often.
_CORE = (
    HALF_HOUR
    | _dropped(0.2)
    | model(size=128, feed_forward_size=256, heads=4, norm="pre")
    | model(encoder_depth=4, decoder_depth=4)
    | training(learning_rate=0.005, warmup_fraction=0.08)
)
# The best of recipes/tune.sh for this model (recipes/records/tune-multi30k-3-transformer.json).
_TUNED = _CORE | training(optimiser="muon", learning_rate=0.006) | _dropped(0.3)
_TOY = toy(
    model(encoder_depth=2, decoder_depth=2, size=128, feed_forward_size=256, heads=4), 0.003, 1200
)


TRANSFORMER = (
    _TOY,
    Preset(
        "toy-transparent",
        "the toy preset with transparent attention over 12 encoder blocks, d=96",
        _TOY.settings | model(encoder_depth=12, size=96, transparent=True),
    ),
    Preset(
        "toy-exits",
        "the toy preset with six pre-norm decoder blocks, each with an exit",
        _TOY.settings
        | model(decoder_depth=6, norm="pre", exits="tied")
        | training(learning_rate=0.002),
    ),
    Preset(
        "multi30k",
        "Multi30k De-En, half an hour of one core: d=128, 4+4 blocks",
        _TUNED,
    ),
    two_hours(_TUNED),
    # An encoder three times as deep, at a slightly lower rate, and the same depth without
    # transparent attention.
    Preset(
        "multi30k-transparent",
        "Multi30k De-En, half an hour of one core: transparent attention over 12 pre-norm blocks",
        _CORE | model(encoder_depth=12, transparent=True) | training(learning_rate=0.004),
    ),
    Preset(
        "multi30k-deep",
        "multi30k-transparent without transparent attention, post-norm (recipes/transparent.sh)",
        _CORE | _dropped(0.1) | model(norm="post", encoder_depth=12),
    ),
    Preset(
        "multi30k-exits",
        "the multi30k preset with six decoder blocks, each with an exit",
        _TUNED | model(decoder_depth=6, exits="tied"),
    ),
    Preset(
        "iwslt14-de-en",
        "table 3.7: small (d=256, d_FF=1024, 4 heads, 6+6 blocks)",
        _PUBLISHED_TRAINING | _SMALL | _dropped(0.3),
        (8848, 6632),
        15.0e6,
    ),
    Preset(
        "iwslt14-de-en-exits",
        "section 5.4.1: small, with an encoder of d=512 and a separate classifier for each exit",
        _EXITS_DE_EN,
        (8800, 6600),
    ),
    Preset(
        "iwslt14-de-en-v1",
        "CoNLL table 3, joint BPE (published: 46M). d_FF=1024 without weight sharing is an "
        "assumption, which agrees with the published counts",
        _CONLL,
        (12000, 8800),
    ),
    Preset("iwslt14-de-en-v2", "CoNLL table 3, separate BPE", _CONLL, (13300, 13800), 52e6),
    Preset(
        "iwslt14-de-en-base",
        "CoNLL paper, first version: base without weight sharing or label smoothing",
        _CONLL
        | _dropped(0.2)
        | model(feed_forward_size=2048, heads=8)
        | objective(label_smoothing=0.0)
        | training(initial_learning_rate=1e-5)
        | search(length_penalty=0.0),
        (12000, 8800),
        59e6,
    ),
    Preset(
        "iwslt15-en-vi",
        "table 3.8: small, on words",
        _PUBLISHED_TRAINING | _SMALL | _dropped(0.2),
        (17192, 7710),
    ),
    Preset(
        "iwslt15-en-vi-base",
        "table 3.8: base with d_FF=1024, on words",
        _PUBLISHED_TRAINING | _dropped(0.3) | model(feed_forward_size=1024),
        (17192, 7710),
        44.2e6,
    ),
    Preset(
        "wmt16-en-ro",
        "table 3.8: small, joint vocabulary of 35K, all embeddings shared",
        _EN_RO | _SMALL,
        (35000, 35000),
        20.0e6,
    ),
    Preset("wmt16-en-ro-base", "as wmt16-en-ro: base", _EN_RO, (35000, 35000), 62.0e6),
    Preset(
        "wmt15-de-en",
        "table 3.8: base, joint vocabulary of 32K, all embeddings shared",
        _DE_EN,
        (32000, 32000),
        60.5e6,
    ),
    Preset("wmt15-de-en-small", "as wmt15-de-en: small", _DE_EN | _SMALL, (32000, 32000), 19.3e6),
    Preset("wmt15-de-en-big", "section 4.5: as wmt15-de-en, big", _DE_EN | _BIG, (32000, 32000)),
    Preset(
        "wmt14-en-fr",
        "chapter 5 without exits: big, joint vocabulary of 44K, all embeddings shared",
        _EN_FR | _BIG,
        (44000, 44000),
    ),
    Preset(
        "wmt14-en-fr-exits",
        "section 5.4.1: wmt14-en-fr with an exit after each decoder block, one shared classifier",
        _EN_FR | _BIG | model(exits="tied"),
        (44000, 44000),
    ),
    Preset("wmt14-en-fr-base", "as wmt14-en-fr: base", _EN_FR, (44000, 44000)),
    *(
        Preset(
            f"wmt14-en-de-{kind}{depth}",
            f"poster, {'transparent attention' if kind else 'baseline'}, {depth} encoder blocks. "
            "d_FF=3072, vocabularies of 37K and a tied classifier are assumptions, which agree "
            "with the four published counts",
            _EN_DE | model(feed_forward_size=3072, encoder_depth=depth, transparent=bool(kind)),
            (37000, 37000),
            count,
        )
        for kind in ("transparent-", "")
        for depth, count in _POSTER_COUNTS.items()
    ),
    Preset(
        "wmt14-en-de-big",
        "poster, baseline, big. d_FF=8192 and vocabularies of 32K without weight sharing are "
        "assumptions, which agree with the published count",
        _EN_DE | _BIG | _dropped(0.3) | model(feed_forward_size=8192, tie="none"),
        (32000, 32000),
        375e6,
    ),
)
