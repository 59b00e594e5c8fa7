"""The references of settings, objectives and presets, read from the registries."""

from __future__ import annotations

import inspect
import json
from typing import Any

from docs.markdown import code, plain, table
from nmtgrid.base.config import describe, meanings
from nmtgrid.cli.objectives import objectives
from nmtgrid.models import zoo
from nmtgrid.models.presets import Preset
from nmtgrid.search.api import SearchPlan
from nmtgrid.training.settings import (
    BatchSettings,
    SequenceSmoothing,
    SmoothingSettings,
    TokenSmoothing,
    TrainingSettings,
)

GROUPS = (
    (
        "training",
        "How the weights are moved, when the run is checked and saved, when it ends",
        TrainingSettings,
    ),
    ("batches", "What makes a batch", BatchSettings),
    ("smoothing", "What is near the truth counts too", SmoothingSettings),
    ("smoothing.token", "Tokens that are like the true one", TokenSmoothing),
    ("smoothing.sequence", "Sentences near the true one", SequenceSmoothing),
    ("search", "How translations are sought, in validation and as `decode`'s defaults", SearchPlan),
)


def settings() -> str:
    """Return the page of all settings: of architectures, then those that all runs share."""
    parts = [
        "# Settings\n",
        "Generated from the code. `--set NAME=VALUE` changes any of them (`--set model.depth=8`), "
        "`nmtgrid train --list --arch NAME` shows the same; those of objectives stand with "
        "[the objectives](reference-objectives.md). The defaults are those without a preset.\n",
    ]
    held = zoo.architectures()
    for name in held:
        arch = held.get(name)
        parts.append(f"## `--arch {name}`\n\n{plain(arch.summary)}.\n")
        parts.append(_group("model", arch.config))
    for group, title, kind in GROUPS:
        parts.append(f"## `{group}.*`\n\n{title}.\n")
        parts.append(_group(group, kind))
    return "\n".join(parts)


def objective_page() -> str:
    """Return the page of all objectives, with their settings."""
    parts = [
        "# Objectives\n",
        "Generated from the code. `--objective NAME` says what training minimises.\n",
        table(
            ("`--objective`", "minimises"),
            [(code(name), plain(objectives.get(name).description)) for name in objectives],
        ),
    ]
    for name in objectives:
        parts.append(f"## `--objective {name}`\n\n{plain(objectives.get(name).description)}.\n")
        parts.append(_group("objective", objectives.get(name).settings))
    return "\n".join(parts)


def presets() -> str:
    """Return the page of all presets, with every setting that they change."""
    parts = [
        "# Presets\n",
        "Generated from the code. `--preset NAME` begins with these settings; `--set` goes above "
        "them. Counts of types and parameters are those of the publications, where they have "
        "them.\n",
    ]
    held = zoo.architectures()
    for name in held:
        parts.append(f"## `--arch {name}`\n")
        parts += [_preset(one) for one in held.get(name).presets.values()]
    return "\n".join(parts)


def _preset(preset: Preset) -> str:
    said = [plain(preset.description).rstrip(".")]
    if preset.vocabulary:
        said.append(f"{preset.vocabulary[0]:,} source and {preset.vocabulary[1]:,} target types")
    if preset.parameters:
        said.append(f"published: {preset.parameters / 1e6:.1f}M parameters")
    values = "\n".join(f"{key}={_value(held)}" for key, held in preset.settings.items())
    block = f"```\n{values}\n```\n" if values else "The defaults.\n"
    return f"### `--preset {preset.name}`\n\n{'; '.join(said)}.\n\n{block}"


def _group(prefix: str, kind: type[Any]) -> str:
    """Return the docstring and the table of a dataclass of settings."""
    defaults = kind()
    texts = meanings(kind)
    rows = [
        (
            code(f"{prefix}.{name}"),
            code(hint.replace(" | ", ", ")) if " | " in hint else hint,
            code(_value(getattr(defaults, name))),
            plain(texts.get(name, "")),
        )
        for name, hint in describe(kind)
        if "." not in name
    ]
    text = inspect.cleandoc(kind.__doc__ or "")
    known = "" if text.startswith(f"{kind.__name__}(") else text
    said = "\n\n".join(plain(part) for part in known.split("\n\n")) + "\n\n" if known else ""
    if not rows:
        return f"{said}It has no settings.\n"
    return said + table(("setting", "type", "default", "meaning"), rows)


def _value(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return json.dumps(value)
