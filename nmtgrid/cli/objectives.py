"""Every objective there is, and what wraps them: importing this enters them all."""

from __future__ import annotations

from nmtgrid.adaptive import halting_objective  # noqa: F401
from nmtgrid.adaptive import objectives as adaptive  # noqa: F401
from nmtgrid.online import dynamic  # noqa: F401
from nmtgrid.online import objectives as online  # noqa: F401
from nmtgrid.smoothing import objectives as smoothing  # noqa: F401
from nmtgrid.training.api import objectives

__all__ = ["objectives"]
