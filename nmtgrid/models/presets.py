"""Presets: settings named after the table or the data set that they reproduce.

A preset's keys are dotted setting names, as `--set` takes them. `vocabulary` holds the
publication's numbers of (source, target) types, special symbols included, and `parameters` the
published count at those sizes, where there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named set of settings."""

    name: str
    description: str
    settings: Mapping[str, Any]
    vocabulary: tuple[int, int] | None = None
    parameters: float | None = None

    def section(self, name: str) -> dict[str, Any]:
        """Return the settings below `name.`, without that prefix."""
        prefix = name + "."
        items = self.settings.items()
        return {key[len(prefix) :]: value for key, value in items if key.startswith(prefix)}


PUBLISHED: Mapping[str, Any] = {
    # Inverse square root with 4000 updates of warm-up, as the Transformer was published.
    "training.learning_rate": 0.002,
    "training.schedule": "inverse-sqrt",
    "training.warmup_updates": 4000,
    "training.initial_learning_rate": 1e-7,
    "training.beta1": 0.9,
    "training.beta2": 0.98,
    "training.weight_decay": 1e-4,
    "training.clip_norm": 25.0,
    "training.max_updates": 50000,
    "objective.label_smoothing": 0.1,
    "batches.accumulation": 2,
    "search.beam": 5,
    "search.length_penalty": 1.0,
}
"""How chapter 3 trains its models (section 3.3.1); what the text leaves out is the authors'
published checkpoint of Pervasive Attention."""

HALF_HOUR: Mapping[str, Any] = {
    "objective.label_smoothing": 0.1,
    # The schedule follows the clock, not the updates: each architecture uses its half hour fully.
    "training.schedule": "cosine-time",
    "training.warmup_fraction": 0.05,
    "training.final_learning_rate": 0.01,
    "training.clock": "processor",
    "training.max_minutes": 30.0,
    "training.max_updates": 0,
    "training.weight_decay": 1e-4,
    "training.clip_norm": 5.0,
    "training.ema_decay": 0.99,
    "training.ema_updates": 4,
    "training.validate_epochs": 0,
    "training.validate_minutes": 6.0,
    "batches.max_tokens": 1500,
    "batches.max_length": 60,
    "search.beam": 5,
    "search.length_penalty": 1.0,
}
"""Half an hour of one CPU core, the same for every architecture (recipes/zoo.sh)."""


def dropout_rates(rate: float) -> dict[str, Any]:
    """Return the same rate of dropout between layers, on embeddings and before the classifier."""
    names = ("dropout", "embedding_dropout", "output_dropout")
    return {f"model.{name}": rate for name in names}
