"""Pipes with something in them, named as a shell names what `<(command)` writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def piped(content: bytes) -> Iterator[Path]:
    """Yield the name of a pipe that holds `content`, less than a pipe takes, and then ends."""
    reader, writer = os.pipe()
    try:
        os.write(writer, content)
        os.close(writer)
        yield Path(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
