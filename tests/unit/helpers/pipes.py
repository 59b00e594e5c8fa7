"""Pipes with content, named as a shell names them for `<(command)`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def piped(content: bytes) -> Iterator[Path]:
    """Yield the name of a pipe that contains `content`, which must fit into it, and then ends."""
    reader, writer = os.pipe()
    try:
        os.write(writer, content)
        os.close(writer)
        yield Path(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
