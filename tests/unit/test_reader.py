"""Reading ahead reads the same, from any place, and leaves no thread behind."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from nmtgrid.data.batches import Batch, BatchPlan, DataCursor
from nmtgrid.training.distributed import Processes
from nmtgrid.training.trainer import read_batches
from tests.unit.tiny_run import Sentences


def _plan(pairs: Sentences) -> BatchPlan:
    return BatchPlan(pairs.source_lengths, pairs.target_lengths, 20)


def _read(
    place: DataCursor, count: int, updates: int, *, ahead: bool
) -> list[tuple[DataCursor, list[int]]]:
    pairs = Sentences()
    reader = read_batches(pairs, _plan(pairs), place, 2, Processes(0, count), ahead=ahead)
    held = iter(reader)
    found = [
        (place, [int(i) for batch in batches for i in batch.indices])
        for place, batches in itertools.islice(held, updates)
    ]
    held.close()  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("count", [1, 2])
def test_ahead_is_the_same(count: int) -> None:
    plain = _read(DataCursor(), count, 7, ahead=False)
    assert _read(DataCursor(), count, 7, ahead=True) == plain
    # A resumed run begins at the place that follows the third update.
    assert _read(plain[2][0], count, 4, ahead=True) == plain[3:]


def test_shares_make_up_the_update() -> None:
    pairs = Sentences()
    shares = []
    for rank in range(2):
        reader = read_batches(pairs, _plan(pairs), DataCursor(), 3, Processes(rank, 2), ahead=False)
        shares.append(next(iter(reader)))
    assert shares[0][0] == shares[1][0]
    walk = itertools.islice(_plan(pairs).walk(DataCursor()), 3)
    wanted = sorted(int(i) for _, indices in walk for i in indices)
    assert sorted(int(i) for _, held in shares for batch in held for i in batch.indices) == wanted


def test_no_thread_stays() -> None:
    before = threading.active_count()
    _read(DataCursor(), 1, 2, ahead=True)
    assert threading.active_count() == before


def test_a_fault_while_reading_ahead_is_told() -> None:
    class Broken(Sentences):
        def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch:
            raise RuntimeError("torn page")

    pairs = Broken()
    reader = iter(read_batches(pairs, _plan(pairs), DataCursor(), 1, Processes(), ahead=True))
    with pytest.raises(RuntimeError, match="torn page"):
        next(reader)


@pytest.mark.gpu
def test_pinned_batches_are_the_same() -> None:
    pairs = Sentences()
    reader = read_batches(pairs, _plan(pairs), DataCursor(), 2, Processes(), ahead=True)
    _, batches = next(iter(reader))
    assert batches[0].source.is_pinned()
    assert torch.equal(batches[0].to(torch.device("cuda")).source.cpu(), batches[0].source)
