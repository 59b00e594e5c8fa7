"""Lists of numbers as people type them: `1..9`, `1..9:2`, `1,3,5`, `inf`, `0.1..0.9:0.1`.

A list is made of parts with commas between them; a part is one number, or a span with both ends
in it (where the step meets the last) and a step after a colon. Numbers are taken as decimals, so
0.1..0.9:0.1 holds 0.3, not 0.30000000000000004. The order is kept.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from nmtgrid.base.errors import ConfigError

MOST_NUMBERS = 1000
INFINITE = "inf"
_MOST_FAULTS = 10

_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_DIGITS = re.compile(r"[+-]?[0-9]{16,}(\.[0-9]*)?|[+-]?[0-9]*\.[0-9]{16,}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Where numbers may lie: from `least` to `most`, or strictly between them if `open`."""

    least: float = -math.inf
    most: float = math.inf
    open: bool = False

    def fault(self, value: Decimal) -> str:
        """Return how `value` must be instead, or nothing where it lies within."""
        if value < self.least or (self.open and value == self.least):
            return f"greater than {self.least:g}" if self.open else f"at least {self.least:g}"
        if value > self.most or (self.open and value == self.most):
            return f"less than {self.most:g}" if self.open else f"at most {self.most:g}"
        return ""


def whole_numbers(
    text: str,
    option: str,
    *,
    least: int = 0,
    most: int | None = None,
    infinite: bool = False,
    limit: int = MOST_NUMBERS,
) -> list[int | float]:
    """Return the whole numbers of a list such as `1..9`, `1..9:2`, `1,3,5` or `1..3,7,inf`.

    With `infinite`, `inf` may be one of the parts and stands as `math.inf`, the only float; it is
    beyond `most`. `option` is what the person typed the list after, such as `--k`. Raises
    ConfigError that names every fault: no number, out of bounds, twice, more than `limit` of them.
    """
    bounds = Bounds(least, math.inf if most is None else most)
    reader = _Reader(option, _WHOLE, bounds, infinite, limit, Decimal(1))
    advice = f"Write 1,3,5 or 1..9 or 1..9:2{' or inf' if infinite else ''}."
    return [
        math.inf if value.is_infinite() else int(value) for value in reader.values(text, advice)
    ]


def decimals(
    text: str,
    option: str,
    bounds: Bounds = Bounds(),
    *,
    limit: int = MOST_NUMBERS,
    such_as: str = "0.3,0.5 or 0.1..0.9:0.1",
) -> list[float]:
    """Return the numbers of a list such as `0.5`, `0,1`, or `0.1..0.9:0.1`, whose step is needed.

    `such_as` are the lists that the advice gives. Raises ConfigError that names every fault, as
    `whole_numbers` does.
    """
    reader = _Reader(option, _DECIMAL, bounds, False, limit, None)
    return [float(value) for value in reader.values(text, f"Write {such_as}.")]


@dataclasses.dataclass(frozen=True)
class _Reader:
    option: str
    number: re.Pattern[str]
    bounds: Bounds
    infinite: bool
    limit: int
    step: Decimal | None  # between the numbers of a span that names none

    def values(self, text: str, advice: str) -> list[Decimal]:
        faults: list[str] = []
        found: list[Decimal] = []
        for part in text.split(","):
            try:
                found += self._part(part.strip())
            except ValueError as fault:
                faults.append(f"`{self.option}`: {fault}")
            if len(found) > self.limit or len(faults) == _MOST_FAULTS:
                break
        if not faults:
            faults = [f"`{self.option}`: {fault}" for fault in self._together(found)]
        if faults:
            raise ConfigError(faults, advice)
        return found

    def _part(self, part: str) -> Sequence[Decimal]:
        if not part:
            raise ValueError("a number is missing.")
        if part == INFINITE and self.infinite:
            return [Decimal(INFINITE)]
        first_text, dots, rest = part.partition("..")
        first = self._within(self._number(first_text, part))
        if not dots:
            return [first]
        last_text, colon, step_text = rest.partition(":")
        last = self._within(self._number(last_text, part))
        step = self._number(step_text, part) if colon else self.step
        if step is None:
            raise ValueError(f"`{part}` needs a step, such as `{part}:0.1`.")
        if step <= 0:
            raise ValueError(f"the step of `{part}` must be greater than 0.")
        if last < first:
            raise ValueError(f"`{part}` runs backwards.")
        count = int((last - first) / step) + 1
        if count > self.limit:
            raise ValueError(f"`{part}` has {count:,} numbers, more than {self.limit:,}.")
        return [first + step * index for index in range(count)]

    def _number(self, text: str, part: str) -> Decimal:
        text = text.strip()
        if not self.number.fullmatch(text):
            kind = "a whole number" if self.number is _WHOLE else "a number"
            where = "" if text == part else f" in `{part}`"
            if _DIGITS.fullmatch(text):
                raise ValueError(f"`{text[:20]}...` has more digits than can be told apart.")
            raise ValueError(f"`{text}`{where} is not {kind}.")
        return Decimal(text)

    def _within(self, value: Decimal) -> Decimal:
        if wanted := self.bounds.fault(value):
            raise ValueError(f"every number must be {wanted}, but one is {value}.")
        return value

    def _together(self, found: Sequence[Decimal]) -> list[str]:
        if len(found) > self.limit:
            return [f"there are more than {self.limit:,} numbers."]
        times = Counter(found)
        return [f"{value} stands there twice." for value in times if times[value] > 1]
