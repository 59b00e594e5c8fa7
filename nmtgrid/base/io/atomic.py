"""Atomic writes: a file appears whole or not at all.

A file is written under a temporary name in its folder, flushed to the disk and renamed. Everything
that nmtgrid writes goes through `atomic_file`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from nmtgrid.base.errors import StorageError

_TEMPORARY = re.compile(r"([0-9a-f]{8})-([0-9]+)(?:\.[0-9]+)?")
_WEEK = 7 * 24 * 3600


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that is renamed to `path` only when the block ends without a fault.

    Raises StorageError when the disk is full or the folder cannot be written; whatever stood at
    `path` before is then still there.
    """
    remove_stale(path)
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            # Before the rename: else a power cut could leave the new name with old or no content.
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        # The new name is an entry of the folder, which has to reach the disk as well.
        sync_folder(path.parent)
    except OSError as fault:
        remove(temporary)
        raise storage_error(path, fault) from fault
    # Ctrl-C too leaves no temporary file behind.
    except BaseException:
        remove(temporary)
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, values: Any) -> None:
    """Write `values` as indented JSON. Raises ValueError for numbers that JSON does not have."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def nan_to_none(values: Any) -> Any:
    """Return JSON values in which NaN and infinities, which JSON does not have, are None."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {name: nan_to_none(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [nan_to_none(value) for value in values]
    return values


def read_json(path: Path) -> Any:
    """Return the JSON in `path`. Raises StorageError when it is missing or damaged."""
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError as fault:
        raise StorageError(f"{path} is missing.") from fault
    except (ValueError, RecursionError) as fault:  # bad UTF-8 and bad JSON are ValueErrors
        raise StorageError(
            f"{path} is damaged: it is not JSON ({fault}).", "Make it again or restore a copy."
        ) from fault
    except OSError as fault:
        raise storage_error(path, fault, "read") from fault


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise storage_error(folder, fault) from fault


def split_label(text: str) -> tuple[str | None, Path]:
    """Return label and path of `LABEL=PATH`; no label for what is a path as it stands."""
    label, sign, path = text.partition("=")
    if not sign or not label or not path or Path(text).exists():
        return None, Path(text)
    return label, Path(path)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()


def temporary_path(path: Path, ending: str = "part", number: int | None = None) -> Path:
    """Return a hidden name in the folder of `path` that tells this machine and this process."""
    suffix = ending if number is None else f"{number}.{ending}"
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}.{suffix}")


def remove_stale(path: Path, ending: str = "part") -> None:
    """Remove the temporary files for `path` that killed processes left behind.

    Whether a process of another machine that shares the folder still runs is not known: its files
    are left alone for a week.
    """
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.{ending}"):
        match = _TEMPORARY.fullmatch(temporary.name[len(path.name) + 2 : -len(ending) - 1])
        if match is None:
            continue
        if match[1] != _machine():
            with contextlib.suppress(OSError):
                if time.time() - temporary.stat().st_mtime < _WEEK:
                    continue
        # If another program has the number by now, the file stays until that one ends.
        elif _is_running(int(match[2])):
            continue
        # Whole folders are built under such names too.
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            remove(temporary)


@functools.cache
def _machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks whether the process exists
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder` to the disk, where its file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def damaged_error(path: Path, how: str) -> StorageError:
    """Return the error for a file of ours whose content is not what was written."""
    return StorageError(f"{path} is damaged: {how}.", "Make it again or restore a copy.")


_FULL = (errno.ENOSPC, errno.EDQUOT)


def reason(fault: OSError) -> str:
    """Return what is wrong with a file, in words."""
    return "the disk is full" if fault.errno in _FULL else fault.strerror or str(fault)


def storage_error(path: Path, fault: OSError, action: str = "written") -> StorageError:
    """Return the error for a file that could not be written (or read: `action`)."""
    if fault.errno in _FULL:
        return StorageError(
            f"{path} could not be written: the disk is full.",
            "Free some space and run the same command again; what stood there before is unharmed.",
        )
    # The system reports a missing folder and a missing file by the same number.
    if fault.errno == errno.ENOENT and not path.parent.is_dir():
        return StorageError(
            f"The folder {path.parent} does not exist.", "Make it, or mend the path."
        )
    if fault.errno == errno.ENOENT:
        return StorageError(f"{path} is missing.")
    return StorageError(f"{path} could not be {action}: {reason(fault)}.")
