"""Ways to damage a file, for the tests of what notices it."""

from __future__ import annotations

from pathlib import Path


def cut(path: Path) -> None:
    """Take the last bytes off."""
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    """Change one bit near the end."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
