"""Presets of the Pervasive Attention of the CoNLL paper: both versions' set-ups, its tables."""

from __future__ import annotations

from typing import Any

from nmtgrid.models.presets.preset import Preset

# The ablations of section 4: Adam, decays on plateau, 40 epochs, up to 80 positions.
_ABLATION: dict[str, Any] = {
    "training.optimiser": "adam",
    "training.learning_rate": 0.0005,
    "training.schedule": "plateau",
    "training.warmup_updates": 0,
    "training.beta1": 0.9,
    "training.beta2": 0.999,
    "training.weight_decay": 0.0,
    "training.clip_norm": 5.0,
    "training.decay_factor": 0.8,
    "training.decay_patience": 3,
    "training.validate_updates": 8000,
    "training.validate_epochs": 0,
    "training.max_epochs": 40,
    "training.max_updates": 0,
    "objective.label_smoothing": 0.0,
    "batches.max_tokens": 800,
    "batches.max_length": 80,
    "search.beam": 5,
}
_V1_TYPES = (12000, 8800)
_V2_TYPES = (13300, 13800)

# Models for one or two CPU cores.
_SMALL: dict[str, Any] = {
    "model.depth": 12,
    "model.growth": 32,
    "model.kernel": 3,
    "model.embedding_size": 128,
    "model.dropout": 0.15,
    "model.embedding_dropout": 0.2,
    "model.output_dropout": 0.2,
    "objective.label_smoothing": 0.1,
    "training.learning_rate": 0.003,
    "training.schedule": "cosine-time",
    "training.clock": "processor",
    "training.warmup_fraction": 0.05,
    "training.final_learning_rate": 0.01,
    "training.max_minutes": 30.0,
    "training.max_updates": 0,
    "training.weight_decay": 1e-4,
    "training.clip_norm": 5.0,
    "training.ema_decay": 0.99,
    "training.ema_updates": 4,
    "training.validate_epochs": 0,
    "training.validate_minutes": 6.0,
    "batches.max_tokens": 1500,
    "batches.max_cells": 24000,
    "batches.max_length": 60,
    "search.beam": 5,
    "search.length_penalty": 1.0,
}


def _row(name: str, description: str, parameters: float, **model: Any) -> Preset:
    """Return a row of table 1 or 2."""
    settings = {**_ABLATION, **{f"model.{key}": value for key, value in model.items()}}
    return Preset(f"iwslt14-de-en-{name}", description, settings, _V1_TYPES, parameters)


PERVASIVE_DENSENET = (
    Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        {
            **_SMALL,
            "model.depth": 6,
            "model.growth": 24,
            "model.kernel": 5,
            "model.embedding_size": 96,
            "model.dropout": 0.05,
            "model.embedding_dropout": 0.05,
            "model.output_dropout": 0.05,
            "training.schedule": "cosine",
            "training.clock": "wall",
            "training.warmup_updates": 100,
            "training.max_updates": 650,
            "training.max_minutes": 0.0,
            "training.ema_decay": 0.0,
            "training.validate_minutes": 0.0,
            "training.validate_epochs": 1,
            "batches.max_cells": 20000,
        },
    ),
    Preset("multi30k", "Multi30k De-En, 30 minutes of one CPU core", _SMALL),
)
