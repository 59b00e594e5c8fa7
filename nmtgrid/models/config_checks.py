"""Common parts of the architectures' configurations: ranges of settings, the start token."""

from __future__ import annotations

from typing import Literal

from nmtgrid.base.config import CheckedSettings, Range, between
from nmtgrid.text.vocabulary import BEGIN, END

LARGEST_KERNEL = 255
LARGEST_DEPTH = 1000
"""Upper bounds to catch typing errors, far above any published value."""


def _nearest_odd(value: int) -> str:
    # The odd numbers on both sides of the value, within the bounds.
    near = min(max(1, value - 1 + value % 2), LARGEST_KERNEL - 2)
    return f": take {near} or {near + 2}"


DEPTH = between(1, LARGEST_DEPTH)
KERNEL = Range(
    f"odd (a filter has a middle) and from 1 to {LARGEST_KERNEL}",
    lambda value: value % 2 == 1 and 0 < value <= LARGEST_KERNEL,
    _nearest_odd,
)


class ModelConfig(CheckedSettings):
    """The settings of an architecture, in the group `model.*`."""

    group = "model"


FirstSymbol = Literal["begin", "end"]


def first_alias(first: FirstSymbol) -> tuple[int, int] | None:
    """Return (id, id whose vector it shares) of the start token; None if it has its own.

    Batches and searches always begin with `<s>`; with "end" it is looked up as `</s>`.
    """
    # An alias, not another token in the batches, so that data and search need not know the model.
    return (BEGIN, END) if first == "end" else None
