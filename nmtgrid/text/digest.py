"""Checksums of plain values: what was altered in a JSON file is found when it is read."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(values: Any) -> str:
    """Return the SHA-256 of JSON values, whatever their order and layout."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
