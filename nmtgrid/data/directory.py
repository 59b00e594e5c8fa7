"""Text files of a split, written as they come, with their size and hash."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmtgrid.base.errors import DataError, StorageError
from nmtgrid.base.io.atomic import (
    atomic_file,
    read_json,
    reason,
    remove_stale,
    temporary_path,
    write_json,
)
from nmtgrid.base.io.checksums import CHECKSUM, is_altered, with_checksum

NAME = "manifest.json"
KIND = "nmtgrid dataset"
FORMAT = 1
_LARGEST_HASHED = 1 << 30
_MAKE = "Make one with `nmtgrid preprocess ... --out DATA`."
_AGAIN = "Make the dataset again, or restore a copy."


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder`.

    Raises DataError when this is no dataset, StorageError when the manifest is damaged.
    """
    path = Path(folder) / NAME
    if not path.parent.is_dir():
        raise DataError(f"There is no dataset directory {folder}.", _MAKE)
    if not path.is_file():
        raise DataError(f"{folder} is not a dataset: it has no `{NAME}`.", _MAKE)
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise DataError(f"{path} is not the manifest of a dataset.", _MAKE)
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{folder} has dataset format {manifest.get('format')}, but this program reads "
            f"{FORMAT}.",
            "Make it again with `nmtgrid preprocess` and `nmtgrid bpe learn`.",
        )
    parts = ("splits", "files", "text")
    missing = [key for key in parts if not isinstance(manifest.get(key), dict)]
    if missing:
        raise DataError(f"{path} lacks `{missing[0]}`.", _AGAIN)
    if is_altered(manifest):
        raise StorageError(f"{path} has been altered (its checksum differs).", _AGAIN)
    manifest.pop(CHECKSUM, None)
    return manifest


def write(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest into `folder`, with a checksum of its own."""
    write_json(Path(folder) / NAME, with_checksum({"kind": KIND, "format": FORMAT, **manifest}))


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size in bytes of a file and its SHA-256."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def check_file(folder: Path, manifest: dict[str, Any], name: str, *, whole: bool = True) -> Path:
    """Return the path of the file `name` once its size and hash agree with the manifest.

    The hash is left out above 1 GiB or with `whole=False`. Raises DataError when the file is
    missing or differs.
    """
    path = Path(folder) / name
    facts = manifest["files"].get(name)
    if not isinstance(facts, dict) or not isinstance(facts.get("size"), int) or not path.is_file():
        raise DataError(f"The dataset {folder} lacks `{name}`.", _AGAIN)
    size = path.stat().st_size
    if size != facts["size"]:
        raise StorageError(
            f"{path} is damaged: it has {size:,} bytes where the manifest says {facts['size']:,}.",
            _AGAIN,
        )
    if whole and size <= _LARGEST_HASHED and describe_file(path)["sha256"] != facts.get("sha256"):
        raise StorageError(f"{path} has been altered (its checksum differs).", _AGAIN)
    return path


@contextlib.contextmanager
def new_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a hidden folder beside `path` that takes its place when the block ends well.

    Raises DataError when `path` is there already, unless it is an empty folder, or a dataset and
    `overwrite` is set. A fault in the block leaves what stood there untouched.
    """
    # What a link names is replaced, never the link.
    path = Path(os.path.realpath(path))
    _put_back(path)
    check_replaceable(path, overwrite)
    building = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(path)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
    except OSError as fault:
        raise StorageError(
            f"{path} cannot be made: {reason(fault)}.", "Choose another `--out`."
        ) from fault
    try:
        yield building
        _put(building, path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def check_replaceable(path: Path, overwrite: bool) -> None:
    """Raise DataError unless something new may stand at `path`."""
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise DataError(f"{path} is there already and is not a folder.", "Choose another `--out`.")
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise DataError(
            f"The folder {path} is there already.",
            "Choose another `--out`, or replace a dataset with `--overwrite`.",
        )
    files = _files(path)
    if files is None:
        raise DataError(
            f"The folder {path} is not a dataset; `--overwrite` replaces only datasets.",
            "Choose another `--out`, or remove the folder yourself.",
        )
    strange = _strange(path, files)
    if strange is not None:
        raise DataError(
            f"{strange} is no part of the dataset {path}, and would be lost with it.",
            "Move it elsewhere, or choose another `--out`.",
        )


def _files(path: Path) -> set[str] | None:
    """Return the names of the files of the dataset in `path`, or None if it is none."""
    try:
        found = read_json(path / NAME)
    except StorageError:
        return None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        return None
    return {NAME, *map(str, found.get("files") or ())}


def _strange(path: Path, files: set[str]) -> Path | None:
    """Return what lies in `path` beside the `files`; hidden leftovers of ours do not count."""
    for held in sorted(path.rglob("*")):
        name = held.relative_to(path).as_posix()
        if name not in files and not held.is_dir() and not held.name.startswith("."):
            return held
    return None


def _put_back(path: Path) -> None:
    """Let what a process moved away from `path` be there again, if it was killed just then."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        if not os.path.lexists(path):
            with contextlib.suppress(OSError):
                os.rename(old, path)
    remove_stale(path, "old")


def _put(building: Path, path: Path) -> None:
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
        raise StorageError(f"{path} cannot be made: {reason(fault)}.") from fault
    shutil.rmtree(old, ignore_errors=True)


class LineFile:
    """Takes lines; knows the size and SHA-256 of what it wrote."""

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
        """The size in bytes and the hash, as the manifest wants them."""
        return {"size": self._size, "sha256": self._digest.hexdigest()}


class SplitWriter:
    """The text files of one split: `text/`, for validation and test also `raw/`, and `truth/`."""

    def __init__(self, folder: Path, name: str, languages: tuple[str, str], *, truth: bool) -> None:
        self.name = name
        kinds = ["text"] if name == "train" else ["text", "raw"]
        self._names = {
            (kind, side): f"{kind}/{name}.{language}"
            for kind in kinds
            for side, language in enumerate(languages)
        }
        if truth:
            self._names["truth", 0] = f"truth/{name}.jsonl"
        self._folder = folder
        self._files: dict[tuple[str, int], LineFile] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[SplitWriter]:
        """Open the files. Raises StorageError when the disk is full."""
        with contextlib.ExitStack() as stack:
            for key, name in self._names.items():
                path = self._folder / name
                path.parent.mkdir(exist_ok=True)
                self._files[key] = LineFile(stack.enter_context(atomic_file(path)))
            yield self

    def write(self, kind: str, side: int, lines: bytes) -> None:
        """Append lines to the file of a kind and side; kinds that are not kept are passed over."""
        if (kind, side) in self._files:
            self._files[kind, side].extend(lines)

    @property
    def count(self) -> int:
        """The number of pairs written."""
        return self._files["text", 0].count

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Sizes and hashes by file name."""
        return {self._names[key]: file.facts for key, file in self._files.items()}
