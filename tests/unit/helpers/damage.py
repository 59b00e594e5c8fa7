"""Ways to damage a file, for the tests of what notices it, and what must stay as it was."""

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


def contents(folder: Path, pattern: str = "**/*") -> dict[Path, bytes]:
    """Return the files in a folder with what is in them."""
    return {path: path.read_bytes() for path in folder.glob(pattern) if path.is_file()}
