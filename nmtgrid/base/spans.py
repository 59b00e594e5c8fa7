"""Lists of numbers as users type them: `1..9`, `1..9:2`, `1,3,5`, `inf`, `0.1..0.9:0.1`.

Commas separate the parts of a list; a part is a number, or a span that includes both ends (where
the step meets the last) with its step after a colon. Numbers are parsed as decimals, so
0.1..0.9:0.1 contains 0.3, not 0.30000000000000004. The order is kept.
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

# Stricter than int() and float(), which accept 1_000, nan and digits of other scripts; floats are
# exact up to 15 digits.
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_DIGITS = re.compile(r"[+-]?[0-9]{16,}(\.[0-9]*)?|[+-]?[0-9]*\.[0-9]{16,}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The range of numbers: from `least` to `most`, or strictly between them if `open`."""

    least: float = -math.inf
    most: float = math.inf
    open: bool = False

    def fault(self, value: Decimal) -> str:
        """Return how `value` must be instead, or an empty text if it is in the range."""
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
    beyond `most`. `option` is the option that the list belongs to, such as `--k`. Raises
    ConfigError that names every fault: no number, out of bounds, twice, more than `limit` of them.
    """
    bounds = Bounds(least, math.inf if most is None else most)
    reader = _Reader(option, _WHOLE, bounds, infinite, limit, Decimal(1))
    values = reader.read(text, f"Write 1,3,5 or 1..9 or 1..9:2{' or inf' if infinite else ''}.")
    return [math.inf if value.is_infinite() else int(value) for value in values]


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
    return [float(value) for value in reader.read(text, f"Write {such_as}.")]


@dataclasses.dataclass(frozen=True)
class _Reader:
    option: str
    number: re.Pattern[str]
    bounds: Bounds
    infinite: bool
    limit: int
    step: Decimal | None  # between the numbers of a span that names none

    def read(self, text: str, advice: str) -> list[Decimal]:
        faults: list[str] = []
        values: list[Decimal] = []
        for part in text.split(","):
            try:
                values += self._part(part.strip())
            except ValueError as fault:
                faults.append(str(fault))
            # A list that a program wrote could have millions of parts.
            if len(values) > self.limit or len(faults) == _MOST_FAULTS:
                break
        if not faults and len(values) > self.limit:
            faults = [f"there are more than {self.limit:,} numbers."]
        elif not faults:
            counts = Counter(values)
            faults = [f"{value} stands there twice." for value in counts if counts[value] > 1]
        if faults:
            raise ConfigError([f"`{self.option}`: {fault}" for fault in faults], advice)
        return values

    def _part(self, part: str) -> Sequence[Decimal]:
        if not part:
            raise ValueError("a number is missing.")
        if part == INFINITE and self.infinite:
            return [Decimal(INFINITE)]
        first_text, dots, rest = part.partition("..")
        first = self._number(first_text, part, self.bounds)
        if not dots:
            return [first]
        last_text, colon, step_text = rest.partition(":")
        last = self._number(last_text, part, self.bounds)
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

    def _number(self, text: str, part: str, bounds: Bounds = Bounds()) -> Decimal:
        text = text.strip()
        if not self.number.fullmatch(text):
            kind = "a whole number" if self.number is _WHOLE else "a number"
            where = "" if text == part else f" in `{part}`"
            if _DIGITS.fullmatch(text):
                raise ValueError(f"`{text[:20]}...` has more digits than can be told apart.")
            raise ValueError(f"`{text}`{where} is not {kind}.")
        value = Decimal(text)
        if condition := bounds.fault(value):
            raise ValueError(f"every number must be {condition}, but one is {value}.")
        return value
