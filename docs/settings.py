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

GROUPS: dict[str, type[Any]] = {
    "training": TrainingSettings,
    "batches": BatchSettings,
    "smoothing": SmoothingSettings,
    "smoothing.token": TokenSmoothing,
    "smoothing.sequence": SequenceSmoothing,
    "search": SearchPlan,
}


def settings() -> str:
    """Return the page of all settings: those of architectures, then those that all runs share."""
    parts = [
        "# Settings\n",
        "Generated from the code. `--set NAME=VALUE` changes a setting (`--set model.depth=8`); "
        "`nmtgrid train --list --arch NAME` prints the same list. Settings of objectives are on "
        "[their page](reference-objectives.md). Defaults apply without a preset.\n",
    ]
    architectures = zoo.architectures()
    for name in architectures:
        arch = architectures.get(name)
        parts.append(f"## `--arch {name}`\n\n{plain(arch.summary)}.\n")
        parts.append(_group("model", arch.config))
    for group, kind in GROUPS.items():
        parts.append(f"## `{group}.*`\n")
        parts.append(_group(group, kind))
    return "\n".join(parts)


def objective_page() -> str:
    """Return the page of all objectives, with their settings."""
    parts = [
        "# Objectives\n",
        "Generated from the code. `--objective NAME` selects the loss that training minimises.\n",
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
    """Return the page of all presets with the settings that they change."""
    parts = [
        "# Presets\n",
        "Generated from the code. `--preset NAME` starts from these settings; `--set` overrides "
        "them. Vocabulary sizes and numbers of parameters are the published ones, if there "
        "are any.\n",
    ]
    architectures = zoo.architectures()
    for name in architectures:
        parts.append(f"## `--arch {name}`\n")
        parts += [_preset(preset) for preset in architectures.get(name).presets.values()]
    return "\n".join(parts)


def _preset(preset: Preset) -> str:
    facts = [plain(preset.description).rstrip(".")]
    if preset.vocabulary:
        facts.append(f"{preset.vocabulary[0]:,} source and {preset.vocabulary[1]:,} target types")
    if preset.parameters:
        facts.append(f"published: {preset.parameters / 1e6:.1f}M parameters")
    values = "\n".join(f"{key}={_value(value)}" for key, value in preset.settings.items())
    block = f"```\n{values}\n```\n" if values else "The defaults.\n"
    return f"### `--preset {preset.name}`\n\n{'; '.join(facts)}.\n\n{block}"


def _group(prefix: str, kind: type[Any]) -> str:
    """Return the docstring and the table of a settings dataclass."""
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
    is_generated = text.startswith(f"{kind.__name__}(")  # dataclasses without a docstring
    intro = "" if is_generated else "".join(f"{plain(part)}\n\n" for part in text.split("\n\n"))
    if not rows:
        return f"{intro}It has no settings.\n"
    return intro + table(("setting", "type", "default", "meaning"), rows)


def _value(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return json.dumps(value)
