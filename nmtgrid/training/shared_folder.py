"""Whether all processes of a run see the folder that the first one writes to."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import remove
from nmtgrid.training.distributed import Processes

_PATIENCE = 5.0
"""Seconds in which a network's file system shows to all machines what one has written."""
_SHOWN = 8


def check_shared(folder: Path, processes: Processes) -> None:
    """Raise StorageError unless all processes see `folder` as the first one does.

    That one makes a file of a new name in it, or in the nearest folder above it that there is, and
    the others look for it. All of them raise alike.
    """
    if processes.count == 1:
        return
    probe = _made(folder) if processes.is_first else None
    try:
        told = processes.gather(b"" if probe is None else os.fsencode(probe))[0]
        is_seen = not told or _appears(Path(os.fsdecode(told)))
        seen = processes.gather(b"yes" if is_seen else b"")
    finally:
        if probe is not None:
            remove(probe)
    blind = [str(rank) for rank, answer in enumerate(seen) if not answer]
    if blind:
        shown = ", ".join(blind[:_SHOWN]) + (", ..." if len(blind) > _SHOWN else "")
        raise StorageError(
            f"What process 0 writes to {folder} is not seen by {len(blind)} of "
            f"{processes.count} processes ({shown}).",
            "All machines need one and the same folder: give `--out` a whole path on a file system "
            "that they share.",
        )


def _made(folder: Path) -> Path | None:
    """Return a new file; None where none can be made, which beginning the run will tell of."""
    home = next(place for place in (folder, *folder.parents) if place.is_dir())
    probe = home / f".nmtgrid-{uuid.uuid4().hex}"
    try:
        probe.touch(exist_ok=False)
    except OSError:
        return None
    return probe


def _appears(path: Path) -> bool:
    end = time.monotonic() + _PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
