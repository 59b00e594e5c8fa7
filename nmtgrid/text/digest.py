"""Checksums of plain values: what was altered in a JSON file is found when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError

CHECKSUM = "sha256"
"""The entry of a JSON file that holds the checksum of the others."""
LINE_CHECKSUM = "check"
"""The same of a line of JSON: the first eight digits."""
_MEANT = (
    "If you changed it yourself, take its entry `{entry}` out: it then counts as it stands. "
    "Otherwise make it again or restore a copy."
)


def digest(values: Any) -> str:
    """Return the SHA-256 of JSON values, whatever their order and layout."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sealed(values: Mapping[str, Any], *, line: bool = False) -> dict[str, Any]:
    """Return `values` with their checksum, that of a file or a short one for a `line`."""
    # As they will be read: tuples become lists, keys become texts.
    found = digest(json.loads(json.dumps(values)))
    return {**values, **({LINE_CHECKSUM: found[:8]} if line else {CHECKSUM: found})}


def is_altered(values: Mapping[str, Any], *, line: bool = False) -> bool:
    """Return whether `values` as they were read differ from their checksum; they may have none."""
    entry = LINE_CHECKSUM if line else CHECKSUM
    if entry not in values:
        return False
    found = digest({name: value for name, value in values.items() if name != entry})
    return bool(values[entry] != (found[:8] if line else found))


def altered(path: Path, *, line: bool = False) -> StorageError:
    """Return the error for a file that was changed after it was written."""
    return StorageError(f"{path} has been altered (its checksum differs).", advice(line=line))


def advice(*, line: bool = False) -> str:
    """Return what to do about a change that was meant, or was not."""
    return _MEANT.format(entry=LINE_CHECKSUM if line else CHECKSUM)
