"""What the architectures' configurations share: checks, the start token.

Each check returns errors instead of raising the first one, so that a user sees all of them.
"""

from __future__ import annotations

from typing import Any, Literal

from nmtgrid.text.vocabulary import BEGIN, END

LARGEST_KERNEL = 255
LARGEST_DEPTH = 1000
"""Bounds against slips: far above what any text has tried."""


def too_small(config: Any, *names: str) -> list[str]:
    """Return a fault for each setting below 1; None counts as not set."""
    return [
        f"`model.{name}` must be at least 1, but is {value}."
        for name in names
        if (value := getattr(config, name)) is not None and value < 1
    ]


def too_large(config: Any, limit: int, *names: str) -> list[str]:
    """Return a fault for each setting above `limit`."""
    return [
        f"`model.{name}` must be at most {limit}, but is {getattr(config, name)}."
        for name in names
        if getattr(config, name) > limit
    ]


def no_kernels(config: Any, *names: str) -> list[str]:
    """Return a fault for each setting that is no width of a filter with a middle."""
    faults = []
    for name in names:
        value = getattr(config, name)
        if value % 2 == 0 or not 0 < value <= LARGEST_KERNEL:
            # The odd numbers on both sides of the value, within the bounds.
            near = min(max(1, value - 1 + value % 2), LARGEST_KERNEL - 2)
            faults.append(
                f"`model.{name}` must be odd (a filter has a middle) and from 1 to "
                f"{LARGEST_KERNEL}, but is {value}: take {near} or {near + 2}."
            )
    return faults


def no_rates(config: Any, *names: str) -> list[str]:
    """Return a fault for each setting that is no dropout rate."""
    return [
        f"`model.{name}` must be in [0, 1), but is {getattr(config, name)}."
        for name in names
        if not 0.0 <= getattr(config, name) < 1.0
    ]


FirstSymbol = Literal["begin", "end"]


def first_alias(first: FirstSymbol) -> tuple[int, int] | None:
    """Return (id, id whose vector it shares) of the start token; None if it has its own.

    Batches and searches always begin with `<s>`: with "end" it is looked up as `</s>`.
    """
    # An alias instead of another token in the batches: data and search need not know the model.
    return (BEGIN, END) if first == "end" else None
