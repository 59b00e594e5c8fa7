"""Directories that appear whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from nmtgrid.base.errors import DataError, StorageError
from nmtgrid.base.io.atomic import passing, read_json, reason, sweep
from nmtgrid.data import manifest as manifests


@contextlib.contextmanager
def new_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a hidden folder beside `path` that takes its place when the block ends well.

    Raises DataError when `path` is there already, unless it is an empty folder, or a dataset and
    `overwrite` is set. A fault in the block leaves what stood there untouched.
    """
    # What a link names is replaced, never the link.
    path = Path(os.path.realpath(path))
    _put_back(path)
    refuse_existing(path, overwrite)
    building = passing(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path)
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


def refuse_existing(path: Path, overwrite: bool) -> None:
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
        found = read_json(path / manifests.NAME)
    except StorageError:
        return None
    if not isinstance(found, dict) or found.get("kind") != manifests.KIND:
        return None
    return {manifests.NAME, *map(str, found.get("files") or ())}


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
    sweep(path, "old")


def _put(building: Path, path: Path) -> None:
    old = passing(path, "old")
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
