"""Presets of ConvS2S (thesis section 3.3.1 and tables 3.7 and 3.11, CoNLL table 3)."""

from __future__ import annotations

from typing import Any

from nmtgrid.models.presets import HALF_HOUR, Preset

# Gehring et al. (2017), section 4.2, and the CoNLL paper: the rate falls to a tenth whenever an
# epoch brings no improvement.
_PUBLISHED_TRAINING: dict[str, Any] = {
    "model.residual": "layer",
    "training.optimiser": "nesterov",
    "training.learning_rate": 0.25,
    "training.momentum": 0.99,
    "training.weight_decay": 0.0,
    "training.clip_norm": 0.1,
    "training.schedule": "plateau",
    "training.warmup_updates": 0,
    "training.decay_factor": 0.1,
    "training.decay_patience": 1,
    "training.patience": 5,
    "training.max_updates": 0,
    "training.max_epochs": 80,
    "objective.label_smoothing": 0.1,
    "batches.max_tokens": 4000,
    "batches.max_length": 175,
    "search.beam": 5,
    "search.length_penalty": 1.0,
}

# The CoNLL paper, as in its first version: a shallower decoder, dropout 0.2, a classifier of its
# own (which is what its counts fit), maximum likelihood, search without penalties.
_CONLL: dict[str, Any] = {
    **_PUBLISHED_TRAINING,
    "model.decoder_depth": 12,
    "model.tie": "none",
    "model.dropout": 0.2,
    "model.embedding_dropout": 0.2,
    "model.output_dropout": 0.2,
    "objective.label_smoothing": 0.0,
    "search.length_penalty": 0.0,
}

_SMALL: dict[str, Any] = {
    **HALF_HOUR,
    "model.encoder_depth": 5,
    "model.decoder_depth": 5,
    "model.size": 160,
    "model.embedding_size": 160,
    "model.max_positions": 256,
    "model.dropout": 0.2,
    "model.embedding_dropout": 0.2,
    "model.output_dropout": 0.2,
    "training.learning_rate": 0.003,
}

CONVS2S = (
    Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        {
            "model.encoder_depth": 3,
            "model.decoder_depth": 3,
            "model.size": 128,
            "model.embedding_size": 128,
            "model.max_positions": 128,
            "model.dropout": 0.1,
            "model.embedding_dropout": 0.1,
            "model.output_dropout": 0.1,
            "objective.label_smoothing": 0.1,
            "training.learning_rate": 0.003,
            "training.schedule": "cosine",
            "training.warmup_updates": 100,
            "training.max_updates": 1500,
            "batches.max_tokens": 1500,
            "search.beam": 5,
        },
    ),
    Preset("multi30k", "Multi30k De-En, thirty minutes of one CPU core", _SMALL),
    Preset(
        "iwslt14-de-en",
        "table 3.7: 16+16 layers of width 3, dropout 0.3, trained as Gehring et al. (2017) do",
        _PUBLISHED_TRAINING,
        (8848, 6632),
        19.5e6,
    ),
    Preset(
        "iwslt14-de-en-conll",
        "CoNLL table 3, first version: 16+12 layers. Its 21M and 22M fit a classifier of its own",
        _CONLL,
        (12000, 8800),
        21e6,
    ),
    Preset(
        "iwslt14-en-de-conll",
        "CoNLL table 3, the other direction",
        _CONLL,
        (8800, 12000),
        22e6,
    ),
    Preset(
        "wmt16-en-ro",
        "table 3.11 (Gehring et al., 2017): 20+20 layers of 512; its 111.5M fit 35K types a side "
        "(the table says 40K) and a classifier tied to the target embeddings",
        {
            **_PUBLISHED_TRAINING,
            "model.encoder_depth": 20,
            "model.decoder_depth": 20,
            "model.size": 512,
            "model.embedding_size": 512,
            "model.dropout": 0.2,
            "model.embedding_dropout": 0.2,
            "model.output_dropout": 0.2,
            "objective.label_smoothing": 0.0,
            "batches.accumulation": 2,
        },
        (35000, 35000),
        111.5e6,
    ),
)
