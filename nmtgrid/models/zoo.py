"""The model zoo: every architecture under its name, with its config dataclass and presets.

The command line, model directories and converters build all their models here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nmtgrid.base import own_code
from nmtgrid.base.config import Registry, from_json, override
from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.models.api import Traits, TranslationModel
from nmtgrid.models.bilstm import BiLSTM
from nmtgrid.models.bilstm_config import BILSTM, BiLSTMConfig
from nmtgrid.models.captioning.config import (
    CAPTION_LSTM,
    CAPTION_TOP_DOWN,
    CaptionLSTMConfig,
    CaptionTopDownConfig,
)
from nmtgrid.models.captioning.model import CaptionLSTM
from nmtgrid.models.captioning.top_down import CaptionTopDown
from nmtgrid.models.convrnn import ConvRNN
from nmtgrid.models.convrnn_config import CONVRNN, ConvRNNConfig
from nmtgrid.models.convs2s import ConvS2S
from nmtgrid.models.convs2s_config import CONVS2S, ConvS2SConfig
from nmtgrid.models.pervasive.config import PERVASIVE, PervasiveConfig
from nmtgrid.models.pervasive.densenet import PervasiveDensenet
from nmtgrid.models.pervasive.densenet_config import PERVASIVE_DENSENET, PervasiveDensenetConfig
from nmtgrid.models.pervasive.model import PervasiveAttention
from nmtgrid.models.presets import Preset
from nmtgrid.models.transformer.config import TRANSFORMER, TransformerConfig
from nmtgrid.models.transformer.model import Transformer


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture: its config dataclass, its constructor, and its presets by name."""

    name: str
    summary: str
    config: type[Any]
    make: Callable[[Any, int, int], TranslationModel]
    presets: Mapping[str, Preset]
    of_pictures: bool = False
    """Its sources are pictures, not text."""

    @property
    def is_own(self) -> bool:
        """Whether its constructor is a user's, not the toolkit's."""
        return not getattr(self.make, "__module__", "").startswith("nmtgrid.")


# Filled at the end of this module; own architectures are added by `register` (docs).
_ARCHITECTURES: Registry[Architecture] = Registry("architecture", own_code.ADVICE)


def register(
    name: str,
    summary: str,
    config: type[Any],
    make: Callable[[Any, int, int], TranslationModel],
    presets: Sequence[Preset],
    *,
    of_pictures: bool = False,
) -> None:
    """Add an architecture to the zoo.

    Raises TypeError if `config` is not a dataclass or lacks a default, or if `make` cannot be
    called with (config, source_types, target_types).
    """
    own_code.check_dataclass(config, f"the config of {name!r}")
    parameters = ("config", "source_types", "target_types")
    own_code.check_callable(make, f"the model of {name!r}", *parameters)
    by_name = {preset.name: preset for preset in presets}
    _ARCHITECTURES.add(name, Architecture(name, summary, config, make, by_name, of_pictures))


def architectures() -> Registry[Architecture]:
    """Return the registry of architectures, by name."""
    return _ARCHITECTURES


def text_architectures() -> list[str]:
    """Return the names of the architectures that translate text."""
    return [name for name in _ARCHITECTURES if not _ARCHITECTURES.get(name).of_pictures]


def presets(arch: str) -> Mapping[str, Preset]:
    """Return the presets of `arch` by name. Raises ConfigError for an unknown architecture."""
    return _ARCHITECTURES.get(arch).presets


def preset(arch: str, name: str) -> Preset:
    """Return a preset. Raises ConfigError naming the nearest known one."""
    by_name = presets(arch)
    if name not in by_name:
        raise ConfigError(f"`{arch}` has no preset `{name}`.", nearest(name, by_name))
    return by_name[name]


def configure(
    arch: str,
    preset_name: str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] | None = None,
) -> Any:
    """Return the config of `arch`: its defaults, changed by a preset, then by `overrides`.

    `overrides` name the model's own settings ("depth", not "model.depth").
    Raises ConfigError that lists every invalid setting.
    """
    config = _ARCHITECTURES.get(arch).config()
    if preset_name is not None:
        config = override(config, preset(arch, preset_name).section("model"))
    return override(config, overrides or {})


def build(
    arch: str,
    preset: str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    source_vocab_size: int,
    target_vocab_size: int,
) -> TranslationModel:
    """Return a new model of the zoo with random weights.

    The sizes count the special symbols. `overrides` name the model's own settings, with or without
    the prefix "model.". Raises ConfigError for unknown names and invalid values.
    """
    # The command line's names have the prefix; `configure` expects them without it.
    settings = overrides or {}
    if isinstance(settings, Mapping):
        settings = {name.removeprefix("model."): value for name, value in settings.items()}
    else:
        settings = [text.removeprefix("model.") for text in settings]
    config = configure(arch, preset, settings)
    return from_config(arch, config, source_vocab_size, target_vocab_size)


def from_config(
    arch: str, config: Any, source_vocab_size: int, target_vocab_size: int
) -> TranslationModel:
    """Return a new model for a config (or its JSON). Raises ConfigError if this is impossible."""
    architecture = _ARCHITECTURES.get(arch)
    if isinstance(config, Mapping):
        config = from_json(architecture.config, config, "model.")
    # Checked here because a config does not know the vocabularies; captioning has no such option.
    if getattr(config, "tie", None) == "all" and source_vocab_size != target_vocab_size:
        raise ConfigError(
            "`model.tie` all shares one matrix between both languages, but the vocabularies have "
            f"{source_vocab_size:,} and {target_vocab_size:,} types.",
            "Build a joint vocabulary (`nmtgrid bpe learn DATA --joint-vocabulary`), or set "
            "`model.tie=target`.",
        )
    try:
        model = architecture.make(config, source_vocab_size, target_vocab_size)
    except (RuntimeError, TypeError, OverflowError) as fault:
        # Only torch's error for a tensor with more elements than it can count.
        if not isinstance(fault, OverflowError) and "overflow" not in str(fault).lower():
            raise
        raise ConfigError(
            "A model of these sizes is too large for any machine.",
            "Use smaller vocabularies, or smaller sizes in `model.*`.",
        ) from fault
    _check_model(arch, model)
    return model


def _check_model(arch: str, model: Any) -> None:
    """Raise ConfigError if a model lacks a part that every model must have."""
    name = type(model).__name__
    if not isinstance(model, TranslationModel):
        raise ConfigError(
            f"The architecture `{arch}` has made a `{name}`, which is not a model.",
            f"Write `class {name}(TranslationModel)` (nmtgrid.models.api).",
        )
    # Model directories store this name: under another they could not be loaded.
    own_name = getattr(model, "architecture", None)
    if own_name != arch:
        calls = "has no name" if own_name is None else f"calls itself `{own_name}`"
        raise ConfigError(
            f"The architecture registered as `{arch}` {calls}.",
            f'Write `architecture = "{arch}"` in the class `{name}`.',
        )
    for attribute, kind, text in (("traits", Traits, "Traits()"), ("config", object, "config")):
        if not isinstance(getattr(model, attribute, None), kind):
            raise ConfigError(
                f"The model `{name}` of the architecture `{arch}` has no `{attribute}`.",
                f"Write `self.{attribute} = {text}` in its constructor.",
            )
    methods = ("features", "begin", "step", "report")
    own_code.check_methods(model, f"the model `{name}`", TranslationModel, methods)


register(
    "pervasive",
    "Pervasive Attention: a causal 2-D convolutional network over the source-target grid",
    PervasiveConfig,
    PervasiveAttention,
    PERVASIVE,
)
register(
    "pervasive-densenet",
    "Pervasive Attention of the CoNLL paper: a masked DenseNet with batch norm over the grid",
    PervasiveDensenetConfig,
    PervasiveDensenet,
    PERVASIVE_DENSENET,
)
register(
    "transformer",
    "Transformer: encoder and decoder of attention blocks, transparent attention as an option",
    TransformerConfig,
    Transformer,
    TRANSFORMER,
)
register(
    "bilstm",
    "Bi-LSTM (RNNsearch): a bi-directional LSTM encoder, an LSTM decoder with attention",
    BiLSTMConfig,
    BiLSTM,
    BILSTM,
)
register(
    "convs2s",
    "ConvS2S: gated 1-D convolutions on both sides, attention in each decoder layer",
    ConvS2SConfig,
    ConvS2S,
    CONVS2S,
)
register(
    "convrnn",
    "Convolution-to-recurrent: growing kernels, a transfer, a predicted length, a recurrent net",
    ConvRNNConfig,
    ConvRNN,
    CONVRNN,
)
register(
    "caption-lstm",
    "Captions of pictures: an LSTM that sees the mean region once, without attention",
    CaptionLSTMConfig,
    CaptionLSTM,
    CAPTION_LSTM,
    of_pictures=True,
)
register(
    "caption-top-down",
    "Captions of pictures: an attention LSTM over regions below a language LSTM",
    CaptionTopDownConfig,
    CaptionTopDown,
    CAPTION_TOP_DOWN,
    of_pictures=True,
)
