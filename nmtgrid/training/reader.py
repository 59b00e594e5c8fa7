"""What each update reads: its batches in the order of the plan, this process' share of them.

For a GPU a thread makes the next update's batches while the present one is computed, in pinned
memory, from which they are copied without waiting. What is read, and where a resumed run begins,
is the same.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

import torch

from nmtgrid.data.batches import Batch, BatchPlan, Place
from nmtgrid.training.distributed import Processes
from nmtgrid.training.pairs import Pairs


class BatchReader:
    """Reads `count` batches of `plan` an update, over all `processes`, from `place` on."""

    def __init__(
        self,
        pairs: Pairs,
        plan: BatchPlan,
        place: Place,
        count: int,
        processes: Processes,
        *,
        ahead: bool,
        pinned: bool = False,
    ) -> None:
        self.pairs, self.plan, self.processes = pairs, plan, processes
        self.count, self.pinned = count, pinned
        self._walk = plan.walk(place)
        self._thread = concurrent.futures.ThreadPoolExecutor(1) if ahead else None
        self._next = self._thread.submit(self._read) if self._thread else None

    @classmethod
    def of(
        cls,
        pairs: Pairs,
        plan: BatchPlan,
        place: Place,
        count: int,
        processes: Processes,
        device: torch.device,
    ) -> BatchReader:
        """Return the reader for `device`."""
        is_gpu = device.type == "cuda"
        return cls(pairs, plan, place, count, processes, ahead=is_gpu, pinned=is_gpu)

    def __iter__(self) -> Iterator[tuple[Place, list[Batch]]]:
        """Yield the batches of each update, with the place that follows them."""
        try:
            while True:
                if self._thread is None or self._next is None:
                    yield self._read()
                    continue
                found = self._next.result()
                self._next = self._thread.submit(self._read)
                yield found
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True, cancel_futures=True)

    def _read(self) -> tuple[Place, list[Batch]]:
        taken = [next(self._walk) for _ in range(self.count)]
        mine = self.processes.share([self.plan.cells(indices) for _, indices in taken])
        batches = [self.pairs.batch(taken[place][1]) for place in mine]
        return taken[-1][0], [batch.pinned() if self.pinned else batch for batch in batches]
