"""The manifest of a dataset directory: what it holds, and the sizes and hashes of its files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import DataError, StorageError
from nmtgrid.base.io.atomic import read_json, write_json
from nmtgrid.base.io.checksums import CHECKSUM, is_altered, sealed

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
    write_json(Path(folder) / NAME, sealed({"kind": KIND, "format": FORMAT, **manifest}))


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
