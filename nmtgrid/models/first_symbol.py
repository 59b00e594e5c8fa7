"""The symbol that stands before the target: `<s>`, or `</s>` as in other programs' models."""

from __future__ import annotations

from typing import Literal

from nmtgrid.text.vocabulary import BEGIN, END

FirstSymbol = Literal["begin", "end"]


def first_alias(first: FirstSymbol) -> tuple[int, int] | None:
    """Return (id, id whose vector it has) of the first symbol; None where it has its own.

    Batches and searches always begin with `<s>`: with "end" it is looked up as `</s>`.
    """
    return (BEGIN, END) if first == "end" else None
