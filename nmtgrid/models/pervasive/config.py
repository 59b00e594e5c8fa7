"""Presets of Pervasive Attention (thesis chapter 3)."""

from __future__ import annotations

from typing import Any

from nmtgrid.models.presets import HALF_HOUR, PUBLISHED, Preset

# What the published checkpoint does beyond the text, and how it was trained.
_PUBLISHED_TRAINING: dict[str, Any] = {
    **PUBLISHED,
    "batches.max_tokens": 4200,
    "batches.max_length": 100,
}
_IWSLT14 = {**_PUBLISHED_TRAINING, "model.output_map": True}
_IWSLT14_TYPES = (8848, 6632)

# The text alone: Eq. (3.1) without positions, scaling or bias, every layer's output accumulated,
# pairs of up to 175 tokens. Clipping and weight decay, of which it is silent, are the checkpoint's.
_PRINTED = {
    **_PUBLISHED_TRAINING,
    "model.positions": "none",
    "model.scale_embeddings": False,
    "model.grid_bias": False,
    "model.output_bias": False,
    "model.accumulate": "layers",
    "model.accumulate_scale": "square-root",
    "batches.max_length": 175,
}


# An hour of two CPU cores.
_HOUR: dict[str, Any] = {
    **HALF_HOUR,
    "model.depth": 8,
    "model.size": 128,
    "model.feed_forward_size": 256,
    "model.target_kernel": 5,
    "model.source_kernel": 5,
    "model.aggregation": "gated-max",
    "model.accumulate_scale": "square-root",
    "model.output_map": True,
    "model.dropout": 0.2,
    "model.embedding_dropout": 0.2,
    "model.output_dropout": 0.2,
    "training.learning_rate": 0.004,
    "training.clock": "wall",
    "training.max_minutes": 59.0,
    "training.validate_minutes": 8.0,
    "batches.max_cells": 24000,
}
# Half an hour of one core, as every architecture's `multi30k` has it.
_SMALL: dict[str, Any] = {
    **_HOUR,
    "model.depth": 5,
    "model.size": 96,
    "model.feed_forward_size": 192,
    "model.target_kernel": 7,
    "model.source_kernel": 7,
    "model.dropout": 0.15,
    "model.embedding_dropout": 0.15,
    "model.output_dropout": 0.15,
    "training.clock": HALF_HOUR["training.clock"],
    "training.max_minutes": HALF_HOUR["training.max_minutes"],
    "training.validate_minutes": HALF_HOUR["training.validate_minutes"],
}


def _table(name: str, description: str, parameters: float, **model: Any) -> Preset:
    """Return a row of table 3.4 or 3.5: pairs of at most 75 tokens."""
    changed = {f"model.{key}": value for key, value in model.items()}
    settings = {**_IWSLT14, "batches.max_length": 75, **changed}
    return Preset(f"iwslt14-de-en-{name}", description, settings, _IWSLT14_TYPES, parameters)


PERVASIVE = (
    Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        {
            "model.depth": 3,
            "model.size": 96,
            "model.feed_forward_size": 192,
            "model.target_kernel": 7,
            "model.source_kernel": 7,
            "model.aggregation": "gated-max",
            "model.accumulate_scale": "square-root",
            "model.output_map": True,
            "model.dropout": 0.05,
            "model.embedding_dropout": 0.05,
            "model.output_dropout": 0.05,
            "objective.label_smoothing": 0.1,
            "training.learning_rate": 0.004,
            "training.schedule": "cosine",
            "training.warmup_updates": 100,
            "training.max_updates": 650,
            "batches.max_tokens": 1500,
            "batches.max_cells": 20000,
            "search.beam": 5,
        },
    ),
    Preset("multi30k", "Multi30k De-En, half an hour of one core: N=5, d=96, 7x7", _SMALL),
    Preset(
        "multi30k-hour",
        "Multi30k De-En, an hour on two CPU cores: N=8, d=128, 5x5",
        _HOUR,
    ),
    Preset(
        "iwslt14-de-en-small",
        "IWSLT'14 De-En on two CPU cores: the multi30k-hour model, as long as --max-minutes says",
        {
            **_HOUR,
            "model.target_kernel": 7,
            "model.source_kernel": 7,
            "model.dropout": 0.1,
            "model.embedding_dropout": 0.1,
            "model.output_dropout": 0.1,
        },
    ),
    Preset(
        "iwslt14-de-en",
        "table 3.7: N=14, 11x11, cumulative, attention, as the published checkpoint",
        _IWSLT14,
        _IWSLT14_TYPES,
        12.9e6,
    ),
    Preset(
        "iwslt14-de-en-printed",
        "table 3.7 by the text alone: no positions, no scaling, every layer accumulated",
        _PRINTED,
        _IWSLT14_TYPES,
        12.9e6,
    ),
    _table("dense", "table 3.4", 7.1e6, skip="dense", aggregation="max"),
    _table(
        "dense-without-norm", "table 3.4", 7.1e6, skip="dense", aggregation="max", dense_norm=False
    ),
    _table("residual", "table 3.4", 12.8e6, skip="residual", aggregation="max"),
    _table("residual-norm", "table 3.4", 12.8e6, skip="residual-norm", aggregation="max"),
    _table("residual-gated", "table 3.4", 12.8e6, skip="residual-gated", aggregation="max"),
    _table("max", "tables 3.4 (residual-cumulative) and 3.5", 12.8e6, aggregation="max"),
    _table("average", "table 3.5", 12.8e6, aggregation="average"),
    _table("gated-max", "table 3.5", 12.9e6, aggregation="gated-max"),
    _table("attention", "table 3.5", 12.9e6, aggregation="attention"),
    Preset(
        "iwslt15-en-vi",
        "table 3.8: words, N=14, 11x11, cumulative, attention",
        {**_PUBLISHED_TRAINING},
        (17192, 7710),
        15.2e6,
    ),
    Preset(
        "wmt16-en-ro",
        "table 3.8: 35K joint types, the three matrices tied",
        {
            **_PUBLISHED_TRAINING,
            "model.tie": "all",
            "training.learning_rate": 0.001,
            "batches.max_tokens": 7250,
            "batches.accumulation": 4,
            "search.length_penalty": 0.5,
        },
        (35000, 35000),
        17.9e6,
    ),
    Preset(
        "wmt15-de-en",
        "table 3.8: d=512, d_FF=2048, N=16, 32K joint types, the three matrices tied. "
        "With embeddings of size d the count would be 55.7M; 296 gives the published 49.0M",
        {
            **_PUBLISHED_TRAINING,
            "model.depth": 16,
            "model.size": 512,
            "model.embedding_size": 296,
            "model.feed_forward_size": 2048,
            "model.tie": "all",
            "training.learning_rate": 0.0015,
            "training.warmup_updates": 2000,
            "batches.max_tokens": 7200,
            "batches.accumulation": 64,
            "search.length_penalty": 0.6,
        },
        (32000, 32000),
        49.0e6,
    ),
)
