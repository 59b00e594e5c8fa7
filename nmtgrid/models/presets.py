"""Presets: settings named after the table or the data set that they reproduce.

The keys of a preset are dotted setting names, as in `--set`. `vocabulary` has the publication's
numbers of (source, target) types, special symbols included, and `parameters` the published count at
these sizes, if there is one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named set of settings."""

    name: str
    description: str
    settings: dict[str, Any]
    vocabulary: tuple[int, int] | None = None
    parameters: float | None = None

    def section(self, name: str) -> dict[str, Any]:
        """Return the settings below `name.`, without that prefix."""
        prefix = name + "."
        items = self.settings.items()
        return {key[len(prefix) :]: value for key, value in items if key.startswith(prefix)}


def _settings(section: str, /, **values: Any) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in values.items()}


model, objective, training, batches, search = (
    functools.partial(_settings, section)
    for section in ("model", "objective", "training", "batches", "search")
)
"""`model(depth=6)` is `{"model.depth": 6}`; likewise for the other sections."""

PUBLISHED = (
    # Inverse square root with 4000 updates of warm-up, as the Transformer was published.
    training(learning_rate=0.002, schedule="inverse-sqrt", warmup_updates=4000)
    | training(initial_learning_rate=1e-7, beta1=0.9, beta2=0.98, weight_decay=1e-4)
    | training(clip_norm=25.0, max_updates=50000)
    | objective(label_smoothing=0.1)
    | batches(accumulation=2)
    | search(beam=5, length_penalty=1.0)
)
"""How chapter 3 trains its models (section 3.3.1); settings that the text omits are those of the
authors' published checkpoint of Pervasive Attention."""

HALF_HOUR = (
    objective(label_smoothing=0.1)
    # The schedule follows the clock, not the updates: each architecture uses its half hour fully.
    | training(schedule="cosine-time", warmup_fraction=0.05, final_learning_rate=0.01)
    | training(clock="processor", max_minutes=30.0, max_updates=0)
    | training(weight_decay=1e-4, clip_norm=5.0, ema_decay=0.99, ema_updates=4)
    | training(validate_epochs=0, validate_minutes=6.0)
    | batches(max_tokens=1500, max_length=60)
    | search(beam=5, length_penalty=1.0)
)
"""Half an hour of one CPU core, the same for every architecture (recipes/zoo.sh)."""


def two_hours(settings: dict[str, Any]) -> Preset:
    """Return the preset of two hours of one CPU core on IWSLT'14, for a small model."""
    return Preset(
        "iwslt14-de-en-small",
        "IWSLT'14 De-En, two hours of one CPU core",
        settings
        | training(clock="processor", max_minutes=120.0, validate_minutes=24.0)
        | batches(max_length=75),
    )


def toy(settings: dict[str, Any], learning_rate: float, max_updates: int, **limits: int) -> Preset:
    """Return the toy preset for these model settings; `limits` are batch limits."""
    return Preset(
        "toy",
        "the embedded synthetic corpus, in under two minutes on two CPU cores",
        settings
        | objective(label_smoothing=0.1)
        | training(learning_rate=learning_rate, schedule="cosine", warmup_updates=100)
        | training(max_updates=max_updates)
        | batches(max_tokens=1500, **limits)
        | search(beam=5),
    )


def dropout_rates(rate: float) -> dict[str, Any]:
    """Return settings with one dropout rate for layers, embeddings and the classifier's input."""
    return model(dropout=rate, embedding_dropout=rate, output_dropout=rate)
