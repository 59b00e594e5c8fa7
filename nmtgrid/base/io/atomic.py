"""Atomic writes: a file is written completely or not at all; JSON files with checksums.

A file is written under a temporary name in its folder, flushed to the disk and renamed. Everything
that nmtgrid writes is written with `atomic_file`.

Checksums reveal altered files when they are read. Manifests, configurations and lists of settings
have one for the whole file, JSON lines (metrics and traces) one per line. A file without a
checksum, from an early version or edited on purpose, is read as it is.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import socket
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from nmtgrid.base.errors import StorageError

_TEMPORARY = re.compile(r"([0-9a-f]{8})-([0-9]+)(?:\.[0-9]+)?")
_MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_WEEK = 7 * 24 * 3600
# The entry of a JSON file with the checksum of the others.
CHECKSUM = "sha256"
# The same for a line of JSON.
LINE_CHECKSUM = "check"
_DIGITS = 8


@contextlib.contextmanager
def atomic_file(
    path: Path, keep_partial: Callable[[Path], None] | None = None
) -> Iterator[BinaryIO]:
    """Open a binary file that is renamed to `path` only when the block ends without a fault.

    If `path` is a symbolic link, its target is replaced, never the link. Raises StorageError when
    the disk is full or the folder cannot be written; the previous file is then left as it was.
    With `keep_partial`, the content written before another fault or an interruption is kept in a
    file with `.partial` added to the name, and `keep_partial` is called with its path.
    """
    path = link_target(path)
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
        partial = None if keep_partial is None else _rename_partial(temporary, path)
        remove(temporary)
        if keep_partial is not None and partial is not None:
            keep_partial(partial)
        raise


def _rename_partial(temporary: Path, path: Path) -> Path | None:
    """Rename an unfinished file to `.partial`; return its new path, or None if it is empty."""
    partial = path.with_name(f"{path.name}.partial")
    # The earlier fault is the one to be reported.
    with contextlib.suppress(OSError):
        if temporary.stat().st_size:
            os.replace(temporary, partial)
            return partial
    return None


def link_target(path: Path) -> Path:
    """Return the target of a symbolic link, which need not exist; other paths as they are.

    Raises StorageError for circular links.
    """
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise StorageError(
            f"{path} could not be written: it is a link that leads to itself.",
            "Remove the link, or name another file.",
        )
    return target


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, lone surrogates (undecodable bytes of file names) as escapes."""
    with atomic_file(path) as file:
        # In JSON such an escape means the same.
        file.write(text.encode("utf-8", "backslashreplace"))


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


def is_stream(path: Path) -> bool:
    """Return whether `path` is a pipe or a device: read only once, never replaced by a file."""
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def refuse_stream(path: Path) -> None:
    """Raise StorageError for a pipe, a socket or a device, which may have no end."""
    if is_stream(path):
        raise StorageError(
            f"{path} is a pipe, a socket or a device, not a file.", "Restore a copy."
        )


def make_folder(folder: Path) -> None:
    """Create a folder and its parents unless they exist. Raises StorageError."""
    try:
        link_target(folder).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise storage_error(folder, fault) from fault


def split_label(text: str) -> tuple[str | None, Path]:
    """Return label and path of `LABEL=PATH`; no label if the text is an existing path."""
    label, sign, path = text.partition("=")
    if not sign or not label or not path or Path(text).exists():
        return None, Path(text)
    return label, Path(path)


def name_faults(named: Iterable[tuple[str, Path]]) -> list[str]:
    """Return a fault for each path that has the name of an earlier one."""
    paths: dict[str, Path] = {}
    faults = []
    for name, path in named:
        if name in paths:
            faults.append(
                f"Two systems have the name `{name}`: {paths[name]} and {path}. Give one of them "
                f"another, as in `other={path}`."
            )
        paths.setdefault(name, path)
    return faults


def folder_name(path: Path) -> str:
    """Return the name of the folder that `path` leads to, such as that of `.` or of a link."""
    return os.path.basename(os.path.realpath(path))


def remove(path: Path) -> None:
    """Remove a file if it exists; warn if it cannot be removed, since nobody would look for it."""
    try:
        path.unlink(missing_ok=True)
    except OSError as fault:
        _warn_of_leftover(path, fault)


def remove_folder(path: Path) -> None:
    """Remove a folder if it exists; warn if part of it cannot be removed."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        # It did not exist, or a part of it has disappeared meanwhile.
        shutil.rmtree(path, ignore_errors=True)
    except OSError as fault:
        shutil.rmtree(path, ignore_errors=True)
        _warn_of_leftover(path, fault)


def _warn_of_leftover(path: Path, fault: OSError) -> None:
    warnings.warn(
        f"{path} is a leftover temporary file that could not be removed: {reason(fault)}. Remove "
        "it yourself.",
        stacklevel=3,
    )


def temporary_path(path: Path, ending: str = "part") -> Path:
    """Return a hidden path in the folder of `path` that identifies this machine and process."""
    return path.with_name(f".{path.name}.{_MACHINE}-{os.getpid()}.{ending}")


def remove_stale(path: Path, ending: str = "part") -> None:
    """Remove the temporary files for `path` that killed processes left behind.

    Whether a process on another machine that shares the folder is still running is unknown: its
    files are kept for a week.
    """
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.{ending}"):
        match = _TEMPORARY.fullmatch(temporary.name[len(path.name) + 2 : -len(ending) - 1])
        if match is None:
            continue
        if match[1] != _MACHINE:
            with contextlib.suppress(OSError):
                if time.time() - temporary.stat().st_mtime < _WEEK:
                    continue
        # If the process id has been reused, the file stays until that process ends.
        elif _is_running(int(match[2])):
            continue
        # Whole folders are built under such names too.
        if temporary.is_dir():
            remove_folder(temporary)
        else:
            remove(temporary)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks whether the process exists
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder` to the disk, if its file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def damaged_error(path: Path, how: str) -> StorageError:
    """Return the error for a file of nmtgrid whose content has changed."""
    return StorageError(f"{path} is damaged: {how}.", "Make it again or restore a copy.")


_FULL = (errno.ENOSPC, errno.EDQUOT)


def reason(fault: OSError) -> str:
    """Return the cause of `fault` in words."""
    return "the disk is full" if fault.errno in _FULL else fault.strerror or str(fault)


def storage_error(path: Path, fault: OSError, action: str = "written") -> StorageError:
    """Return the error for a file that could not be written (or read: `action`)."""
    if fault.errno in _FULL:
        return StorageError(
            f"{path} could not be written: the disk is full.",
            "Free some space and run the same command again; the previous file is unharmed.",
        )
    # The system has the same error number for a missing folder and a missing file.
    if fault.errno == errno.ENOENT and not path.parent.is_dir():
        return StorageError(
            f"The folder {path.parent} does not exist.", "Create it, or correct the path."
        )
    if fault.errno == errno.ENOENT:
        return StorageError(f"{path} is missing.")
    return StorageError(f"{path} could not be {action}: {reason(fault)}.")


def digest(values: Any) -> str:
    """Return the SHA-256 of JSON values, independent of the order of keys and the layout."""
    # Editors and other programs may reorder keys and change the layout.
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with their checksum."""
    # Through JSON, as they will be read: tuples become lists, keys become strings.
    return {**values, CHECKSUM: digest(json.loads(json.dumps(values)))}


def is_altered(values: Mapping[str, Any]) -> bool:
    """Return whether `values` do not match their checksum; False if they have none."""
    if CHECKSUM not in values:
        return False
    rest = {name: value for name, value in values.items() if name != CHECKSUM}
    return bool(values[CHECKSUM] != digest(rest))


def with_line_checksum(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of a line with a short checksum of them and of `before`.

    `before` is the previous line's checksum: they form a chain, so a missing line is noticed too.
    """
    checksum = digest([before, json.loads(json.dumps(values))])
    return {**values, LINE_CHECKSUM: checksum[:_DIGITS]}


def is_altered_line(values: Mapping[str, Any], before: str = "") -> bool:
    """Return whether a line does not match its checksum; False if it has none.

    `before` is the previous line's checksum.
    """
    if LINE_CHECKSUM not in values:
        return False
    rest = {name: value for name, value in values.items() if name != LINE_CHECKSUM}
    return bool(values[LINE_CHECKSUM] != digest([before, rest])[:_DIGITS])


def altered_error(path: Path) -> StorageError:
    """Return the error for a file that was changed after it was written."""
    return StorageError(f"{path} has been altered (its checksum differs).", altered_advice())


def altered_advice(entry: str = CHECKSUM) -> str:
    """Return advice for a file that was changed on purpose or by accident."""
    return (
        f"If you changed it yourself, remove its entry `{entry}`: it is then read as it is. "
        "Otherwise make it again or restore a copy."
    )
