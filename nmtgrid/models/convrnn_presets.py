"""Presets of the convolution-to-recurrent model (book chapter 7.1, which gives no figures)."""

from __future__ import annotations

from typing import Any

from nmtgrid.models.presets import HALF_HOUR, Preset

_SMALL: dict[str, Any] = {
    **HALF_HOUR,
    "model.cell": "lstm",
    "model.encoder_depth": 2,
    "model.size": 256,
    "model.dropout": 0.2,
    "model.embedding_dropout": 0.2,
    "model.output_dropout": 0.3,
    "training.learning_rate": 0.002,
}

_TOY: dict[str, Any] = {
    "model.size": 128,
    "model.encoder_depth": 2,
    "model.cell": "lstm",
    "model.dropout": 0.1,
    "model.embedding_dropout": 0.1,
    "model.output_dropout": 0.1,
    "objective.label_smoothing": 0.1,
    "training.learning_rate": 0.004,
    "training.schedule": "cosine",
    "training.warmup_updates": 100,
    "training.max_updates": 1500,
    "batches.max_tokens": 1500,
    "search.beam": 5,
}

CONVRNN = (
    Preset("toy", "the embedded synthetic corpus, in under two minutes on two CPU cores", _TOY),
    Preset(
        "multi30k",
        "Multi30k De-En, thirty minutes of one CPU core; an LSTM where 2013 had a plain network",
        _SMALL,
    ),
    Preset(
        "multi30k-sentence",
        "the same through one vector for a sentence (figure 7.1), with a plain recurrent network",
        {
            **_SMALL,
            "model.form": "sentence",
            "model.cell": "plain",
            "model.encoder_depth": 4,
            "model.merge": 4,
        },
    ),
    Preset(
        "iwslt14-de-en",
        "IWSLT'14 De-En; the chapter gives no figures, these sizes are those of the thesis",
        {
            "model.cell": "lstm",
            "model.size": 256,
            "model.encoder_depth": 3,
            "model.dropout": 0.2,
            "model.embedding_dropout": 0.2,
            "model.output_dropout": 0.3,
            "training.learning_rate": 0.001,
            "training.schedule": "inverse-sqrt",
            "training.warmup_updates": 4000,
            "training.max_updates": 50000,
            "objective.label_smoothing": 0.1,
            "batches.max_tokens": 4000,
            "batches.max_length": 175,
            "search.beam": 5,
            "search.length_penalty": 1.0,
        },
        (8848, 6632),
    ),
)
