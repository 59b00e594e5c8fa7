"""Presets of the Bi-LSTM (thesis section 3.3.1, CoNLL paper section 4.1, appendix E)."""

from __future__ import annotations

from typing import Any

from nmtgrid.models.presets import HALF_HOUR, Preset

# Section 3.3.1 and table 3.3; clipping is not in the text.
_PUBLISHED_TRAINING: dict[str, Any] = {
    "training.learning_rate": 0.002,
    "training.schedule": "inverse-sqrt",
    "training.warmup_updates": 4000,
    "training.beta2": 0.98,
    "training.weight_decay": 1e-4,
    "training.clip_norm": 5.0,
    "training.max_updates": 50000,
    "objective.label_smoothing": 0.1,
    "batches.max_tokens": 4000,
    "batches.accumulation": 2,
    "batches.max_length": 175,
    "search.beam": 5,
    "search.length_penalty": 1.0,
}

# The CoNLL paper's first version: one layer each, embeddings of 128, a decoder of 256, dropout 0.2
# on the inputs of both sides and before the classifier, maximum likelihood. Its batches are not in
# the text.
_CONLL: dict[str, Any] = {
    **_PUBLISHED_TRAINING,
    "model.encoder_depth": 1,
    "model.decoder_depth": 1,
    "model.size": 128,
    "model.decoder_size": 256,
    "model.dropout": 0.0,
    "model.embedding_dropout": 0.2,
    "model.output_dropout": 0.2,
    "training.learning_rate": 0.0005,
    "training.beta2": 0.999,
    "training.weight_decay": 0.0,
    "training.schedule": "plateau",
    "training.decay_factor": 0.8,
    "training.decay_patience": 3,
    "training.decay_threshold": 0.01,
    "training.warmup_updates": 0,
    "training.max_updates": 0,
    "training.max_epochs": 40,
    "training.validate_epochs": 0,
    "training.validate_updates": 8000,
    "objective.label_smoothing": 0.0,
    "batches.accumulation": 1,
    "search.length_penalty": 0.0,
}

_SMALL: dict[str, Any] = {
    **HALF_HOUR,
    "model.size": 192,
    "model.dropout": 0.25,
    "model.embedding_dropout": 0.25,
    "model.output_dropout": 0.25,
    "training.learning_rate": 0.003,
}

BILSTM = (
    Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        {
            "model.encoder_depth": 1,
            "model.decoder_depth": 1,
            "model.size": 128,
            "model.dropout": 0.1,
            "model.embedding_dropout": 0.1,
            "model.output_dropout": 0.1,
            "objective.label_smoothing": 0.1,
            "training.learning_rate": 0.005,
            "training.schedule": "cosine",
            "training.warmup_updates": 100,
            "training.max_updates": 1000,
            "batches.max_tokens": 1500,
            "search.beam": 5,
        },
    ),
    Preset("multi30k", "Multi30k De-En, thirty minutes of one CPU core", _SMALL),
    Preset(
        "iwslt14-de-en",
        "table 3.7: two layers, d=256, trained as table 3.3 says",
        _PUBLISHED_TRAINING,
        (8848, 6632),
        8.50e6,
    ),
    Preset(
        "iwslt14-de-en-conll",
        "CoNLL table 3, first version, RNNsearch: one layer (published: 6M). The text ties the "
        "classifier to the embeddings, which gives 3.7M; the counts fit one of its own",
        {**_CONLL, "model.embedding_size": 128, "model.tie": "none"},
        (12000, 9000),
    ),
    Preset(
        "iwslt14-de-en-conll-tied",
        "the same with the classifier tied to the embeddings, as its text says",
        {**_CONLL, "model.embedding_size": 128},
        (12000, 9000),
    ),
    Preset(
        "wmt14-en-fr",
        "table E.3: the appendix names the model of Bahdanau et al. (2015); its sizes, one layer",
        {
            **_PUBLISHED_TRAINING,
            "model.encoder_depth": 1,
            "model.decoder_depth": 1,
            "model.size": 1000,
            "model.embedding_size": 620,
            "model.dropout": 0.0,
            "model.embedding_dropout": 0.0,
            "model.output_dropout": 0.2,
            "training.learning_rate": 0.001,
            "batches.accumulation": 1,
            "batches.max_length": 50,
        },
        (30000, 30000),
    ),
)
