"""The `results.json` that a command left in its folder, read and checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.atomic import read_json
from nmtgrid.base.io.checksums import altered, is_altered

NAME = "results.json"

Made = TypeVar("Made")


def read_result_file(path: Path, make: Callable[[Any], Made], *, content: str, advice: str) -> Made:
    """Return what `make` makes of a file, or of the `results.json` in a folder.

    Raises InputError where it can make nothing of it (no `content`), StorageError for no file, for
    one that is no JSON and for one that has been altered since it was written.
    """
    path = path / NAME if path.is_dir() else path
    try:
        values = read_json(path)
    except StorageError as fault:
        raise StorageError(fault.problem, fault.advice or advice) from fault
    if isinstance(values, dict) and is_altered(values):
        raise altered(path)
    try:
        return make(values)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as fault:
        raise InputError(f"it holds no {content}.", advice, path=path) from fault
