"""Maps a function over chunks in several processes: results in order, memory bounded.

Preprocessing, `bpe learn` and `bpe apply` tokenise, count and encode text with it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from nmtgrid.base.errors import NmtgridError

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
Item = TypeVar("Item")

_MOST_WORKERS = 256

_work: Callable[[Any], Any] | None = None


def count_workers(workers: int) -> int:
    """Return the number of processes to use; 0 means one for each core."""
    return workers or len(os.sched_getaffinity(0))


def worker_faults(workers: int) -> list[str]:
    """Return what is wrong with this number of processes."""
    if 1 <= workers <= _MOST_WORKERS:
        return []
    return [
        f"`--workers` must be from 1 to {_MOST_WORKERS} (0: one for each core), but is {workers}."
    ]


def chunks(
    items: Iterable[Item], size: int, ends: Callable[[], bool] = lambda: False
) -> Iterator[list[Item]]:
    """Yield the items in lists of `size`; the last one may be shorter, and those ended by `ends`.

    `ends` is called after each item that does not fill its list, and returns whether it ends there.
    """
    part: list[Item] = []
    for item in items:
        part.append(item)
        if len(part) == size or ends():
            yield part
            part = []
    if part:
        yield part


def map_ordered(
    work: Callable[[Chunk], Result], parts: Iterable[Chunk], workers: int
) -> Iterator[tuple[Chunk, Result]]:
    """Yield each part with its result, in order; at most 2 x workers parts are in flight.

    `work` is copied to each process once. An error raised by `parts` is raised after the results
    of the parts before it, as with one process. Raises NmtgridError when a process dies.
    """
    if workers <= 1:
        for part in parts:
            yield part, work(part)
        return
    # Spawned, not forked: a fork of a process with torch's threads could hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _initialise, (work,))
    try:
        pending: deque[tuple[Chunk, Future[Result]]] = deque()
        remaining = iter(parts)
        fault: Exception | None = None
        while fault is None:
            try:
                part = next(remaining)
            except StopIteration:
                break
            except Exception as caught:
                fault = caught
            else:
                pending.append((part, pool.submit(_run, part)))
                # Enough that no worker waits for the reader, and few enough for the memory.
                if len(pending) >= 2 * workers:
                    yield _first_result(pending)
        while pending:
            yield _first_result(pending)
        if fault is not None:
            raise fault
    except BrokenProcessPool as broken:
        raise NmtgridError(
            "A worker process died (killed, or out of memory).", "Use fewer `--workers`."
        ) from broken
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _first_result(pending: deque[tuple[Chunk, Future[Result]]]) -> tuple[Chunk, Result]:
    part, future = pending.popleft()
    return part, future.result()


def _initialise(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    # Ctrl-C reaches every process of the terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End this process when its parent has ended, even if that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(part: Any) -> Any:
    assert _work is not None
    return _work(part)
