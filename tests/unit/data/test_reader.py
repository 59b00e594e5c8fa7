"""Reading ahead reads the same, from any place, and leaves no thread behind."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from nmtgrid.data.batches import Batch, BatchPlan, DataCursor
from nmtgrid.training.distributed import Processes
from nmtgrid.training.trainer import read_batches
from tests.unit.helpers.tiny_run import Sentences


def _reader(
    pairs: Sentences, start: DataCursor, updates: int, processes: Processes, *, ahead: bool
) -> Iterator[tuple[DataCursor, list[Batch]]]:
    plan = BatchPlan(pairs.source_lengths, pairs.target_lengths, 20)
    return read_batches(
        lambda indices, epoch: pairs.batch(indices), plan, start, updates, processes, ahead=ahead
    )


def _read(
    start: DataCursor, count: int, updates: int, *, ahead: bool
) -> list[tuple[DataCursor, list[int]]]:
    reading = iter(_reader(Sentences(), start, 2, Processes(0, count), ahead=ahead))
    read = [
        (after, [int(i) for batch in batches for i in batch.indices])
        for after, batches in itertools.islice(reading, updates)
    ]
    reading.close()  # type: ignore[attr-defined]
    return read


@pytest.mark.parametrize("count", [1, 2])
def test_ahead_is_the_same(count: int) -> None:
    """And no thread stays."""
    before = threading.active_count()
    plain = _read(DataCursor.begin(), count, 7, ahead=False)
    assert _read(DataCursor.begin(), count, 7, ahead=True) == plain
    # A resumed run begins at the place that follows the third update.
    assert _read(plain[2][0], count, 4, ahead=True) == plain[3:]
    assert threading.active_count() == before


def test_shares_make_up_the_update() -> None:
    pairs = Sentences()
    shares = [
        next(iter(_reader(pairs, DataCursor.begin(), 3, Processes(rank, 2), ahead=False)))
        for rank in (0, 1)
    ]
    assert shares[0][0] == shares[1][0]
    plan = BatchPlan(pairs.source_lengths, pairs.target_lengths, 20)
    walk = itertools.islice(plan.walk(DataCursor.begin()), 3)
    expected = sorted(int(i) for _, indices in walk for i in indices)
    assert sorted(int(i) for _, part in shares for batch in part for i in batch.indices) == expected


def test_a_fault_while_reading_ahead_is_raised() -> None:
    class Broken(Sentences):
        def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch:
            raise RuntimeError("torn page")

    with pytest.raises(RuntimeError, match="torn page"):
        next(iter(_reader(Broken(), DataCursor.begin(), 1, Processes(), ahead=True)))


@pytest.mark.gpu
def test_pinned_batches_are_the_same() -> None:
    pairs = Sentences()
    reader = _reader(pairs, DataCursor.begin(), 2, Processes(), ahead=True)
    _, batches = next(iter(reader))
    assert batches[0].source.is_pinned()
    assert torch.equal(batches[0].to(torch.device("cuda")).source.cpu(), batches[0].source)
