"""The output of a command as comparable values: without times and paths of the run."""

import json
import re
from pathlib import Path
from typing import Any

_OF_TIMES = {
    "seconds", "minutes", "saved_minutes", "validated_minutes", "tokens_per_second",
    "cells_per_second", "minutes_left", "speed",
    "data",  # the folder of the dataset, which lies elsewhere on another disk
}  # fmt: skip
_MINUTES = re.compile(rb"\d+\.\d minutes")
"""The duration of the training in a model card, whose rounded value varies with the load."""
_OF_VALUES = {"sha256", "check"}
"""Checksums of files that contain times."""

Left = dict[str, Any]


def left(folder: Path) -> Left:
    """Return the files below `folder` by name, the newest saved state under one name."""
    files: Left = {}
    states = sorted(path for path in folder.glob("checkpoints/*") if path.name.isdigit())
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or any(part.startswith(".") for part in path.parts[-3:]):
            continue
        name = path.relative_to(folder).as_posix()
        if name.startswith("checkpoints/"):
            if path.parent != states[-1]:
                continue
            name = f"newest/{path.name}"
        files[name] = content(path)
    return files


def content(path: Path) -> Any:
    """Return the content of a file without times, or its bytes if it is not JSON."""
    stored = path.read_bytes()
    if path.suffix in (".json", ".md"):
        stored = _MINUTES.sub(b"minutes", stored)
    if path.suffix in (".png", ".svg", ".html"):
        return "a picture"
    try:
        if path.suffix == ".json":
            return _timeless(json.loads(stored))
        if path.suffix == ".jsonl":
            rows = [_timeless(json.loads(line)) for line in stored.decode().splitlines()]
            return [row for row in rows if row.get("event") != "finished"]
    except (ValueError, AttributeError):
        return stored
    return stored


def _timeless(values: Any) -> Any:
    if isinstance(values, dict):
        dropped = _OF_TIMES | _OF_VALUES
        return {name: _timeless(value) for name, value in values.items() if name not in dropped}
    return [_timeless(value) for value in values] if isinstance(values, list) else values


def differing(first: Left, second: Left) -> list[str]:
    """Return the names of the files that differ between the two."""
    return [name for name in sorted(first | second) if first.get(name) != second.get(name)]


def leftovers(folder: Path) -> list[str]:
    """Return the temporary files and folders, and the locks, below `folder`."""
    return [
        path.relative_to(folder).as_posix()
        for path in folder.rglob(".*")
        if path.name.endswith((".part", ".old", ".lock"))
    ]
