"""The pairs that a run trains on, and how a resumed run knows that they are the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import DataError
from nmtgrid.data.batches import Batch

_PIECE = 1 << 20
_SAME = "Resume it with the dataset that it was begun with."


class Pairs(Protocol):
    """What the trainer reads: a split of a dataset."""

    @property
    def source_lengths(self) -> NDArray[Any]: ...

    @property
    def target_lengths(self) -> NDArray[Any]: ...

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch: ...


def describe_pairs(pairs: Pairs, usable: int) -> dict[str, Any]:
    """Return what tells these pairs, in this order, from others: `usable` ones, their lengths."""
    found = hashlib.sha256()
    for lengths in (pairs.source_lengths, pairs.target_lengths):
        for start in range(0, len(lengths), _PIECE):
            piece = lengths[start : start + _PIECE]
            found.update(numpy.ascontiguousarray(piece, numpy.int64).tobytes())
    return {"pairs": usable, "lengths": found.hexdigest()}


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise DataError unless the run of the state `saved` was begun on the pairs of `now`."""
    if saved["pairs"] != now["pairs"]:
        raise DataError(
            f"The run was begun on {saved['pairs']:,} usable training pairs, but there are "
            f"{now['pairs']:,} now.", _SAME,
        )  # fmt: skip
    if saved.get("lengths") not in (None, now["lengths"]):
        raise DataError("The run was begun on other training pairs, as many as these.", _SAME)
