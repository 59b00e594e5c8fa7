"""Exclusive locks: while one process writes into a folder, all others are refused.

The lock is a file that names its holder. The system releases it when the holder ends in whatever
way; a file that a killed process left behind then means nothing. Where the file system has no
locks, or has them for each machine alone, the file itself is the lock, and one that was left behind
has to be removed by hand, which the message says.

Called by what makes and completes datasets and models: training, `bpe`, `adaptive-tune` and others.
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
# What `flock` answers where there are no locks: some mounts of Lustre, NFS and FUSE.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
# Types and options of mounts whose locks other machines do not see.
_LOCAL_LOCKS = re.compile(
    r"fuse\..*|9p|virtiofs|vboxsf|vmhgfs|prl_fs|nolock|localflock|local_lock=(all|flock)"
)
_LARGEST_RECORD = 4096
_MOST_MISSING = 100
"""How many times in a row a folder that was just made may have disappeared."""


class FolderLock:
    """An exclusive lock on writing into `folder`, from construction until `release`.

    `task` says what the holder does, such as `nmtgrid train`, in the messages to others. A folder
    that is not there is made. The lock file lies in the folder, or `beside` it where the folder is
    replaced by a rename.
    """

    def __init__(self, folder: Path, task: str, *, beside: bool = False) -> None:
        """Raise StorageError when another process holds the lock, or when it cannot be made."""
        # A link and what it names are one folder.
        self.folder = Path(os.path.realpath(folder))
        self.path = self.folder / NAME
        # Who may not write beside a folder cannot replace it: there is nothing to guard against.
        if beside and (not self.folder.is_dir() or os.access(self.folder.parent, os.W_OK)):
            self.path = self.folder.with_name(f".{self.folder.name}{NAME}")
        home = self.path.parent
        self._made_folders = [path for path in (home, *home.parents) if not path.exists()]
        self._descriptor: int | None = None
        missing = 0
        try:
            while self._descriptor is None:
                # Again each time: a holder that ends removes the folder that it has made, perhaps
                # just after it was in the way of making it here.
                try:
                    with contextlib.suppress(FileExistsError):
                        home.mkdir(parents=True, exist_ok=True)
                    self._descriptor = self._acquire(task)
                except FileNotFoundError:
                    missing += 1
                    if missing == _MOST_MISSING:  # as in /proc, where no folder can be made
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
        """Let others write into the folder; one that was made for the lock and is empty goes."""
        if self._descriptor is None:
            return
        # Removed while it is locked: whoever opened it before will notice that it is gone.
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = None
        self._remove_folders()

    def _acquire(self, task: str) -> int | None:
        """Return the descriptor of the locked file, or None where its holder just removed it."""
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
    """Return the descriptor of the lock file, and whether it was made just now."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            # The only step that is exclusive on every file system.
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags), False


def _read(descriptor: int) -> dict[str, Any] | None:
    """Return the holder of the lock, current or last; None if the file does not tell."""
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
    # Cut: the file may hold anything.
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
    """Whether the file system of `path` may be shared by machines that do not see its locks."""
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
