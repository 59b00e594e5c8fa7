"""Presets of the Transformer (section 2.6.3, tables 3.3, 3.7 and 3.8)."""

from __future__ import annotations

from nmtgrid.models.presets.preset import Preset

TRANSFORMER = (
    Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        {
            "model.encoder_depth": 2,
            "model.decoder_depth": 2,
            "model.size": 128,
            "model.feed_forward_size": 256,
            "model.heads": 4,
            "objective.label_smoothing": 0.1,
            "training.learning_rate": 0.003,
            "training.schedule": "cosine",
            "training.warmup_updates": 100,
            "training.max_updates": 1200,
            "batches.max_tokens": 1500,
            "search.beam": 5,
        },
    ),
)
