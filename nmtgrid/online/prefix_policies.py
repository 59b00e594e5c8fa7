"""Policies of simultaneous translation that decide from translations of source prefixes.

LocalAgreement-n and hold-n (Liu et al. 2020; Polak et al. 2022) commit the part of each translation
that is taken for stable; re-translation (Arivazhagan et al. 2020) shows all of it and revises what
it has shown. online/retranslation.py decodes with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from nmtgrid.metrics.erasure import common_prefix


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixPolicy:
    """What all policies that translate prefixes share; reads do not count the end symbol here."""

    stride: int = 1
    """Source tokens from one prefix that is translated to the next."""
    floor: int = 1
    """No token is written before so many source tokens have been read."""
    end_of_prefix: bool = True
    """A prefix is translated as a whole sentence, with the end symbol; without it, it needs a
    prefix-safe model."""

    @property
    def memory(self) -> float:
        """The successive prefixes whose translations are compared."""
        return 1

    @property
    def is_offline(self) -> bool:
        """Whether nothing is written before the source has ended, however long it is."""
        return False

    def faults(self) -> list[str]:
        """Return what is wrong with the settings, one sentence each."""
        return _out_of_range(self, stride=1, floor=1)

    def translates(self, reads: int) -> bool:
        """Whether the prefix of `reads` tokens is translated before it is known if it is all."""
        # With the floor the first tokens are written, if the prefixes before it are known by then.
        first = math.ceil(self.floor / self.stride) - (self.memory - 1)
        return not self.is_offline and not reads % self.stride and reads >= first * self.stride


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitPolicy(PrefixPolicy):
    """A policy that writes the stable part of each translation and never takes it back.

    The end symbol is written with the source's end alone, so reading is always finished
    (appendix C).
    """

    cap: int | None = None
    """With t tokens before it, a token is written with cap + t source tokens read at the latest,
    as wait-k does for k = cap, if the prefix is translated and its translation so long."""
    finish_reading: ClassVar[bool] = True

    def faults(self) -> list[str]:
        """Return what is wrong with the settings, one sentence each."""
        faults = super().faults()
        if self.cap is not None:
            faults += _out_of_range(self, cap=1)
            if self.cap < self.floor:
                faults.append(f"`cap` ({self.cap}) must not be below `floor` ({self.floor}).")
        return faults

    def stable_tokens(self, translations: Sequence[Sequence[int]]) -> int:
        """Return how many tokens of the last of some successive translations are stable."""
        raise NotImplementedError

    def committed_tokens(self, translations: Sequence[Sequence[int]], reads: int) -> int:
        """Return how many tokens of the last of some successive translations are written."""
        if reads < self.floor:
            return 0
        latest = 0 if self.cap is None else max(0, reads - self.cap + 1)
        return max(self.stable_tokens(translations), min(latest, len(translations[-1])))


@dataclasses.dataclass(frozen=True)
class LocalAgreement(CommitPolicy):
    """Writes what the translations of n successive prefixes agree on (LocalAgreement-n)."""

    n: float = 2
    """Successive prefixes; 1 writes each translation whole, infinity is offline."""

    @property
    def memory(self) -> float:
        """n."""
        return self.n

    @property
    def is_offline(self) -> bool:
        """Whether n is infinite, without a cap."""
        return math.isinf(self.n) and self.cap is None

    def faults(self) -> list[str]:
        """Return what is wrong with the settings, one sentence each."""
        return _out_of_range(self, n=1) + super().faults()

    def stable_tokens(self, translations: Sequence[Sequence[int]]) -> int:
        """Return the length of the last n translations' longest common prefix."""
        if len(translations) < self.n:
            return 0
        return common_prefix(translations[-int(self.n) :])


@dataclasses.dataclass(frozen=True)
class HoldN(CommitPolicy):
    """Writes all but the last n tokens of each translation (hold-n)."""

    n: float = 3
    """Tokens at the end of a translation that are not written; infinity is offline."""

    @property
    def is_offline(self) -> bool:
        """Whether n is infinite, without a cap."""
        return math.isinf(self.n) and self.cap is None

    def faults(self) -> list[str]:
        """Return what is wrong with the settings, one sentence each."""
        return _out_of_range(self, n=0) + super().faults()

    def stable_tokens(self, translations: Sequence[Sequence[int]]) -> int:
        """Return the length of the last translation less n."""
        return int(max(0, len(translations[-1]) - self.n))


@dataclasses.dataclass(frozen=True)
class Retranslation(PrefixPolicy):
    """Shows the translation of each prefix, translated anew, and revises what it has shown."""

    mask: float = 0
    """Tokens at the end of a prefix's translation that are not shown; infinity is offline."""

    @property
    def is_offline(self) -> bool:
        """Whether nothing is shown before the source has ended."""
        return math.isinf(self.mask)

    def faults(self) -> list[str]:
        """Return what is wrong with the settings, one sentence each."""
        return _out_of_range(self, mask=0) + super().faults()

    def shown_tokens(self, translation: Sequence[int]) -> Sequence[int]:
        """Return what is shown of a prefix's translation."""
        return translation[: int(max(0, len(translation) - self.mask))]


def _out_of_range(policy: PrefixPolicy, **least: int) -> list[str]:
    """Return a sentence for each setting that is no whole number, or below the least one."""
    faults = []
    for name, lowest in least.items():
        value = getattr(policy, name)
        may_be_infinite = name in ("n", "mask")
        is_known = math.isfinite(value) and value == int(value)
        if not (is_known or (may_be_infinite and value == math.inf)) or value < lowest:
            span = f"a whole number from {lowest} on{', or infinite,' if may_be_infinite else ','}"
            faults.append(f"`{name}` must be {span} but is {value}.")
    return faults
