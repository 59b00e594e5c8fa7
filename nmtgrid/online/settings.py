"""Evaluated policies on the command line: wait-k's k, an agent's threshold, the oracle's lambda."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.spans import Bounds, decimals, whole_numbers

Policy = Literal["wait-k", "threshold", "oracle"]
SourceText = Literal["words", "line"]
"""Whether a source is tokenised raw word by raw word, as it would arrive, or line by line."""
DEFAULT_K = "1,3,5,7,9"

_KEYS = {"wait-k": "k", "threshold": "threshold", "oracle": "lambda"}
_LETTERS = {"wait-k": "k", "threshold": "τ", "oracle": "λ"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A policy with its parameter: k (infinity: offline), tau, or the oracle's lambda."""

    policy: Policy
    value: float

    @property
    def is_offline(self) -> bool:
        """Whether the whole source is read before the first write."""
        return self.policy == "wait-k" and math.isinf(self.value)

    @property
    def title(self) -> str:
        """The setting for people: `k = 3`, `τ = 0.5`, `λ = 0`."""
        return f"{_LETTERS[self.policy]} = {self.number}"

    @property
    def number(self) -> str:
        """The value for people."""
        return "∞" if self.is_offline else f"{self.value:.15g}"

    @property
    def slug(self) -> str:
        """The setting as a part of file names."""
        return f"{_KEYS[self.policy]}-{self.value:.15g}"

    def values(self) -> dict[str, Any]:
        """Return JSON keys; an infinite k is None."""
        value = None if self.is_offline else self.value
        return {"policy": self.policy, _KEYS[self.policy]: value}


def read_settings(k: str | None, thresholds: str | None, oracle: str | None) -> list[Setting]:
    """Return the settings of three lists of numbers, wait-k first; None everywhere: the default.

    Raises ConfigError that names every fault: a k below 1, a threshold outside (0, 1), a negative
    lambda, and what `base.spans` refuses.
    """
    if k is None and thresholds is None and oracle is None:
        k = DEFAULT_K
    texts: dict[Policy, str | None] = {"wait-k": k, "threshold": thresholds, "oracle": oracle}
    settings: list[Setting] = []
    # All three lists are read before anything is raised, so that one message names every fault.
    faults: list[str] = []
    advice: list[str] = []
    for policy, text in texts.items():
        if text is None:
            continue
        try:
            if policy == "wait-k":
                values: Sequence[float] = whole_numbers(text, "--k", least=1, infinite=True)
            elif policy == "threshold":
                values = decimals(text, "--thresholds", Bounds(0, 1, True))
            else:
                values = decimals(text, "--oracle", Bounds(0), such_as="0,1 or 0..2:0.5")
            settings += [Setting(policy, float(value)) for value in values]
        except ConfigError as error:
            faults += error.faults
            advice.append(error.advice)
    if faults:
        raise ConfigError(faults, advice[0] if len(advice) == 1 else "")
    return settings
