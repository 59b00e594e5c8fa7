"""Lists of numbers as users type them: `1..9`, `1..9:2`, `1,3,5`, `inf`, `0.1..0.9:0.1`.

Commas separate the parts of a list; a part is a number, or a span with its step after a colon. A
span includes its last number if the step reaches it. Numbers are parsed as decimals, so
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

# Stricter than int() and float(), which accept 1_000, nan and digits of other scripts, and which
# fail or are very slow for very many digits. Floats are exact up to 15 digits; 18 digits fit into
# 64 bits.
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_LONG_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_DIGITS = re.compile(r"[+-]?[0-9]{16,}(\.[0-9]*)?|[+-]?[0-9]*\.[0-9]{16,}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})")
_FLOAT = re.compile(
    r"[+-]?(([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,4})?|inf|nan)", re.IGNORECASE
)
_MOST_DIGITS = {_WHOLE: 15, _LONG_WHOLE: 18, _DECIMAL: 15, _FLOAT: 30}
"""Digits of a number, or of each side of its point."""
_SHOWN = 60


def whole_number(text: str) -> int:
    """Return the whole number in `text`: an optional sign and at most 18 ASCII digits.

    All single whole numbers of the command line are parsed here. Raises ValueError that says what
    is wrong with `text`.
    """
    return int(_checked(text, _LONG_WHOLE, "a whole number"))


def is_whole_number(text: str) -> bool:
    """Return whether `text` is an optional sign and any number of ASCII digits."""
    return re.fullmatch("[+-]?[0-9]+", text) is not None


def real_number(text: str) -> float:
    """Return the number in `text`: ASCII digits with a point and an exponent, inf or nan.

    Raises ValueError as `whole_number` does; whether the value fits is up to the caller.
    """
    return float(_checked(text, _FLOAT, "a number"))


def _checked(text: str, pattern: re.Pattern[str], kind: str, where: str = "") -> str:
    text = text.strip()
    if not pattern.fullmatch(text):
        if _DIGITS.fullmatch(text):
            most = _MOST_DIGITS[pattern]
            raise ValueError(f"`{text[:20]}...` is too long a number (at most {most} digits).")
        if pattern is _DECIMAL and "e" in text.lower() and _FLOAT.fullmatch(text):
            raise ValueError(
                f"`{text}`{where} is not a number of a list: write it without an exponent."
            )
        raise ValueError(f"`{shortened(text)}`{where} is not {kind}.")
    return text


def shortened(text: str) -> str:
    """Return `text`, cut at the end if it is too long for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def plural(number: int, noun: str) -> str:
    """Return `1 line`, `2 lines` or `2 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def whole_numbers(
    text: str,
    option: str,
    *,
    least: int = 0,
    infinite: bool = False,
    limit: int = MOST_NUMBERS,
) -> list[int | float]:
    """Return the whole numbers of a list such as `1..9`, `1..9:2`, `1,3,5` or `1..3,7,inf`.

    With `infinite`, `inf` may be one of the parts and becomes `math.inf`, the only float. `option`
    is the option that the list belongs to, such as `--k`. Raises ConfigError that names every
    fault: not a number, below `least`, listed twice, more than `limit` numbers.
    """
    reader = _Reader(option, _WHOLE, least, infinite, limit)
    values = reader.read(text, f"Write 1,3,5 or 1..9 or 1..9:2{' or inf' if infinite else ''}.")
    return [math.inf if value.is_infinite() else int(value) for value in values]


def decimals(
    text: str,
    option: str,
    least: float = -math.inf,
    *,
    infinite: bool = False,
    such_as: str = "0.3,0.5 or 0.1..0.9:0.1",
) -> list[float]:
    """Return the numbers of a list such as `0.5`, `0,1`, or `0.1..0.9:0.1`; spans need a step.

    `such_as` are the examples in the advice. `infinite` and the errors are as in `whole_numbers`.
    """
    reader = _Reader(option, _DECIMAL, least, infinite, MOST_NUMBERS)
    return [float(value) for value in reader.read(text, f"Write {such_as}.")]


@dataclasses.dataclass(frozen=True)
class _Reader:
    option: str
    number: re.Pattern[str]
    least: float
    infinite: bool
    limit: int

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
            faults = [f"{value} is listed twice." for value in counts if counts[value] > 1]
        if faults:
            raise ConfigError([f"`{self.option}`: {fault}" for fault in faults], advice)
        return values

    def _part(self, part: str) -> Sequence[Decimal]:
        if not part:
            raise ValueError("a number is missing.")
        if part == INFINITE and self.infinite:
            return [Decimal(INFINITE)]
        first_text, dots, rest = part.partition("..")
        first = self._number(first_text, part, self.least)
        if not dots:
            return [first]
        last_text, colon, step_text = rest.partition(":")
        last = self._number(last_text, part, self.least)
        if not colon and self.number is _DECIMAL:
            raise ValueError(f"`{part}` needs a step, such as `{part}:0.1`.")
        step = self._number(step_text, part) if colon else Decimal(1)
        if step <= 0:
            raise ValueError(f"the step of `{part}` must be greater than 0.")
        if last < first:
            raise ValueError(f"`{part}` runs backwards.")
        count = int((last - first) / step) + 1
        if count > self.limit:
            raise ValueError(f"`{part}` has {count:,} numbers, more than {self.limit:,}.")
        return [first + step * index for index in range(count)]

    def _number(self, text: str, part: str, least: float = -math.inf) -> Decimal:
        kind = "a whole number" if self.number is _WHOLE else "a number"
        where = "" if text.strip() == part else f" in `{shortened(part)}`"
        value = Decimal(_checked(text, self.number, kind, where))
        if value < least:
            raise ValueError(f"every number must be at least {least:g}, but one is {value}.")
        return value
