"""Configurations and presets of image captioning models (appendix E.3.1)."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from nmtgrid.base.config import BELOW_1, FROM_1, between
from nmtgrid.models.config_checks import ModelConfig
from nmtgrid.models.presets import Preset, batches, model, objective, search, training

_DEPTH = between(1, 100)


@dataclasses.dataclass(frozen=True)
class CaptionConfig(ModelConfig):
    """Settings shared by both captioning models."""

    size: Annotated[int, FROM_1] = 512
    """Size of a state."""
    embedding_size: Annotated[int | None, FROM_1] = None
    """Size of an embedding; none: `size`."""
    tie: Literal["none", "target"] = "none"
    """Shared weight matrices: `none`; or `target`, the embeddings and the classifier, with a linear
    map in between if their sizes differ."""
    output_bias: bool = True
    """Whether the classifier has a bias."""
    embedding_dropout: Annotated[float, BELOW_1] = 0.0
    """Dropout on embeddings."""
    output_dropout: Annotated[float, BELOW_1] = 0.3
    """Dropout on the input of the classifier."""

    @property
    def embedded(self) -> int:
        """Features of an embedding."""
        return self.embedding_size or self.size

    @property
    def classified(self) -> int:
        """Features that the classifier reads."""
        return self.size if self.tie == "none" else self.embedded


@dataclasses.dataclass(frozen=True)
class CaptionLSTMConfig(CaptionConfig):
    """Configuration of an LSTM that sees the picture once (Vinyals et al., 2015)."""

    depth: Annotated[int, _DEPTH] = 1
    """Layers of the LSTM."""
    picture: Literal["input", "state"] = "input"
    """How the model sees the picture: as its first input, or as its initial states."""
    dropout: Annotated[float, BELOW_1] = 0.0
    """Dropout between layers."""


@dataclasses.dataclass(frozen=True)
class CaptionTopDownConfig(CaptionConfig):
    """Configuration of two LSTMs with attention over regions (Anderson et al., 2018)."""

    attention_size: Annotated[int | None, FROM_1] = None
    """Size of the hidden layer that scores regions against the state; none: `size`."""

    @property
    def compared(self) -> int:
        return self.attention_size or self.size


# A beam of 3, as in table E.1; the text does not give the length of training. There is no maximum
# length, because it would also limit the number of regions.
_MSCOCO = (
    objective(label_smoothing=0.0)
    | training(learning_rate=5e-4, schedule="cosine", warmup_updates=1000, max_updates=120000)
    | training(clip_norm=5.0)
    | batches(max_tokens=1200, max_length=0)
    | search(beam=3, length_penalty=0.0)
)
_TOY = (
    model(size=128)
    | _MSCOCO
    | training(learning_rate=0.004, warmup_updates=100, max_updates=2000)
    | batches(max_tokens=1500)
)
# The "source vocabulary" of a picture counts its features, so that a model's two sizes mean the
# same everywhere.
_TYPES = (2048 + 4, 9800 + 4)
"""Features of a region, and words that occur five times or more; both with the special symbols."""

CAPTION_LSTM = (
    Preset(
        "toy-pictures",
        "the embedded toy pictures, in two minutes of one CPU core",
        _TOY | model(output_dropout=0.2),
    ),
    Preset(
        "mscoco",
        "table E.1 without attention: an LSTM and embeddings of 512, as in Vinyals et al. (2015)",
        _MSCOCO | model(size=512, output_dropout=0.3),
        _TYPES,
    ),
)

CAPTION_TOP_DOWN = (
    Preset(
        "toy-pictures",
        "the embedded toy pictures, in a few minutes of one CPU core",
        _TOY | model(attention_size=64, output_dropout=0.2),
    ),
    Preset(
        "mscoco",
        "table E.1 with attention: LSTMs and embeddings of 1000, attention of 512, as in Anderson "
        "et al. (2018)",
        _MSCOCO | model(size=1000, attention_size=512, output_dropout=0.3),
        _TYPES,
    ),
)
