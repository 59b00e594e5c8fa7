"""Presets: settings named after the table or the data set that they answer to.

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
        held = self.settings.items()
        return {key[len(prefix) :]: value for key, value in held if key.startswith(prefix)}
