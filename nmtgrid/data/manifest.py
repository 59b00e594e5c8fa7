"""The manifest of a dataset directory: what it holds, and the sizes and hashes of its files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import DataError, StorageError
from nmtgrid.base.files import read_json, write_json

NAME = "manifest.json"
KIND = "nmtgrid dataset"
FORMAT = 1
_LARGEST_HASHED = 1 << 30


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder`. Raises DataError when this is no dataset."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"There is no dataset directory {folder}.",
            "Make one with `nmtgrid preprocess ... --out DATA`.",
        )
    if not (folder / NAME).is_file():
        raise DataError(
            f"{folder} is not a dataset: it has no `{NAME}`.",
            "Make one with `nmtgrid preprocess ... --out DATA`.",
        )
    manifest = read_json(folder / NAME)
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise DataError(
            f"{folder / NAME} is not the manifest of a dataset.",
            "Make the dataset again with `nmtgrid preprocess ... --out DATA`.",
        )
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{folder} has dataset format {manifest.get('format')}, but this program reads "
            f"{FORMAT}.",
            "Make it again with `nmtgrid preprocess` and `nmtgrid bpe learn`.",
        )
    missing = [key for key in ("splits", "files", "text") if key not in manifest]
    if missing:
        raise DataError(
            f"{folder / NAME} lacks `{missing[0]}`.", "Make the dataset again, or restore a copy."
        )
    return manifest


def write(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest into `folder`."""
    write_json(Path(folder) / NAME, {"kind": KIND, "format": FORMAT, **manifest})


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
    advice = "Make the dataset again, or restore a copy."
    facts = manifest["files"].get(name)
    if facts is None or not path.is_file():
        raise DataError(f"The dataset {folder} lacks `{name}`.", advice)
    size = path.stat().st_size
    if size != facts["size"]:
        raise StorageError(
            f"{path} is damaged: it has {size:,} bytes where the manifest says "
            f"{facts['size']:,}.",
            advice,
        )
    if whole and size <= _LARGEST_HASHED and describe_file(path)["sha256"] != facts["sha256"]:
        raise StorageError(f"{path} has been altered (its checksum differs).", advice)
    return path
