"""What `nmtgrid decode --prefix` reads: how the translation of each line begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nmtgrid.base.io.text import STANDARD, is_stream, read_lines
from nmtgrid.search.inputs import unequal_prefixes


def read_prefixes(path: Path | None, total: int | None) -> Iterator[str] | None:
    """Return the prefixes in `path`, None for no path.

    `total` are the lines to translate where they are known. Raises InputError, before anything is
    translated, for a file with another number of lines; pipes are read as the lines are.
    """
    if path is None:
        return None
    if total is not None and str(path) != STANDARD and not is_stream(path):
        count = sum(1 for _ in read_lines(path))
        if count != total:
            raise unequal_prefixes(count, f"there are {total:,} lines to translate", path)
    return read_lines(path)
