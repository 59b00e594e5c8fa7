"""Checksums of JSON values: a file that was altered is noticed when it is read.

Manifests, configurations and lists of settings have one of the whole file, JSON lines (metrics and
traces) one per line. A file without a checksum, from before or edited on purpose, is read as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError

# The entry of a JSON file that holds the checksum of the others.
CHECKSUM = "sha256"
# The same of a line of JSON.
LINE_CHECKSUM = "check"
_DIGITS = 8


def digest(values: Any) -> str:
    """Return the SHA-256 of JSON values, whatever their order and layout."""
    # Editors and other programs may reorder keys and change the layout.
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with their checksum."""
    # Through JSON, as they will be read: tuples become lists, keys become strings.
    return {**values, CHECKSUM: digest(json.loads(json.dumps(values)))}


def is_altered(values: Mapping[str, Any]) -> bool:
    """Return whether `values` as they were read differ from their checksum; they may have none."""
    return CHECKSUM in values and values[CHECKSUM] != digest(_without(values, CHECKSUM))


def with_line_checksum(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of a line with a short checksum of them and of that of the line `before`.

    The checksums form a chain, so a missing line is noticed as well.
    """
    checksum = digest([before, json.loads(json.dumps(values))])
    return {**values, LINE_CHECKSUM: checksum[:_DIGITS]}


def is_altered_line(values: Mapping[str, Any], before: str = "") -> bool:
    """Return whether a line, or the line `before`, differs from its checksum; it may have none."""
    expected = digest([before, _without(values, LINE_CHECKSUM)])[:_DIGITS]
    return LINE_CHECKSUM in values and values[LINE_CHECKSUM] != expected


def altered_error(path: Path) -> StorageError:
    """Return the error for a file that was changed after it was written."""
    return StorageError(f"{path} has been altered (its checksum differs).", altered_advice())


def altered_advice(entry: str = CHECKSUM) -> str:
    """Return what to do about a change on purpose or by accident."""
    return (
        f"If you changed it yourself, take its entry `{entry}` out: it then counts as it stands. "
        "Otherwise make it again or restore a copy."
    )


def _without(values: Mapping[str, Any], entry: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != entry}
