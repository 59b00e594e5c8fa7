"""Ways to damage a file, for tests that it is detected, and the content that must not change."""

from __future__ import annotations

from pathlib import Path


def cut(path: Path) -> None:
    """Remove the last bytes."""
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    """Change one bit near the end."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def contents(folder: Path, pattern: str = "**/*") -> dict[Path, bytes]:
    """Return the files in a folder with their content."""
    return {path: path.read_bytes() for path in folder.glob(pattern) if path.is_file()}
