"""Exclusive locks: while one process writes into a folder, all others are refused.

The lock is a file that names its holder. The system releases it however the holder ends, so a file
left behind by a killed process means nothing. If the file system has no locks, or only locks that
other machines do not see, the existence of the file is the lock, and a file that was left behind
has to be removed by hand, as the message says.

Used by everything that writes datasets and models: training, `bpe`, `adaptive-tune` and others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import reason
from nmtgrid.base.io.records import convert, parse_json

NAME = ".lock"
# Errors of `flock` on file systems without locks: some mounts of Lustre, NFS and FUSE.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
# Types and options of mounts whose locks other machines do not see.
_LOCAL_LOCKS = re.compile(
    r"fuse\..*|9p|virtiofs|vboxsf|vmhgfs|prl_fs|nolock|localflock|local_lock=(all|flock)"
)
_LARGEST_RECORD = 4096
_MOST_MISSING = 100
"""How often a folder may have disappeared just after it was created."""


class FolderLock:
    """An exclusive lock on writing into `folder`, from construction until `release`.

    `task` says in messages to others what the holder does, such as `nmtgrid train`. A missing
    folder is created. The lock file is in the folder or, for folders that are replaced by a
    rename, `beside` it.
    """

    def __init__(self, folder: Path, task: str, *, beside: bool = False) -> None:
        """Raise StorageError if another process has the lock, or if it cannot be created."""
        # A link and its target are one folder.
        self.folder = Path(os.path.realpath(folder))
        self.path = self.folder / NAME
        # Without write access to its parent, a folder cannot be replaced: a lock inside it will do.
        if beside and (not self.folder.is_dir() or os.access(self.folder.parent, os.W_OK)):
            self.path = self.folder.with_name(f".{self.folder.name}{NAME}")
        home = self.path.parent
        self._made_folders = [path for path in (home, *home.parents) if not path.exists()]
        self._descriptor: int | None = None
        missing = 0
        try:
            while self._descriptor is None:
                # On each attempt: a holder that ends removes the folder that it created, perhaps
                # right after `mkdir` failed here because of it.
                try:
                    with contextlib.suppress(FileExistsError):
                        home.mkdir(parents=True, exist_ok=True)
                    self._descriptor = self._acquire(task)
                except FileNotFoundError:
                    missing += 1
                    if missing == _MOST_MISSING:  # as in /proc, where no folder can be created
                        raise
        except BaseException as fault:
            self._remove_folders()
            if not isinstance(fault, OSError):
                raise
            raise StorageError(
                f"The folder {folder} cannot be written: {reason(fault)}.",
                "Correct this, or choose another folder.",
            ) from fault

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *fault: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock; remove folders that were created for it if they are empty."""
        if self._descriptor is None:
            return
        # Removed while it is locked: whoever opened it before will notice that it is gone.
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = None
        self._remove_folders()

    def _acquire(self, task: str) -> int | None:
        """Return the descriptor of the locked file, or None if its holder has just removed it."""
        descriptor, is_new = _open(self.path)
        try:
            record = _read(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._taken(record) from None
            except OSError as fault:
                if fault.errno not in _NO_LOCKS:
                    raise
                if not is_new:
                    raise self._left(record) from None
            else:
                is_local = record is not None and record.get("host") == socket.gethostname()
                if not (is_new or is_local) and _has_local_locks(self.path):
                    raise self._left(record)
                if not _is_same_file(descriptor, self.path):
                    os.close(descriptor)
                    return None
            try:
                _write(descriptor, task)
            except OSError:
                # The disk is full: a file without a holder would stay behind.
                with contextlib.suppress(OSError):
                    self.path.unlink()
                raise
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return descriptor

    def _taken(self, record: dict[str, Any] | None) -> StorageError:
        return StorageError(
            f"The folder {self.folder} is in use: {_describe(record)} writes into it.",
            "Wait until that has ended, or choose another folder.",
        )

    def _left(self, record: dict[str, Any] | None) -> StorageError:
        return StorageError(
            f"The folder {self.folder} is in use: {_describe(record)} writes into it, or was "
            "killed. This file system does not tell which.",
            f"Wait until that has ended, or, if it no longer runs, remove {self.path}.",
        )

    def _remove_folders(self) -> None:
        for folder in self._made_folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _open(path: Path) -> tuple[int, bool]:
    """Return the descriptor of the lock file, and whether it was just created."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            # The only step that is exclusive on every file system.
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags), False


def _read(descriptor: int) -> dict[str, Any] | None:
    """Return the record of the current or last holder; None if the file has none."""
    try:
        return convert(parse_json(os.pread(descriptor, _LARGEST_RECORD, 0)), dict[str, Any])
    except ValueError:
        return None


def _write(descriptor: int, task: str) -> None:
    record = {
        "task": task,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(record).encode(), 0)


def _describe(record: dict[str, Any] | None) -> str:
    if record is None:
        return "another process"
    # Truncated: the file may contain anything.
    task, host, process, since = (
        str(record.get(name, "?"))[:80] for name in ("task", "host", "process", "since")
    )
    return f"`{task}` (process {process} on {host}, since {since})"


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _has_local_locks(path: Path) -> bool:
    """Return whether machines that do not see its locks may share the file system of `path`."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return True
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for fields in (line.split() for line in lines):
        # "36 35 98:0 /root /mount rw,options - type source rw,options" (proc_pid_mountinfo(5))
        if fields[2] == number:
            kind, _, options = fields[fields.index("-") + 1 :][:3]
            return any(_LOCAL_LOCKS.fullmatch(word) for word in [kind, *options.split(",")])
    return False
