"""Dataset directories: the manifest with sizes and hashes, atomic creation, files of lines."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from nmtgrid.base.errors import DataError, StorageError
from nmtgrid.base.io.atomic import (
    CHECKSUM,
    atomic_file,
    is_altered,
    reason,
    remove_folder,
    remove_stale,
    temporary_path,
    with_checksum,
    write_json,
)
from nmtgrid.base.io.lock import FolderLock
from nmtgrid.base.io.records import (
    Count,
    FileName,
    Record,
    Small,
    check_version,
    convert_file,
    fits,
    read_json,
)

NAME = "manifest.json"
SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The name of a split or a language, which is part of file names."""
KIND = "nmtgrid dataset"
FORMAT = 1
# Hashing larger files would delay each start by seconds.
_LARGEST_HASHED = 1 << 30
_MAKE = "Make one with `nmtgrid preprocess ... --out DATA`."
_AGAIN = "Make the dataset again, or restore a copy."

Split = TypeVar("Split")


class _Named(Record):
    """The fields of a manifest of any version."""

    kind: Literal["nmtgrid dataset"]
    files: dict[str, Any] = {}  # noqa: RUF012 (a new one for each record)


class _SplitCounts(Record):
    pairs_kept: Count


class _FileFacts(Record):
    size: Count
    sha256: str


class _Languages(Record):
    # They are part of file names.
    source_lang: FileName
    target_lang: FileName
    tokenize: Literal["moses", "none"] = "moses"
    lowercase: bool = False


class _Features(Record):
    kind: Literal["features"]
    size: Small
    type: Literal["F32", "F16", "BF16"]


class _Manifest(Record):
    """The fields of a manifest that are read; values are used unchanged."""

    splits: dict[str, _SplitCounts]
    files: dict[str, _FileFacts]
    text: _Languages
    units: dict[str, Any] = {}  # noqa: RUF012 (a new one for each record)
    source: _Features | None = None


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder`.

    Raises DataError if this is not a dataset, StorageError if the manifest is damaged.
    """
    path = Path(folder) / NAME
    if not path.parent.is_dir():
        raise DataError(f"There is no dataset directory {folder}.", _MAKE)
    if not path.is_file():
        is_model = (path.parent / "config.json").is_file()
        raise DataError(
            f"{folder} is not a dataset: it has no `{NAME}`.",
            "It is a model: name the folder that `nmtgrid preprocess --out DATA` created."
            if is_model
            else _MAKE,
        )
    manifest: dict[str, Any] = read_json(path)
    if not fits(manifest, _Named):
        raise DataError(f"{path} is not the manifest of a dataset.", _MAKE)
    check_version(path, manifest, FORMAT)
    # Older manifests have no checksum and are accepted.
    if is_altered(manifest):
        raise StorageError(f"{path} has been altered (its checksum differs).", _AGAIN)
    convert_file(path, manifest, _Manifest)
    manifest.pop(CHECKSUM, None)
    return manifest


def write(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest into `folder`, with its checksum."""
    write_json(Path(folder) / NAME, with_checksum({"kind": KIND, "format": FORMAT, **manifest}))


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size in bytes of a file and its SHA-256."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def check_file(folder: Path, manifest: dict[str, Any], name: str) -> Path:
    """Return the path of the file `name` after a check of its size and hash (up to 1 GiB).

    Raises DataError when the file is missing, StorageError when it differs from the manifest.
    """
    path = Path(folder) / name
    facts = manifest["files"].get(name)
    if facts is None or not path.is_file():
        raise DataError(f"The dataset {folder} lacks `{name}`.", _AGAIN)
    size = path.stat().st_size
    if size != facts["size"]:
        raise StorageError(
            f"{path} is damaged: it has {size:,} bytes where the manifest says {facts['size']:,}.",
            _AGAIN,
        )
    if size <= _LARGEST_HASHED and describe_file(path)["sha256"] != facts.get("sha256"):
        raise StorageError(f"{path} has been altered (its checksum differs).", _AGAIN)
    return path


@contextlib.contextmanager
def new_folder(
    path: Path, overwrite: bool = False, task: str = "nmtgrid preprocess"
) -> Iterator[Path]:
    """Yield a hidden folder next to `path` that is renamed to it if the block succeeds.

    Raises DataError if `path` exists already, unless it is an empty folder, or a dataset and
    `overwrite` is set, and StorageError while another process creates it. A fault in the block
    leaves the old folder untouched. `task` names this process in messages to others.
    """
    # The target of a link is replaced, never the link.
    path = Path(os.path.realpath(path))
    # Also checked before locking: a refused command leaves nothing behind.
    check_replaceable(path, overwrite)
    with FolderLock(path, task, beside=True):
        yield from _new_folder(path, overwrite)


def _new_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    # A process may have been killed between the two renames of `_replace`.
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        if not os.path.lexists(path):
            with contextlib.suppress(OSError):
                os.rename(old, path)
    remove_stale(path, "old")
    check_replaceable(path, overwrite)
    building = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(path)
        remove_folder(building)
        building.mkdir()
    except OSError as fault:
        raise StorageError(
            f"{path} cannot be created: {reason(fault)}.", "Choose another `--out`."
        ) from fault
    try:
        yield building
        _replace(path, building)
    except BaseException:
        remove_folder(building)
        raise


def check_replaceable(path: Path, overwrite: bool | None) -> None:
    """Raise DataError unless `path` may be created or replaced.

    `overwrite` is None if the command has no such option.
    """
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise DataError(f"{path} exists and is not a folder.", "Choose another `--out`.")
    if not any(path.iterdir()):
        return
    if not overwrite:
        other = "remove it" if overwrite is None else "replace a dataset with `--overwrite`"
        raise DataError(
            f"The folder {path} exists already.", f"Choose another `--out`, or {other}."
        )
    try:
        manifest = read_json(path / NAME)
    except StorageError:
        manifest = None
    if not fits(manifest, _Named):
        raise DataError(
            f"The folder {path} is not a dataset; `--overwrite` replaces only datasets.",
            "Choose another `--out`, or remove the folder yourself.",
        )
    files = {NAME, *manifest.get("files", ())}
    for entry in sorted(path.rglob("*")):
        name = entry.relative_to(path).as_posix()
        # Hidden files are our own temporary ones.
        if name not in files and not entry.is_dir() and not entry.name.startswith("."):
            raise DataError(
                f"{entry} is not part of the dataset {path}, and would be deleted with it.",
                "Move it elsewhere, or choose another `--out`.",
            )


def _replace(path: Path, building: Path) -> None:
    # A non-empty folder cannot be replaced by a single rename: it is moved away first.
    old = temporary_path(path, "old")
    try:
        if path.is_dir() and any(path.iterdir()):
            os.rename(path, old)
        try:
            os.rename(building, path)
        except OSError:
            if old.is_dir():
                os.rename(old, path)
            raise
    except OSError as fault:
        raise StorageError(f"{path} cannot be created: {reason(fault)}.") from fault
    remove_folder(old)


class LineFile:
    """A file of lines that counts them and hashes its content as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0
        self.count = 0

    def extend(self, lines: bytes) -> None:
        """Write whole lines."""
        if lines:
            self._file.write(lines)
            self._digest.update(lines)
            self._size += len(lines)
            self.count += lines.count(b"\n")

    @property
    def facts(self) -> dict[str, Any]:
        """The size in bytes and the hash, as the manifest has them."""
        return {"size": self._size, "sha256": self._digest.hexdigest()}


@contextlib.contextmanager
def open_line_files(folder: Path, names: Iterable[str]) -> Iterator[dict[str, LineFile]]:
    """Open files of a new dataset by name. Raises StorageError if they cannot be written."""
    files = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            files[name] = LineFile(stack.enter_context(atomic_file(path)))
        yield files


def in_order(splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits in the order train, valid, tests."""
    order = {"train": 0, "valid": 1}
    return dict(sorted(splits.items(), key=lambda item: order.get(item[0], 2)))


def split_counts(
    pairs_read: int, pairs_kept: int, dropped: Counter[str], reasons: Iterable[str]
) -> dict[str, Any]:
    """Return the manifest's counts of a split."""
    return {
        "pairs_read": pairs_read,
        "pairs_kept": pairs_kept,
        "dropped": {reason: dropped[reason] for reason in reasons},
    }
