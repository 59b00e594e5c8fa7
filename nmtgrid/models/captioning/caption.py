"""Presets of the models that caption pictures (thesis, appendix E.3.1)."""

from __future__ import annotations

from typing import Any

from nmtgrid.models.presets import Preset

# Beams of three, as table E.1 has them; how long training took is not told. No limit of length: it
# would be one of regions, too.
_MSCOCO: dict[str, Any] = {
    "objective.label_smoothing": 0.0,
    "training.learning_rate": 5e-4,
    "training.schedule": "cosine",
    "training.warmup_updates": 1000,
    "training.max_updates": 120000,
    "training.clip_norm": 5.0,
    "batches.max_tokens": 1200,
    "batches.max_length": 0,
    "search.beam": 3,
    "search.length_penalty": 0.0,
}
_TOY: dict[str, Any] = {
    "model.size": 128,
    "objective.label_smoothing": 0.0,
    "training.learning_rate": 0.004,
    "training.schedule": "cosine",
    "training.warmup_updates": 100,
    "training.max_updates": 2000,
    "training.clip_norm": 5.0,
    "batches.max_tokens": 1500,
    "batches.max_length": 0,
    "search.beam": 3,
    "search.length_penalty": 0.0,
}
_TYPES = (2048 + 4, 9800 + 4)
"""Features of a region and words that come five times, each with the special symbols."""

CAPTION_LSTM = (
    Preset(
        "toy-pictures",
        "the embedded toy pictures, in two minutes of one CPU core",
        {**_TOY, "model.output_dropout": 0.2},
    ),
    Preset(
        "mscoco",
        "table E.1 without attention: the sizes of Vinyals et al. (2015), an LSTM and embeddings "
        "of 512",
        {**_MSCOCO, "model.size": 512, "model.output_dropout": 0.3},
        _TYPES,
    ),
)

CAPTION_TOP_DOWN = (
    Preset(
        "toy-pictures",
        "the embedded toy pictures, in a few minutes of one CPU core",
        {**_TOY, "model.attention_size": 64, "model.output_dropout": 0.2},
    ),
    Preset(
        "mscoco",
        "table E.1 with attention: the sizes of Anderson et al. (2018), LSTMs and embeddings of "
        "1000, attention of 512",
        {
            **_MSCOCO,
            "model.size": 1000,
            "model.attention_size": 512,
            "model.output_dropout": 0.3,
        },
        _TYPES,
    ),
)
